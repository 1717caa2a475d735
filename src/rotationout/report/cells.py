"""What tables from records are made of: mean and deviation over seeds, and whether a difference is noise."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..experiments.records import mean_sd
from ..kinds import listed
from ..recipes import TABLES, name_of
from ..strength import from_lam

__all__ = [
    "CLEAR",
    "STAR",
    "STAR_ALONE",
    "UNCORRECTED",
    "Lead",
    "averaged",
    "by_row",
    "differs",
    "holm",
    "is_clear",
    "left_out",
    "marked",
    "mean_lead",
    "p_value",
    "paired_p_value",
    "ran",
    "rotation_strength",
    "shown_p",
    "signed",
    "significance",
    "spread",
    "strengths",
]

UNCORRECTED = "They are not corrected for multiple comparisons."
"""Said of p-values wherever they are explained."""
STAR = "A star marks a number that differs from the paper’s by more than two standard errors of the difference."
STAR_ALONE = "A star marks a number more than two of its own standard errors from the paper’s; the paper prints none."
"""Said of stars where the paper prints no deviation; `STAR` where it does."""
ROUNDING = 1e-9
"""Accuracies that are equal, in per cent or as fractions, differ by less than this, and others by far more."""

CLEAR = 3.0
"""A paired difference of more standard errors is called clear: studies make twenty or thirty comparisons."""


def by_row(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records of each row, in the order of the recipe's table; rows that it does not have come last.

    >>> list(by_row([{"recipe": "an4", "row": row} for row in ("mine", "rotation", "none")]))
    ['none', 'rotation', 'mine']
    """
    if not records:
        raise ValueError("there are no records of this recipe yet; run rotationout sweep")
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault(record["row"], []).append(record)
    table = name_of(records[0].get("recipe", ""))
    known = [config.row for config in TABLES[table]()] if table else []
    return {row: rows[row] for row in dict.fromkeys([*known, *rows]) if row in rows}


def strengths(records: Sequence[dict[str, Any]]) -> str:
    """Which p it is that rows are named after, as the paper names them by a keep rate or a sigma; "" if there are none.

    Rows whose p was changed do not count: their names do not say what it is.

    >>> rows = ("dropout keep 0.9", "rotation default sigma 0.333", "rotation keep-zeros sigma 0.500")
    >>> strengths([{"row": row, "config": {}} for row in rows])
    'Rows are named as in the paper: with the drop probability p, the keep rate is 1 − p and sigma is √(p / (1 − p)). So
    sigma 0.333 and 0.500 are p = 0.1 and 0.2.'
    >>> strengths([{"row": "none", "config": {}}]), strengths([{"row": rows[1], "config": {"p": 0.5}}])
    ('', '')
    """
    found: dict[str, dict[float, str]] = {"keep": {}, "sigma": {}}
    for record in records:
        for kind, number in re.findall(r"\b(keep|sigma) (\d\.\d+)", record["row"]):
            p = 1 - float(number) if kind == "keep" else from_lam("dropout", float(number) ** 2)
            if round(record["config"].get("p", p) - p, 2) == 0:
                found[kind][round(p, 2)] = number
    ways = {"keep": "the keep rate is 1 − p", "sigma": "sigma is √(p / (1 − p))"}
    said = " and ".join(way for kind, way in ways.items() if found[kind])
    sigmas = dict(sorted(found["sigma"].items()))
    are = "are" if len(sigmas) > 1 else "is"
    so = f" So sigma {listed(sigmas.values())} {are} p = {listed(f'{p:g}' for p in sigmas)}." if sigmas else ""
    return f"Rows are named as in the paper: with the drop probability p, {said}.{so}" if said else ""


def rotation_strength(records: Sequence[dict[str, Any]]) -> str:
    """The p of RotationOut where names of rows do not say it, as in Tables 2 to 4; "" if there is none.

    >>> rotation_strength([{"row": "rotation", "config": {"p": 0.2}}, {"row": "rotation block", "config": {"p": 0.2}}])
    'RotationOut has p = 0.2, and the keep rates of other rows are 1 − p: rows may differ in strength.'
    >>> rotation_strength([{"row": "none", "config": {"p": 0.0}}])
    ''
    """
    named = [record for record in records if re.match(r"rotation\b(?! keep)", record["row"])]
    rates = {record["config"]["p"] for record in named if "p" in record["config"]}
    if not rates:
        return ""
    shown = listed(f"{p:g}" for p in sorted(rates))
    return f"RotationOut has p = {shown}, and the keep rates of other rows are 1 − p: rows may differ in strength."


def ran(records: Sequence[dict[str, Any]]) -> str:
    """How many runs there are, and where they were.

    >>> ran([{"device": "a GPU"}, {"device": "a GPU"}])
    '2 runs in all, on a GPU'
    >>> ran([{"device": "a GPU"}])
    '1 run in all, on a GPU'
    """
    count = f"{len(records)} run{'s' if len(records) != 1 else ''}"
    return f"{count} in all, on {', '.join(sorted({record['device'] for record in records}))}"


def averaged(records: Sequence[dict[str, Any]]) -> str:
    """What the numbers of a table are over, and how many runs there are.

    >>> runs = [{"row": row, "device": "a GPU"} for row in ("none", "rotation")]
    >>> averaged(runs), averaged([*runs, runs[0]])
    ('One run per row; 2 runs in all, on a GPU', 'Mean ± standard deviation over runs; 3 runs in all, on a GPU')
    """
    single = len(by_row(records)) == len(records)
    return f"{'One run per row' if single else 'Mean ± standard deviation over runs'}; {ran(records)}"


def left_out(record: dict[str, Any]) -> int:
    """How many of the data a run could not use, for whatever reason.

    >>> left_out({"skipped": {"train": {"not to be read": 2, "too short": 1}, "test": {}}})
    3
    """
    return sum(sum(reasons.values()) for reasons in record["skipped"].values())


def spread(values: Sequence[float], *, scale: float = 1.0) -> str:
    """Mean ± standard deviation, both times ``scale``; the mean alone where there is one value.

    >>> spread([1.0, 3.0]), spread([0.02], scale=100)
    ('2.00 ± 1.41', '2.00')
    """
    mean, sd = mean_sd(values)
    return f"{scale * mean:.2f}" if math.isnan(sd) else f"{scale * mean:.2f} ± {scale * sd:.2f}"


def signed(mean: float, error: float = math.nan, *, scale: float = 1.0) -> str:
    """A difference with its sign, and ± its error if it has one, both times ``scale``.

    >>> signed(-1.234, 0.2), signed(0.01, scale=100)
    ('−1.23 ± 0.20', '+1.00')
    """
    text = f"{scale * mean:+.2f}".replace("-", "−")
    return text if math.isnan(error) else f"{text} ± {scale * error:.2f}"


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Welch's two-sided t-test; NaN where there are fewer than two values, or neither side varies.

    >>> round(p_value([1.0, 2.0, 3.0], [2.0, 2.0]), 3), p_value([2.0, 2.0], [1.0, 1.0]), p_value([2.0], [1.0, 1.5])
    (1.0, nan, nan)
    """
    from scipy.stats import ttest_ind_from_stats

    if min(len(one), len(other)) < 2 or len(set(one)) == len(set(other)) == 1:
        return math.nan
    # From the statistics, not the values: of a side that does not vary scipy would warn that digits are lost.
    found = ttest_ind_from_stats(*mean_sd(one), len(one), *mean_sd(other), len(other), equal_var=False)
    return float(found.pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's method, in their order.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    found, most = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        most = max(most, min(1.0, (len(values) - rank) * values[place]))
        found[place] = most
    return found


class Lead(NamedTuple):
    """A mean difference, its p-value, and the ends of its 95 % confidence interval; all but the first may be NaN."""

    mean: float
    p: float = math.nan
    low: float = math.nan
    high: float = math.nan


def mean_lead(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Lead:
    """How far the first of a pair is above the second, as a mean over pairs, and its p-value; NaN where `p_value` is.

    This is Welch's test of a contrast: every side has a variance of its own, and all must be different runs. For a
    single pair it is `p_value`.

    >>> first, second = ([1.0, 2.0, 3.0], [0.5, 1.0, 1.2]), ([2.1, 2.2, 2.6], [1.1, 1.5, 1.3])
    >>> lead = mean_lead([first, second])
    >>> [round(value, 3) for value in lead], round(mean_lead([first]).p, 3), round(p_value(*first), 3)
    ([1.05, 0.047, 0.028, 2.072], 0.189, 0.189)
    """
    from scipy.stats import t

    lead = sum(mean_sd(one)[0] - mean_sd(other)[0] for one, other in pairs) / len(pairs)
    if any(math.isnan(p_value(*pair)) for pair in pairs):
        return Lead(lead)
    errors = [(mean_sd(side)[1] ** 2 / len(side), len(side) - 1) for pair in pairs for side in pair]
    total = sum(square for square, _ in errors)
    freedom = total**2 / sum(square**2 / count for square, count in errors)  # Welch–Satterthwaite
    error = total**0.5 / len(pairs)
    half = float(t.ppf(0.975, freedom)) * error
    return Lead(lead, float(2 * t.sf(abs(lead) / error, freedom)), lead - half, lead + half)


def paired_p_value(differences: Sequence[float]) -> float:
    """Student's two-sided t-test of whether differences within pairs are zero on average; NaN for fewer than two.

    Also NaN where all differences are the same but for rounding, and not zero. Accuracies come in steps of one example,
    so a few differences can agree by chance: without a deviation the test can say nothing about them.

    >>> round(paired_p_value([1.0, 2.0, 3.0]), 3), paired_p_value([0.0, 0.0])
    (0.074, 1.0)
    >>> paired_p_value([1.0]), paired_p_value([62.13 - 62.12, 58.44 - 58.43])
    (nan, nan)
    """
    from scipy.stats import t

    mean, sd = mean_sd(differences)
    if sd < ROUNDING:
        return 1.0 if abs(mean) < ROUNDING else math.nan
    return float(2 * t.sf(abs(mean) / (sd / len(differences) ** 0.5), len(differences) - 1))


def is_clear(difference: float, error: float) -> bool:
    """Whether a paired difference is more than `CLEAR` standard errors.

    Never without an error to compare with: of a single pair it is NaN, and zero where pairs agree to the last example.

    >>> is_clear(-0.04, 0.01), is_clear(0.02, 0.01), is_clear(0.04, math.nan), is_clear(0.04, 0.0)
    (True, False, False, False)
    """
    return error > ROUNDING and abs(difference) > CLEAR * error


def significance(one: Sequence[float], other: Sequence[float]) -> str:
    """`p_value` for people."""
    return shown_p(p_value(one, other))


def shown_p(p: float) -> str:
    """A p-value for people.

    >>> shown_p(0.25), shown_p(0.0001), shown_p(math.nan)
    ('0.250', '< 0.001', '–')
    """
    return "–" if math.isnan(p) else f"{p:.3f}" if p >= 0.0005 else "< 0.001"


def differs(values: Sequence[float], printed: str) -> bool:
    """Whether a mean is more than two standard errors of the difference away from the paper's mean ± sd over 5 runs.

    Where the paper prints no deviation, only our own error counts; a single run has none, so it never differs.

    >>> differs([70.0, 70.2], "71.93 ± 0.16"), differs([71.8, 72.2], "71.93 ± 0.16"), differs([60.0], "71.93 ± 0.16")
    (True, False, False)
    >>> differs([71.72, 71.74], "71.93 ± 0.16"), differs([71.78, 71.80], "71.93 ± 0.16")  # their error is 0.072
    (True, False)
    >>> differs([9.0, 9.2], "9.1"), differs([8.0, 8.1], "9.1"), differs([8.0, 8.1], "–")
    (False, True, False)
    >>> differs([8.0, 8.4, 8.0, 8.4], "8.5")  # 0.3 away, with an error of 0.115
    True
    """
    if len(values) < 2 or printed == "–":
        return False
    mean, sd = mean_sd(values)
    theirs, deviation = (float(part) for part in (printed if "±" in printed else f"{printed} ± 0").split("±"))
    return abs(mean - theirs) > 2 * math.hypot(sd / len(values) ** 0.5, deviation / 5**0.5)


def marked(values: Sequence[float], printed: str, *, same: bool = True) -> str:
    """`spread`, with a star if it `differs` from what the paper prints; no star if the data are not the ``same``.

    >>> marked([8.0, 8.2], "9.1"), marked([8.0, 8.2], "9.1", same=False), marked([8.0, 8.2], "8.1")
    ('8.10 ± 0.14 *', '8.10 ± 0.14', '8.10 ± 0.14')
    """
    return spread(values) + (" *" if same and differs(values, printed) else "")
