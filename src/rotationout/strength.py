"""The strength λ of a noise: one scale for all, and its conversion to and from the parameter of each noise.

The paper matches noises by the variance of their multiplier (section 2.1):

    λ = p / (1 − p) = E tan²θ,

with ``p`` the *drop* probability, as in ``torch.nn``. Every noise has one parameter of its own; `to_lam` and `from_lam`
translate it to λ and back, so any two noises can be set to equal strength:

================  ==============================================  =====================
kind              its parameter                                   λ
================  ==============================================  =====================
dropout           p, the drop probability                         p / (1 − p)
gaussian          σ of the multiplier 1 + σ·N(0, 1)               σ²
uout              β of the multiplier 1 + Unif(−β, β)             β² / 3
gaussian_tan      σ, tan θ ~ N(0, σ²)                             σ²
uniform_tan       b, tan θ ~ Unif(−b, b)                          b² / 3
uniform_angle     Θ, θ ~ Unif(−Θ, Θ)                              tan Θ / Θ − 1
gaussian_angle    σ, θ ~ N(0, σ²) truncated to ±5π/12             by quadrature
================  ==============================================  =====================

The last four are the laws of the rotation angle. One-sided angles (|θ|) have the same λ. A Gaussian θ that is not
truncated has infinite E tan²θ and is not offered. Some noises, Cutout and DropBlock among them, have no λ of this kind;
`rotationout.kinds` says what their p means. This file uses plain Python numbers and imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import operator
from collections.abc import Callable, Iterable

__all__ = ["KINDS", "LAWS", "check_rate", "convert", "from_lam", "to_lam"]

LAWS = ("gaussian_tan", "uniform_tan", "uniform_angle", "gaussian_angle")
KINDS = ("dropout", "gaussian", "uout", *LAWS)

ANGLE_LIMIT = 5 * math.pi / 12
"""Where ``gaussian_angle`` is truncated."""


def check_number(name: str, value: object) -> float:
    """``value`` as a float, or a TypeError that names the argument."""
    if _is_held(value) or isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {_shown(value, 'float')}")
    return float(value)


def check_integer(name: str, value: object, least: int | None = None, *, also: str = "") -> int:
    """``value`` as an int, also if it is one of numpy's, or an error that names the argument.

    ``also`` says what the caller accepts besides integers, e.g. None.
    """
    number = value
    if not isinstance(value, int) and not _is_held(value):  # under torch.compile a number may be symbolic
        with contextlib.suppress(TypeError):
            number = operator.index(value)  # type: ignore[arg-type]
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} must be {_integers(least, also)}, got {_shown(value, 'int')}")
    if least is not None and number < least:
        raise ValueError(f"{name} must be {_integers(least, also)}, got {number}")
    return number


def _integers(least: int | None, also: str) -> str:
    return "an integer" + ("" if least is None else f", at least {least}") + (f", or {also}" if also else "")


def _is_held(value: object) -> bool:
    """Whether a value is a tensor or an array: such numbers are refused."""
    return hasattr(value, "detach") or getattr(value, "ndim", 0) > 0


def _shown(value: object, kind: str) -> str:
    hint = f"; pass a Python {kind}, e.g. {type(value).__name__.lower()}.item()" if _is_held(value) else ""
    return f"{type(value).__name__} {value!r}{hint}"


def check_rate(p: object, name: str = "p") -> float:
    """``p`` as a float, or an error if it is not a drop probability in [0, 1).

    >>> check_rate(0.2)
    0.2
    >>> check_rate(1)
    Traceback (most recent call last):
    ValueError: p is a drop probability and must be in [0, 1), got 1.0; p = 1 would drop everything and has infinite
        strength
    """
    rate = check_number(name, p)
    if not 0.0 <= rate < 1.0:  # also catches NaN
        raise ValueError(
            f"{name} is a drop probability and must be in [0, 1), got {rate!r}"
            + (f"; {name} = 1 would drop everything and has infinite strength" if rate == 1.0 else "")
        )
    return rate


def check_choice(name: str, value: object, choices: Iterable[str], *, also: str = "") -> str:
    """``value`` if it is one of ``choices``, or a ValueError that lists them and the nearest name.

    ``also`` says what the caller accepts besides these names, e.g. None.
    """
    options = tuple(choices)
    if isinstance(value, str) and value in options:
        return value
    begun = [option for option in options if value and option.startswith(str(value))]
    near = begun or difflib.get_close_matches(str(value), options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    right = ", ".join(map(repr, options)) + (f" or {also}" if also else "")
    raise ValueError(f"{name} must be one of {right}, got {value!r}{hint}")


def to_lam(kind: str, value: float) -> float:
    """The strength λ of a noise of this kind whose parameter is ``value``.

    >>> round(to_lam("dropout", 0.2), 6)
    0.25
    """
    check_choice("kind", kind, KINDS)
    number = check_rate(value) if kind == "dropout" else check_number("value", value)
    if not number >= 0.0 or math.isinf(number):
        raise ValueError(f"the parameter of {kind!r} must be finite and not negative, got {number!r}")
    if kind == "uniform_angle" and number >= math.pi / 2:
        raise ValueError(
            f"E tan²θ is infinite for θ uniform on ±{number:.6g}: Θ must be less than π/2 = {math.pi / 2:.6g}"
        )
    try:
        return _TO_LAM[kind](number)
    except OverflowError:
        raise ValueError(f"the parameter of {kind!r} is too large: λ would be infinite at {number!r}") from None


def from_lam(kind: str, lam: float) -> float:
    """The parameter that gives a noise of this kind the strength ``lam``.

    >>> round(from_lam("uniform_angle", 0.25), 3)  # radians: 43.5 degrees
    0.759
    """
    check_choice("kind", kind, KINDS)
    number = check_number("lam", lam)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"lam must be finite and not negative, got {number!r}")
    value = _FROM_LAM[kind](number)
    if value >= {"dropout": 1.0, "uniform_angle": math.pi / 2}.get(kind, math.inf):
        raise ValueError(f"λ = {number!r} is too large: no parameter of {kind!r} below its limit reaches it")
    return value


def convert(value: float, source: str, target: str) -> float:
    """The parameter of a ``target`` noise as strong as a ``source`` noise with parameter ``value``.

    >>> convert(0.5, "gaussian_tan", "dropout")
    0.2
    """
    return from_lam(target, to_lam(source, value))


def _uniform_angle_to_lam(bound: float) -> float:
    if bound < 1e-3:  # tan Θ / Θ − 1 cancels; its series does not
        return bound**2 / 3 + 2 * bound**4 / 15
    return math.tan(bound) / bound - 1


# Nodes and weights of the five-point Gauss–Legendre rule on [−1, 1].
_NODES = (0.0, 0.5384693101056831, -0.5384693101056831, 0.9061798459386640, -0.9061798459386640)
_WEIGHTS = (0.5688888888888889, 0.4786286704993665, 0.4786286704993665, 0.2369268850561891, 0.2369268850561891)


def _gaussian_angle_to_lam(sigma: float) -> float:
    if sigma == 0.0:
        return 0.0
    panels = 24
    half = min(ANGLE_LIMIT, 12 * sigma) / panels / 2
    moment = mass = 0.0
    for panel in range(panels):
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            theta = half * (2 * panel + 1 + node)
            density = weight * math.exp(-0.5 * (theta / sigma) ** 2)
            moment += density * math.tan(theta) ** 2
            mass += density
    return moment / mass


def _bisect(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where an increasing function takes the value ``target``, to the last bit that matters."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle
        if function(middle) < target:
            low = middle
        else:
            high = middle


@functools.lru_cache(maxsize=1024)  # many layers ask for the same strength, also on a ramp
def _uniform_angle_from_lam(lam: float) -> float:
    return _bisect(_uniform_angle_to_lam, lam, 0.0, math.pi / 2) if lam else 0.0


@functools.lru_cache(maxsize=1024)
def _gaussian_angle_from_lam(lam: float) -> float:
    if lam == 0.0:
        return 0.0
    reach = _uniform_angle_to_lam(ANGLE_LIMIT)  # σ → ∞ is the uniform law on the same interval
    high = 1.0
    while high < 2.0**12 and _gaussian_angle_to_lam(high) < lam:
        high *= 2
    if _gaussian_angle_to_lam(high) < lam:
        raise ValueError(
            f"law 'gaussian_angle' (truncated to ±5π/12) reaches λ = {reach:.4g} (p = {reach / (1 + reach):.4g}) "
            f"at most, asked for λ = {lam:.4g}; use 'gaussian_tan', which reaches every strength"
        )
    return _bisect(_gaussian_angle_to_lam, lam, 0.0, high)


_TO_LAM: dict[str, Callable[[float], float]] = {
    "dropout": lambda p: p / (1 - p),
    "gaussian": lambda sigma: sigma**2,
    "uout": lambda beta: beta**2 / 3,
    "gaussian_tan": lambda sigma: sigma**2,
    "uniform_tan": lambda bound: bound**2 / 3,
    "uniform_angle": _uniform_angle_to_lam,
    "gaussian_angle": _gaussian_angle_to_lam,
}
_FROM_LAM: dict[str, Callable[[float], float]] = {
    "dropout": lambda lam: lam / (1 + lam),
    "gaussian": math.sqrt,
    "uout": lambda lam: math.sqrt(3 * lam),
    "gaussian_tan": math.sqrt,
    "uniform_tan": lambda lam: math.sqrt(3 * lam),
    "uniform_angle": _uniform_angle_from_lam,
    "gaussian_angle": _gaussian_angle_from_lam,
}
