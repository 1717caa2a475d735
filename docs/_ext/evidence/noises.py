"""The noises that can be made by name, and the arguments of the forms of RotationOut that were compared."""

from __future__ import annotations

from rotationout.experiments.forms import FORMS
from rotationout.registry import KINDS

from .cells import markdown

__all__ = ["texts"]


def texts() -> dict[str, str]:
    """By name."""
    rows = []
    for form, options in (FORMS["vectors"] | FORMS["maps"]).items():
        given = (f"{name}={'…' if value == 'features' else repr(value)}" for name, value in options.items())
        rows += [[form, f"`{', '.join(given)}`"]] if options else []
    return {
        "noises_table": markdown(["name", "noise"], [[f"`{name}`", kind.summary] for name, kind in KINDS.items()]),
        "forms_arguments": markdown(["form", "arguments"], rows),
    }
