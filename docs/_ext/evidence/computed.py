"""What follows from the code and the paper alone: strengths, kinds, rules, the paper's best rows."""

from __future__ import annotations

import math

from rotationout import registry, strength
from rotationout.analysis import RULES
from rotationout.report.table1 import PAPER

from .cells import markdown

__all__ = ["texts"]


def texts() -> dict[str, str]:
    """By name."""
    strengths = []
    for p in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5):
        lam = strength.to_lam("dropout", p)
        degrees = math.degrees(strength.from_lam("uniform_angle", lam))
        sigma, bound, beta = (f"{strength.from_lam(kind, lam):.3f}" for kind in ("gaussian_tan", "uniform_tan", "uout"))
        strengths.append([f"{p:g}", f"{lam:.4f}", sigma, bound, f"{degrees:.1f}°", beta])
    header = ["p", "λ", "σ of tan θ", "bound of tan θ", "bound of θ", "β of Uout"]
    rules = [[f"`{name}`", (rule.__doc__ or "").partition("\n")[0]] for name, rule in RULES.items()]
    kinds = [[f"`{name}`", kind.summary, kind.strength] for name, kind in registry.KINDS.items()]
    return {
        "strengths": markdown(header, strengths),
        "lint_rules": markdown(["rule", "what it finds"], rules),
        "kinds": markdown(["name", "what it does", "what p means"], kinds),
        "paper_best_resnet110": _paper_best("resnet110"),
        "paper_best_wrn": _paper_best("wrn28_10"),
    }


def _paper_best(network: str) -> str:
    """The rotation of highest average accuracy as printed, as a p."""
    rows = {row: value for row, (value, _) in PAPER[network].items() if row.startswith("rotation")}
    best = max(rows, key=lambda row: float(rows[row].split()[0]))
    return f"{strength.convert(float(best.split()[1]), 'gaussian_tan', 'dropout'):.1f}"
