"""The report of the study of sizes: how far Dropout and RotationOut are from no noise, and from each other."""

from __future__ import annotations

from ..experiments.forms import PLANE, FormsStudy
from ..experiments.sizes import RATES, SETTINGS
from .cells import CLEAR, is_clear, signed
from .digits import percent
from .page import Section, Table

__all__ = ["sections", "table", "verdict"]


def differences(study: FormsStudy, pair: tuple[str, str]) -> list[tuple[float, float]]:
    """The paired difference of two noises in every setting and at every strength, with its standard error."""
    return [
        study.paired_difference(setting, *(name if name == "no noise" else f"{name}, p = {p:g}" for name in pair))
        for setting in SETTINGS
        for p in RATES
    ]


COLUMNS = {
    "Dropout − none": ("Dropout", "no noise"),
    "RotationOut − Dropout": ("RotationOut", "Dropout"),
    "keep_zeros − Dropout": ("zeros stay zero", "Dropout"),
    "plane − Dropout": (PLANE, "Dropout"),
}
"""What the table shows of each setting and strength: pairs of noises."""


def table(study: FormsStudy) -> Table:
    """A row for each setting and strength; all differences are in points, ± their standard error."""
    shown = {
        head: [
            f"{signed(mean, error, scale=100)}{'*' if is_clear(mean, error) else ''}"
            for mean, error in differences(study, pair)
        ]
        for head, pair in COLUMNS.items()
    }
    rows = []
    for place, (setting, p) in enumerate((setting, p) for setting in SETTINGS for p in RATES):
        none = percent(study.find(setting, "no noise").test_accuracy)
        sizes = map(str, SETTINGS[setting])
        rows.append([*sizes, f"{p:g}", none, *(cells[place] for cells in shown.values())])
    return Table(["examples", "width", "p", "no noise, %", *COLUMNS], rows)


def verdict(study: FormsStudy) -> str:
    """In how many rows RotationOut is ahead of Dropout, and behind."""
    found = differences(study, ("RotationOut", "Dropout"))
    clear = [mean for mean, error in found if is_clear(mean, error)]
    ahead = sum(mean > 0 for mean in clear)
    return (
        f"RotationOut is clearly ahead of Dropout in {ahead} of {len(found)} rows and clearly behind in "
        f"{len(clear) - ahead}. Clearly means by more than {CLEAR:g} standard errors of the paired difference; such "
        "rows have a star."
    )


def sections(study: FormsStudy) -> list[Section]:
    """What the page shows of this study."""
    s = study.settings
    prose = (
        "Handwritten digits, a network with two hidden layers and noise after each, with fewer and more training "
        f"examples than in the demonstration and two widths; nothing was chosen beforehand. {s['epochs']} epochs, "
        f"{s['seeds']} seeds; differences in test accuracy, in points, are paired by seed, ± their standard error."
    )
    return [Section("Dropout and RotationOut in other settings", [prose], table(study), finding=verdict(study))]
