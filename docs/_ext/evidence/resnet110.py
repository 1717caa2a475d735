"""What ResNet110 reached: Table 1, which form and strength were chosen before it, and stronger weight decay."""

from __future__ import annotations

import statistics
from typing import Any

from rotationout.experiments.results import read_records
from rotationout.recipes import cifar100
from rotationout.recipes.search import BEST, SEARCH, STRONG
from rotationout.report import search, shift, table1, verdicts
from rotationout.report.cells import by_row, holm, mean_lead, p_value, shown_p, signed, spread

from .cells import RESULTS, markdown

__all__ = ["PROTOCOL", "STRUCTURED", "TABLE1", "texts"]

PROTOCOL = "cifar100_resnet110_protocol"
TABLE1 = "cifar100_resnet110_authors"
STRUCTURED = "rotation structured sigma 0.500"
FIRST = (0.9, 0.8)
"""The keep rates of the main comparison of Table 1, at which both noises do best in the paper."""
OWN = {"default": "no ramp", "paper": "no ramp", "authors": "ramp"}
"""Forms of RotationOut, each with the ramp that it comes with."""


def texts() -> dict[str, str]:
    """By name."""
    tables = {"search_table": SEARCH, "strong_table": STRONG}
    return {
        **{name: search.table(read_records(RESULTS, recipe)).markdown() for name, recipe in tables.items()},
        **_protocol(),
        **_table1(),
        **_searched(),
        **_strong(),
    }


def _protocol() -> dict[str, str]:
    records = read_records(RESULTS, PROTOCOL)
    runs: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for record in records:
        runs.setdefault(tuple(record["row"].replace("weight decay ", "").split(", ")), []).append(record)
    means = {row: statistics.fmean(run["last10_top1"] for run in found) for row, found in runs.items()}
    rows = []
    for row in sorted(means, key=lambda row: -means[row]):
        points = [spread([run[key] for run in runs[row]]) for key in ("last10_top1", "best_top1")]
        rows.append([*row, str(len(runs[row])), *points])
    ramp = {row: means[row] - means[row[0], "no ramp", row[2]] for row in sorted(means) if row[1] == "ramp"}
    decay = {row: means[row] - means[row[0], row[1], "1e-4"] for row in means if row[2] == "5e-4"}
    effects = {form: ", ".join(signed(ramp[row]) for row in ramp if row[0] == form) for form, _, _ in ramp}
    own = {form: means[form, ramp, "1e-4"] for form, ramp in OWN.items()}
    first = records[0]["config"]
    return {
        "protocol_table": markdown(["preset", "ramp", "weight decay", "n", "last 10 epochs, %", "best epoch, %"], rows),
        "protocol_count": str(len(records)),
        "protocol_steps": f"{first['steps']:,}",
        "protocol_held_out": f"{first['held_out']:,}",
        "protocol_ramp": f"{max(record['config']['ramp'] for record in records):,}",
        "protocol_ramp_effects": "; ".join(f"{form} {two}" for form, two in effects.items()),
        "protocol_decay_effects": f"{min(decay.values()):.2f} to {max(decay.values()):.2f}",
        "protocol_p": f"{first['p']:g}",
        **{f"protocol_{form}": f"{points:.2f}" for form, points in own.items()},
        "protocol_behind": " and ".join(f"{own['default'] - own[form]:.2f}" for form in ("paper", "authors")),
        "protocol_spread": f"{max(means.values()) - min(means.values()):.2f}",
    }


def _table1() -> dict[str, str]:
    """What Table 1 has beside its numbers: how RotationOut did, and what co-adaptation its networks have."""
    records = read_records(RESULTS, TABLE1)
    rows = by_row(records)
    losses = {row: statistics.fmean(run["train_loss"][-1] for run in runs) for row, runs in rows.items()}
    points = {row: [run["last10_top1"] for run in runs] for row, runs in rows.items()}
    lead, _ = table1.rivals_lead(records, FIRST)
    decays = {record["weight_decay"] for record in records}
    return {
        "table1_decay": ", ".join(f"{decay:g}" for decay in decays),
        "table1_lead": f"{lead.mean:.2f}",
        "table1_interval": f"{lead.low:.2f} to {lead.high:.2f}",
        "table1_paper_lead": f"{statistics.fmean(_printed_leads()):.2f}",
        "table1_p": shown_p(lead.p),
        "table1_losses": ", ".join(f"{loss:.2f} ({row})" for row, loss in losses.items()),
        **_uncentred(points),
        **_structured(points),
        "table1_corrected": _corrected(points),
        "table1_loss_rotation": f"{losses['rotation default sigma 0.333']:.3f}",
        "table1_loss_dropout": f"{losses['dropout keep 0.8']:.3f}",
        "table1_coadaptation_table": shift.coadaptation_table(records).markdown(),
        "table1_coadaptation_compared": shift.compared_coadaptation(records, table1.RIVALS),
    }


def _corrected(points: dict[str, list[float]]) -> str:
    """What of Table 1 is significant if all its comparisons are counted."""
    rotations = {"dropout keep 0.9": "rotation default sigma 0.333", "dropout keep 0.8": "rotation default sigma 0.500"}
    others = ("rotation uncentred sigma 0.500", STRUCTURED)
    pairs = [(row, "none") for row in points if row != "none"]
    pairs += [(rotation, dropout) for dropout, rotation in rotations.items()]
    pairs += [("rotation default sigma 0.333", "dropout keep 0.8")]  # of about the same training loss
    pairs += [(form, against) for form in others for against in ("rotation default sigma 0.500", "dropout keep 0.8")]
    adjusted = holm([p_value(points[one], points[other]) for one, other in pairs])
    left = [pair for pair, p in zip(pairs, adjusted, strict=True) if p < verdicts.LEVEL]
    over_none = sum(other == "none" for _, other in left)
    more = len(left) - over_none
    return (
        f"All p-values here are uncorrected. Corrected by Holm's method for the {len(pairs)} comparisons of single "
        f"rows, {over_none} of {len(points) - 1} noises are significantly ahead of none, and {more or 'none'} of the "
        f"other {len(pairs) - len(points) + 1} comparisons {'is' if more == 1 else 'are'} significant. The lead over "
        "both strengths is one comparison more."
    )


def _uncentred(points: dict[str, list[float]]) -> dict[str, str]:
    """What RotationOut reaches about the origin, and the default form beside the Dropout that fits as closely."""
    origin = points["rotation uncentred sigma 0.500"]
    others = {"default": "rotation default sigma 0.500", "dropout": "dropout keep 0.8", "none": "none"}
    over = {name: mean_lead([(origin, points[row])]) for name, row in others.items()}
    fitting = mean_lead([(points["rotation default sigma 0.333"], points["dropout keep 0.8"])])
    return {
        "table1_uncentred_default": f"{-over['default'].mean:.2f}",
        "table1_uncentred_default_p": shown_p(over["default"].p),
        "table1_uncentred_dropout": f"{-over['dropout'].mean:.2f}",
        "table1_uncentred_interval": f"{signed(over['dropout'].low)} to {signed(over['dropout'].high)}",
        "table1_uncentred_none": f"{over['none'].mean:.2f}",
        "table1_lead_by_loss": f"{fitting.mean:.2f}",
        "table1_lead_by_loss_p": shown_p(fitting.p),
    }


def _structured(points: dict[str, list[float]]) -> dict[str, str]:
    """What structured pairings reach beside permutations, and beside Dropout."""
    permuted = mean_lead([(points[STRUCTURED], points["rotation default sigma 0.500"])])
    dropout = mean_lead([(points[STRUCTURED], points["dropout keep 0.8"])])
    return {
        "table1_structured": signed(permuted.mean),
        "table1_structured_interval": f"{signed(permuted.low)} to {signed(permuted.high)}",
        "table1_structured_p": shown_p(permuted.p),
        "table1_structured_dropout": f"{dropout.mean:.2f}",
        "table1_structured_dropout_p": shown_p(dropout.p),
    }


def _printed_leads() -> list[float]:
    """How far RotationOut is above Dropout in the paper's table, at the `FIRST` keep rates."""
    paper = {place: float(average.split()[0]) for place, (average, _) in table1.PAPER["resnet110"].items()}
    return [paper[f"rotation {cifar100.SIGMA[keep]}"] - paper[f"dropout {keep}"] for keep in FIRST]


def _strong() -> dict[str, str]:
    """Whole runs at stronger weight decay: the lead over Dropout, here and in Table 1, and what weight decay adds."""
    dropout, rotation = BEST
    weak, records = (read_records(RESULTS, recipe) for recipe in (TABLE1, STRONG))
    less, more = (
        {row: [run["last10_top1"] for run in runs] for row, runs in by_row(r).items()} for r in (weak, records)
    )
    theirs = {"none": "none", dropout: dropout, rotation: rotation.replace("rotation", "rotation default")}
    lead = mean_lead([(more[rotation], more[dropout])])
    half = mean_lead([(more[rotation], more[dropout]), (less[dropout], less[theirs[rotation]])])  # of the change
    added = [f"{mean_lead([(more[row], less[other])]).mean:.2f}" for row, other in theirs.items()]
    return {
        "strong_lead": f"{lead.mean:.2f}",
        "strong_interval": f"{lead.low:.2f} to {lead.high:.2f}",
        "strong_p": shown_p(lead.p),
        "strong_change": signed(2 * half.mean),
        "strong_change_interval": f"{signed(2 * half.low)} to {signed(2 * half.high)}",
        "table1_lead_weak": f"{mean_lead([(less[theirs[rotation]], less[dropout])]).mean:.2f}",
        **dict(zip(("strong_decay_none", "strong_decay_dropout", "strong_decay_rotation"), added, strict=True)),
        "strong_coadaptation_table": shift.coadaptation_table(records).markdown(),
        "strong_coadaptation_compared": shift.compared_coadaptation(records, {rotation: dropout}),
    }


def _searched() -> dict[str, str]:
    """How far the best rows of the search are above no noise, and the default above RotationOut without centring.

    The table of protocols has the default too, with the same config: ``search_again`` is the difference of these runs.
    """
    rows = by_row([*read_records(RESULTS, SEARCH), *read_records(RESULTS, PROTOCOL)])
    points = {row: statistics.fmean(run["last10_top1"] for run in runs) for row, runs in rows.items()}
    dropout, rotation = (f"{points[row] - points['none']:.2f}" for row in BEST)
    centred, origin = points["rotation sigma 0.500"], points["rotation sigma 0.500, not centred"]
    kept = {row: row.removesuffix(", zeros stay zero") for row in points if row.endswith(", zeros stay zero")}
    zeros = " and ".join(signed(points[row] - points[default]) for row, default in kept.items())
    forms = [row.partition(", ")[2] for row in rows if row.startswith("rotation") and "," in row]
    compared = {"default": "rotation sigma 0.500", "either": "rotation sigma 0.500, to either side"}
    losses = {key: rows[row][0]["train_loss"][-1] for key, row in {**compared, "dropout": "dropout keep 0.8"}.items()}
    return {
        **{f"search_loss_{key}": f"{loss:.2f}" for key, loss in losses.items()},
        "search_level": f"{search.LEVEL:g}",
        "search_zeros": zeros,
        "search_dropouts": str(sum(row.startswith("dropout") for row in rows)),
        "search_rotations": str(sum(row.startswith("rotation") for row in rows)),
        "search_forms": str(len(set(forms))),
        "search_dropout": dropout,
        "search_rotation": rotation,
        "search_center": f"{centred - origin:.2f}",
        "search_either": f"{centred - points[compared['either']]:.2f}",
        "search_again": f"{abs(centred - points['default, no ramp, weight decay 5e-4']):.2f}",
    }
