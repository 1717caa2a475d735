"""What the records say, as text for the pages: what the documentation has of measurements is made here, from files.

`substitutions` has a name for each; a page says ``{{ name }}``. What is computed and not measured, the strengths of
noises for instance, is made here too.
"""

from . import (
    accuracy,
    commands,
    computed,
    costs,
    figures,
    limits,
    noises,
    resnet110,
    shifted,
    speed,
    tokens,
    useful,
    vectors,
)

__all__ = ["substitutions"]

PARTS = (
    computed,
    accuracy,
    resnet110,
    commands,
    costs,
    figures,
    limits,
    noises,
    shifted,
    speed,
    tokens,
    useful,
    vectors,
)


def substitutions() -> dict[str, str]:
    """All of them by name; a number stays on one line with its deviation and its star, in narrow tables too."""
    return {
        name: text.replace(" ± ", "\u00a0±\u00a0").replace(" * |", "\u00a0* |")
        for part in PARTS
        for name, text in part.texts().items()
    }
