"""Where a module has its features and where a noise looks for them, as the number of axes after the feature axis.

It is 0 for vectors and tokens (…, D) and 1 to 3 for maps (N, C, …). None means that the type of a module does not tell,
or that a noise works on any axis.
"""

from __future__ import annotations

import re
from numbers import Integral

from torch import nn

from ..nn import Cutout, LockedDropout, RotationOut, RotationOut1d, RotationOut2d, RotationOut3d, RotationOutSequence
from ..nn.base import CentredNoise

__all__ = ["dims_of_module", "dims_of_noise", "named_attention", "takes_axis", "width_of_module"]

_LAST = (
    nn.Linear,
    nn.Bilinear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
)
_MAPS: dict[int, tuple[type[nn.Module], ...]] = {
    dims: tuple(
        getattr(nn, f"{name}{dims}d")
        for name in (
            "Conv",
            "ConvTranspose",
            "InstanceNorm",
            "MaxPool",
            "AvgPool",
            "AdaptiveMaxPool",
            "AdaptiveAvgPool",
            "Dropout",
            *(["BatchNorm"] if dims > 1 else []),  # BatchNorm1d takes vectors too
        )
    )
    for dims in (1, 2, 3)
}


def dims_of_module(module: nn.Module) -> int | None:
    """How many axes follow the features in the input and output of a module; None if its type does not tell.

    >>> dims_of_module(nn.Conv2d(3, 8, 3)), dims_of_module(nn.Linear(3, 8)), dims_of_module(nn.ReLU())
    (2, 0, None)
    """
    for dims, types in _MAPS.items():
        if isinstance(module, types):
            return dims
    if isinstance(module, _LAST):
        if getattr(module, "data_format", None) == "channels_first":  # e.g. ConvNeXt's LayerNorm in transformers
            return 2
        # LayerNorm2d of torchvision and of timm is a LayerNorm that takes maps.
        spatial = re.search(r"([123])d", type(module).__name__)
        return int(spatial[1]) if spatial else 0
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(module).__mro__}
    return 0 if "transformers.Conv1D" in names else None  # a linear layer, that of GPT-2


def width_of_module(module: nn.Module, side: str) -> int | None:
    """The number of features before or after a module; None if its attributes do not tell."""
    given = {
        "before": ("in_channels", "in_features", "num_features", "input_size"),
        "after": ("out_channels", "out_features", "num_features", "embedding_dim"),
    }
    for name in given[side]:
        size = getattr(module, name, None)
        if isinstance(size, Integral):
            return int(size) or None  # zero in a lazy module before its first call
    return None


def named_attention(module: nn.Module) -> bool:
    """Whether the type of a module is called attention.

    >>> named_attention(nn.MultiheadAttention(4, 2)), named_attention(nn.Linear(4, 2))
    (True, False)
    """
    return re.search("att(ention|n)", type(module).__name__.lower()) is not None


def takes_axis(noise: nn.Module) -> bool:
    """Whether a noise has an attribute ``dim`` that matters: not an elementwise noise about the origin."""
    return isinstance(noise, CentredNoise) and hasattr(noise, "dim") and (noise.center is not None or noise._mixes)


def dims_of_noise(noise: nn.Module) -> int | None:
    """How many axes a noise expects after the features; None if any number will do.

    >>> dims_of_noise(RotationOut()), dims_of_noise(RotationOut2d()), dims_of_noise(nn.Dropout())
    (0, 2, None)
    """
    if isinstance(noise, nn.Sequential):
        wanted = {dims for dims in map(dims_of_noise, noise) if dims is not None}
        if len(wanted) > 1:
            raise ValueError(f"the noises in {noise!r} look for features on different axes: insert them one by one")
        return wanted.pop() if wanted else None
    if isinstance(noise, RotationOut | RotationOutSequence | LockedDropout):
        return 0
    maps = {
        1: (nn.Dropout1d, RotationOut1d),
        2: (nn.Dropout2d, RotationOut2d, Cutout),
        3: (nn.Dropout3d, RotationOut3d),
    }
    for dims, types in maps.items():
        names = {base.__name__ for base in type(noise).__mro__}
        if isinstance(noise, types) or f"DropBlock{dims}d" in names:
            return dims
    return None
