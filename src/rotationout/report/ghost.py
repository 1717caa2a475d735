"""Appendix B on CIFAR-100 from records: test accuracy by normalisation and by how many examples it sees at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..experiments.norms import LABELS
from ..experiments.records import mean_sd
from ..kinds import listed
from ..recipes import SUBJECTS, TABLES
from . import verdicts
from .cells import by_row, p_value, paired_p_value, ran, spread
from .page import Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MODES", "RECIPE", "accuracies", "figure", "findings", "prose", "section", "table", "trouble", "verdict"]

RECIPE = "cifar100_ghost"
MODES = {
    "batch": LABELS["batch"],
    "poly": f"{LABELS['poly']}, B examples",
    "poly_measured": f"{LABELS['poly']}, measured B",
    "cross": LABELS["cross"],
    "group": LABELS["group"],
}
"""How networks are normalised in testing; the first three are the same networks."""
STATISTICS = ("running", "averaged")
NORM_LINES = {"batch": "-", "cross": "--", "poly": ":", "group": "-."}
"""Line styles of the learning curves, by normalisation; colours are for sizes."""
CHANCE = 1.0
"""Test accuracy of guessing, in per cent: one class of a hundred."""
RULE = (
    f"Ahead and behind mean a p-value below {verdicts.LEVEL}, in a paired t-test where networks are the same, else in "
    "Welch’s two-sided test on runs. Many are compared, so some differ significantly by chance alone."
)
"""What the findings mean by ahead and behind."""
Found = Mapping[tuple[str, str, int], Sequence[float]]
"""What `accuracies` returns."""
Places = Mapping[tuple[str, int], tuple[str, str]]
"""For each mode and size that something is compared with: whether it is ahead or behind, and by how much."""


def accuracies(records: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], list[float]]:
    """Test accuracy after the last step, in per cent, of every run: by mode, statistics, and examples seen at once."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for record in records:
        config = record["config"]
        size = _size(record)
        top1 = record.get("test_modes", {}).get("top1")
        if top1 is None:  # GroupNorm, which has no statistics, or a study that failed
            top1 = {"running": {config["norm"]: 100 * record["test_curve"][-1]}}
        for statistics, modes in top1.items():
            for mode, value in modes.items():
                found.setdefault((mode, statistics, size), []).append(value)
    return found


def table(records: Sequence[dict[str, Any]]) -> Table:
    """A row for each normalisation and kind of statistics, a column for each size; mean ± deviation over seeds."""
    by_row(records)  # none: an error that says what makes them
    found = accuracies(records)
    sizes = sorted({size for _, _, size in found})
    lines = []
    kinds = [(mode, statistics) for statistics in STATISTICS for mode in MODES if mode != "group"]
    for mode, statistics in [*kinds, ("group", "running")]:
        cells = [found.get((mode, statistics, size), []) for size in sizes]
        runs = sorted({len(values) for values in cells if values})
        if runs:
            name = MODES[mode] if mode == "group" else f"{MODES[mode]}, {statistics}"
            count = "–".join(str(n) for n in dict.fromkeys((runs[0], runs[-1])))
            lines.append([name, count, *(spread(values) if values else "–" for values in cells)])
    return Table(["test accuracy, %", "runs", *(f"of {size}" for size in sizes)], lines)


def verdict(records: Sequence[dict[str, Any]]) -> str:
    """`findings` as one paragraph; "" without records."""
    return " ".join(findings(records))


def findings(records: Sequence[dict[str, Any]]) -> list[str]:
    """What came out, in sentences; none without records.

    First what is missing. Then CrossNorm beside BatchNorm of as many examples, f_poly beside BatchNorm in the same
    networks, and what needs no repair beside all of them: GroupNorm, and BatchNorm of the whole batch.
    """
    if not records:
        return []
    found, batch = accuracies(records), records[0]["config"]["batch"]
    said = _said("CrossNorm", partial(_cross, found))
    for mode in ("poly", "poly_measured"):
        said += _said(f"{_label(mode)}, in the same networks,", partial(_poly, records, mode))
    for mode in ("group", "batch"):
        said += _said(_name(mode, batch), partial(_whole, found, mode, batch))
    rule = [RULE] if said and any(len(values) > 1 for values in found.values()) else []
    return [*trouble(records), *said, *rule]


def trouble(records: Sequence[dict[str, Any]]) -> list[str]:
    """What is missing from the table, and what learnt next to nothing: a sentence for each kind of trouble.

    A row should have the seeds that others have. A run whose loss is not finite leaves no record.
    """
    rows, seeds = by_row(records), {record["seed"] for record in records}
    known = [config.row for config in TABLES[RECIPE]()]
    lacking = {row: seeds - {run["seed"] for run in rows.get(row, [])} for row in dict.fromkeys([*known, *rows])}
    failed = {row: {run["seed"] for run in runs if "failed" in run.get("test_modes", {})} for row, runs in rows.items()}
    kinds = {
        "No record, because not run or because the loss was not finite": [
            row if row not in rows else f"{row}, {_seeds(its)}" for row, its in lacking.items() if its
        ],
        "The study of test modes failed": [f"{row}, {_seeds(its)}" for row, its in failed.items() if its],
        f"Test accuracy below {2 * CHANCE:g} % (chance is {CHANCE:g} %), but counted nevertheless": _at_chance(records),
    }
    return [f"{kind}: {'; '.join(names)}." for kind, names in kinds.items() if names]


def prose(records: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers of the table are."""
    first = records[0]
    return [
        f"ResNet20, {first['steps']:,} steps on batches of {first['config']['batch']}. The column head says how many "
        "examples are normalised together. Test accuracy after the last step, mean ± standard deviation over runs; "
        f"{ran(records)}. A dash means that there was no run, or that its "
        "loss was not finite.",
        "“Running” statistics are those of training; “averaged” ones are recomputed over many batches. PolyBatchNorm "
        "is the network trained with BatchNorm in another test mode: with f_poly for as many values as there are "
        "examples (B examples), or for as many as were found to be independent (measured B). GroupNorm uses neither "
        "batches nor statistics: its number is in the last column.",
    ]


def figure(records: Sequence[dict[str, Any]]) -> Figure:
    """Learning curves: a colour for each size, a line for each normalisation."""
    from .curves import curves_figure
    from .style import PALETTE

    sizes = sorted({_size(record) for record in records if record["config"]["norm"] != "group"})
    colours = [colour for name, colour in PALETTE.items() if name != "grey"]
    looks = {}
    for row, runs in by_row(records).items():
        norm = runs[0]["config"]["norm"]
        colour = PALETTE["grey"] if norm == "group" else colours[sizes.index(_size(runs[0])) % len(colours)]
        looks[row] = (NORM_LINES[norm], colour)
    return curves_figure(records, looks=looks)


def section(recipe: str, records: Sequence[dict[str, Any]]) -> Section:
    """The section of a recipe. What is missing stands out, and so does the first comparison."""
    from .curves import CAPTION
    from .style import to_svg

    said, first = findings(records), len(trouble(records)) + 1
    return Section(
        SUBJECTS[recipe],
        [*prose(records), *said[first:]],
        table(records),
        to_svg(figure(records)),
        f"Test accuracy {CAPTION}",
        verdicts.finding(records, " ".join(said[:first])),
    )


def _at_chance(records: Sequence[dict[str, Any]]) -> list[str]:
    """Test modes in which runs are near chance, and how many; f_poly only where it differs from BatchNorm."""
    counts: dict[tuple[str, int], dict[str, str]] = {}
    for (mode, statistics, size), values in sorted(accuracies(records).items(), key=lambda item: item[0][2]):
        low = sum(value < 2 * CHANCE for value in values)
        counts.setdefault((mode, size), {})[statistics] = f"{low} of {len(values)} runs" if low else ""
    said = []
    for (mode, size), parts in counts.items():
        if any(parts.values()) and not (mode.startswith("poly") and parts == counts.get(("batch", size))):
            named = [f"{part} with {kind} statistics" for kind, part in parts.items() if part]
            alike = len(set(parts.values())) == 1
            said.append(f"{_name(mode, size)} ({next(iter(parts.values())) if alike else listed(named)})")
    return said


def _cross(found: Found, statistics: str) -> Places:
    """CrossNorm beside BatchNorm of as many examples."""
    places = {}
    for size in sorted({size for _, _, size in found}):
        ours, theirs = (found.get((mode, statistics, size), []) for mode in ("cross", "batch"))
        if ours and theirs:
            places["batch", size] = _beside(ours, theirs)
    return places


def _poly(records: Sequence[dict[str, Any]], mode: str, statistics: str) -> Places:
    """f_poly beside BatchNorm, network by network."""
    gains: dict[int, list[float]] = {}
    for record in records:
        top1 = record.get("test_modes", {}).get("top1", {}).get(statistics, {})
        if {mode, "batch"} <= top1.keys():
            gains.setdefault(_size(record), []).append(top1[mode] - top1["batch"])
    return {("batch", size): _place(gain, paired_p_value(gain), len(gain)) for size, gain in sorted(gains.items())}


def _whole(found: Found, mode: str, batch: int, statistics: str) -> Places:
    """GroupNorm, or BatchNorm of the whole batch, compared with all others; the table says by how much they differ."""
    ours = found.get((mode, "running" if mode == "group" else statistics, batch), [])
    places = {}
    for other in MODES:
        for size in sorted({size for _, _, size in found}):
            theirs = found.get((other, statistics, size), [])
            same = mode == "batch" and size == batch and other != "cross"  # networks; GroupNorm was compared before
            if ours and theirs and other != "group" and not same:
                places[other, size] = (_beside(ours, theirs)[0], "")
    return places


def _beside(ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, str]:
    runs = min(len(ours), len(theirs))
    return _place([mean_sd(ours)[0] - mean_sd(theirs)[0]], p_value(ours, theirs), runs)


def _place(differences: Sequence[float], p: float, runs: int) -> tuple[str, str]:
    """As `verdicts.place`, but mentions only once that runs are single."""
    where, by = verdicts.place(mean_sd(differences)[0], p, runs, "points")
    return (where, by) if runs > 1 else (f"in single runs {where}", by.removesuffix(" in single runs"))


def _said(subject: str, places: Callable[[str], Places]) -> list[str]:
    """How something compares with others given running statistics, and what is different given averaged ones.

    >>> _said("CrossNorm", lambda statistics: {("batch", 4): ("behind", "−2.00 points")})
    ['With running statistics CrossNorm is behind BatchNorm of 4 (−2.00 points). With averaged ones it is the same.']
    """
    running, averaged = map(places, STATISTICS)
    start = "Compared with" if subject == MODES["group"] else "With"  # it has no statistics
    if not running:
        return []
    said = f"{start} running statistics {subject} is {_listed(running)}."
    other = {key: place for key, place in averaged.items() if place[0] != running.get(key, ("", ""))[0]}
    if other:
        rest = ", and otherwise the same" if len(other) < len(averaged) else ""
        return [f"{said} {start} averaged ones it is {_listed(other)}{rest}."]
    return [f"{said} {start} averaged ones it is the same." if averaged else said]


def _listed(places: Places) -> str:
    """Those on each side, by mode and size.

    >>> _listed({("batch", 4): ("behind", "−2.00 points"), ("batch", 8): ("behind", "−1.00 points")})
    'behind BatchNorm of 4 (−2.00 points) and 8 (−1.00 points)'
    >>> _listed({("batch", 4): ("behind", ""), ("batch", 8): ("ahead of", ""), ("cross", 4): ("behind", "")})
    'behind BatchNorm of 4, CrossNorm of 4; ahead of BatchNorm of 8'
    """
    sides: dict[str, dict[str, list[str]]] = {}
    for (mode, size), (where, by) in places.items():
        sides.setdefault(where, {}).setdefault(_label(mode), []).append(f"{size} ({by})" if by else str(size))
    return "; ".join(
        f"{where} {', '.join(f'{name} of {listed(sizes)}' for name, sizes in names.items())}"
        for where, names in sides.items()
    )


def _seeds(seeds: Iterable[int]) -> str:
    names = [str(seed) for seed in sorted(seeds)]
    return f"seed{'s' if len(names) > 1 else ''} {listed(names)}"


def _label(mode: str) -> str:
    """The name of a mode in `MODES`, as part of a sentence.

    >>> _label("poly"), _label("cross")
    ('PolyBatchNorm (B examples)', 'CrossNorm')
    """
    name, _, how = MODES[mode].partition(", ")
    return f"{name} ({how})" if how else name


def _name(mode: str, size: int) -> str:
    return _label(mode) if mode == "group" else f"{_label(mode)} of {size}"


def _size(record: dict[str, Any]) -> int:
    """How many examples are normalised together."""
    size: int = record["config"]["ghost_batch"] or record["config"]["batch"]
    return size
