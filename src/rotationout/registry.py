"""Every noise by its name, on one scale of strength: `noise`.

``p`` is a drop probability and λ = p / (1 − p) the variance of Dropout's multiplier (`rotationout.strength`). Noises of
equal p are equally strong where `Kind.matched` says so; for the others `Kind.strength` says what p means instead.
``print(table())`` lists it all.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from . import strength
from .kinds import KINDS, Kind, listed

__all__ = ["ALIASES", "KINDS", "Kind", "is_noise", "noise", "table"]


def noise(kind: str, p: float = 0.5, **options: Any) -> nn.Module:
    """A noise by its name, as in ``noise("dropout", 0.2)`` or ``noise("rotation", 0.2, dims=2)``.

    Args:
        kind: one of `KINDS` or `ALIASES`; case, hyphens and underscores do not matter.
        p: its strength, the drop probability of the equally strong Dropout; where there is no exact match,
            ``KINDS[kind].strength`` says what p means.
        options: the options of this kind, ``KINDS[kind].options``. Most kinds have ``dims``, the number of axes after
            the features: 0 for vectors and tokens (…, D), 2 for maps (N, C, H, W).

    >>> noise("gaussian", 0.2)
    GaussianDropout(p=0.2)
    >>> noise("centred-dropout", 0.2, dims=2)
    CentredDropout(p=0.2, center=batch, dim=-3)
    >>> noise("Dropout_2d", 0.2)
    Dropout2d(p=0.2, inplace=False)
    """
    name, implied = _resolve(kind)
    entry = KINDS[name]
    for option, value in options.items():
        if option not in entry.options:
            near = difflib.get_close_matches(option, entry.options, n=1)
            hint = f", did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"noise {name!r} has no option {option!r}{hint} It has {listed(entry.options)}")
        if implied.get(option, value) != value:
            raise ValueError(f"{kind!r} is {name!r} with {option}={implied[option]!r}, got {option}={value!r}")
    missing = [option for option in entry.required if option not in options]
    if missing:
        raise TypeError(f"noise {name!r} needs the option {listed(missing)}")
    return entry.make(strength.check_rate(p), **{**implied, **options})


def is_noise(module: nn.Module) -> bool:
    """Whether a module is a noise: ours, torch's own, or DropBlock and stochastic depth of torchvision or timm.

    >>> is_noise(noise("uout", 0.2)), is_noise(nn.Dropout()), is_noise(nn.Identity())
    (True, True, False)
    """
    return isinstance(module, _DropoutNd) or is_stochastic_depth(module) or _named(module, "DropBlock2d", "DropBlock3d")


def is_stochastic_depth(module: nn.Module) -> bool:
    """Whether a module is torchvision's StochasticDepth or timm's DropPath.

    >>> is_stochastic_depth(nn.Dropout())
    False
    """
    return _named(module, "StochasticDepth", "DropPath")


def _named(module: nn.Module, *names: str) -> bool:
    """Whether a module is of torchvision or timm and has one of these names: both may be absent."""
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] in ("torchvision", "timm")
        for base in type(module).__mro__
    )


def table() -> str:
    """A text that lists all kinds: what each does, what its p means, and its options.

    >>> for line in table().splitlines()[:2]:
    ...     print(line)
    none: the identity
        strength: λ = 0 whatever p is
    """
    rows = []
    for name, kind in KINDS.items():
        options = (f"{o.name}={o.default!r}" if o.name not in kind.required else o.name for o in kind.options.values())
        rows.append(f"{name}: {kind.summary}\n    strength: {kind.strength}\n    options: {', '.join(options)}")
    return "\n\n".join(rows)


ALIASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "identity": ("none", {}),
    "gaussian-dropout": ("gaussian", {}),
    "centred-gaussian-dropout": ("centred-gaussian", {}),
    "locked-dropout": ("locked", {}),
    "stochastic-depth": ("droppath", {}),
    "rotationout": ("rotation", {}),
    "rotationout-sequence": ("rotation-sequence", {}),
} | {
    f"{alias}{dims}d": (name, {"dims": dims})
    for alias, name, most in [
        ("rotation", "rotation", (1, 2, 3)),
        ("rotationout", "rotation", (1, 2, 3)),
        ("spatial", "spatial", (1, 2, 3)),
        ("dropout", "spatial", (1, 2, 3)),
        ("dropblock", "dropblock", (2, 3)),
    ]
    for dims in most
}
"""Other names of some kinds, with the options that they imply."""


def _resolve(kind: str) -> tuple[str, Mapping[str, Any]]:
    """The kind that a name or an alias means, and the options that the alias implies."""
    if not isinstance(kind, str):
        raise TypeError(f"kind must be the name of a noise, got {type(kind).__name__} {kind!r}")
    names: dict[str, tuple[str, Mapping[str, Any]]] = {_plain(name): (name, {}) for name in KINDS}
    names |= {_plain(alias): meaning for alias, meaning in ALIASES.items()}
    found = names.get(_plain(kind))
    if found is None:
        near = difflib.get_close_matches(_plain(kind), names, n=1)
        hint = f", did you mean {names[near[0]][0]!r}?" if near else "."
        raise ValueError(f"there is no noise {kind!r}{hint} The kinds are {listed(KINDS)}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.lower()).replace("centered", "centred")
