"""Recipes of the paper's tables: functions that return complete configs, one for each row of a table.

`cifar100` has Table 1, Figure 2, appendix B and noise on vectors and tokens, `search` a search under stronger weight
decay, `images` Table 2, `detection` Table 3, `speech` Table 4.
"""

from collections.abc import Callable, Sequence

from ..experiments.config import Config
from . import cifar100, detection, images, search, speech

__all__ = ["SUBJECTS", "TABLES", "cifar100", "detection", "images", "name_of", "search", "speech"]

TABLES: dict[str, Callable[[], Sequence[Config]]] = {
    **cifar100.TABLES,
    **search.TABLES,
    **images.TABLES,
    **detection.TABLES,
    **speech.TABLES,
}
"""Every table by its name: a function that returns the configs of its rows, all of one class."""

SUBJECTS = {
    "cifar100_resnet110_paper": "Table 1a, 1b: ResNet110 on CIFAR-100, as printed in the paper",
    "cifar100_resnet110_authors": "Table 1a, 1b: ResNet110 on CIFAR-100, as in the authors’ code",
    "cifar100_wrn28_10_paper": "Table 1c, 1d: WideResNet28-10 on CIFAR-100, as printed in the paper",
    "cifar100_wrn28_10_authors": "Table 1c, 1d: WideResNet28-10 on CIFAR-100, as in the authors’ code",
    "cifar100_resnet110_protocol": "Presets, ramp and weight decay in ResNet110, on held-out images",
    "cifar100_resnet110_shift": "Figure 2: the variance shift in ResNet110",
    "cifar100_ghost": "Appendix B: small batches in ResNet20",
    "cifar100_mlp": "Noise on vectors: three hidden layers on CIFAR-100",
    "cifar100_mlp_5000": "Noise on vectors, with 5,000 images",
    "cifar100_mlp_20000": "Noise on vectors, with 20,000 images",
    "cifar100_mlp_50000": "Noise on vectors, with all of CIFAR-100’s images",
    "cifar100_vit": "Noise on tokens: a small vision transformer on CIFAR-100",
    "cifar100_resnet110_search": "Forms and strengths in ResNet110 with more weight decay, on held-out images",
    "cifar100_resnet110_strong": "The best of the search with more weight decay, on the test set",
    "imagenet": "Table 2: ResNet-50 on ImageNet",
    "imagewoof": "The rows of Table 2 on Imagewoof",
    "bccd": "The rows of Table 3 on BCCD’s blood cells",
    "coco": "Table 3: RetinaNet on COCO",
    "an4": "The rows of Table 4 on AN4",
    "an4_strength": "The strength of RotationOut on AN4, on held-out speakers",
    "wsj": "Table 4: an LSTM on WSJ",
}
"""What each table is about, which is also the title of its section in the report."""


def name_of(recipe: str) -> str | None:
    """The name of the table of a recipe in records, or None. A recipe may be that name followed by changed fields.

    >>> name_of("an4"), name_of("an4_strength_p=0.1"), name_of("an44")
    ('an4', 'an4_strength', None)
    """
    names = [name for name in TABLES if recipe == name or recipe.startswith(f"{name}_")]
    return max(names, key=len, default=None)
