"""What training runs reached: handwritten digits, small batches, and the paper's tables."""

from __future__ import annotations

import statistics
from typing import Any

from scipy.stats import t

from rotationout.experiments.forms import (
    CENTRED,
    DEFAULT,
    FORMS,
    ISOTROPIC,
    NETWORKS,
    ORIGIN,
    ORIGIN_SYMMETRIC,
    PLANE,
    WEAKER,
    FormsStudy,
)
from rotationout.experiments.records import Study
from rotationout.experiments.results import read_records
from rotationout.experiments.small_batch import SmallBatchStudy
from rotationout.experiments.tasks import TASKS
from rotationout.recipes import TABLES, cifar100
from rotationout.recipes.search import BEST, SEARCH, STRONG
from rotationout.report import digits, forms, ghost, reproduced, search, shift, sizes, small_batch, table1, verdicts
from rotationout.report.cells import by_row, holm, mean_lead, p_value, shown_p, signed, spread
from rotationout.report.modules import module_of

from .cells import RESULTS, markdown
from .tokens import RECIPE as TOKENS
from .vectors import IMAGES

__all__ = ["PROTOCOL", "STRUCTURED", "TABLE1", "texts"]

PROTOCOL = "cifar100_resnet110_protocol"
TABLE1 = "cifar100_resnet110_authors"
STRUCTURED = "rotation structured sigma 0.500"
FIRST = (0.9, 0.8)
"""The keep rates of its main comparison, at which both noises do best in the paper."""
BEST_ABOUT_ORIGIN = 0.2
"""The p at which RotationOut is best on maps of digits, both about the origin and about the mean."""
OWN = {"default": "no ramp", "paper": "no ramp", "authors": "ramp"}
"""Forms of RotationOut, each with the ramp that it comes with."""
ELSEWHERE = (PROTOCOL, shift.RECIPE, ghost.RECIPE, SEARCH, STRONG, *IMAGES.values(), TOKENS)
"""Recipes on CIFAR-100 that are no rows of Table 1."""


def texts() -> dict[str, str]:
    """By name."""
    return {
        **_digits(),
        **_forms(),
        **_sizes(),
        **_small_batch(),
        **_protocol(),
        **_table1(),
        **_tables(),
        **_studies(),
        **_blocks(),
        **_speech(),
    }


def _digits() -> dict[str, str]:
    study = Study.load(RESULTS / "digits.json")
    table = digits.strength_table(study)
    others = [p for p in study.rates if p != study.p]
    ours, theirs = (statistics.median(run.seconds for run in study.select(n)) for n in ("rotationout", "dropout"))
    return {
        "digits_strengths": markdown(table.header, table.rows),
        "digits_none": digits.percent([run.test_accuracy for run in study.select("none")]),
        "digits_runs": str(len(study.select("dropout"))),
        "digits_train": str(study.settings["train_examples"]),
        "digits_test": f"{study.settings['test_examples']:,}",
        "digits_p": f"{study.p:g}",
        "digits_difference": digits.difference(study),
        "digits_other_p": ", ".join(f"{p:g}" for p in others),
        "digits_seconds": f"{sum(run.seconds for run in study.records):.0f}",
        "digits_times": f"{ours / theirs:.1f}",
        "digits_batch": f"{study.settings['batch']} × {study.settings['width']}",
        "digits_count": str(len(study.records)),
    }


def _forms() -> dict[str, str]:
    study = FormsStudy.load(RESULTS / "forms.json")
    zeros = "zeros stay zero"
    gaps = {
        "forms_over_none": ("default", "no noise"),
        "forms_over_dropout2d": ("default", "Dropout2d"),
        "forms_dropout_same_centre": (CENTRED, "default"),
        "forms_origin_symmetric": (ORIGIN_SYMMETRIC, ORIGIN),
        "forms_best_origin": (f"{ORIGIN}, p = {BEST_ABOUT_ORIGIN:g}", f"p = {BEST_ABOUT_ORIGIN:g}"),
        "forms_origin_pairings": (f"{ORIGIN}, a pairing per position", ORIGIN),
        "forms_pairings": ("a pairing per position", DEFAULT),
        "forms_plane_maps": (f"symmetric angles, {PLANE}", "symmetric angles"),
    }
    found = {name: signed(*study.paired_difference("maps", *pair), scale=100) for name, pair in gaps.items()}
    vectors = {
        "forms_plane_vectors": (PLANE, DEFAULT),
        "forms_plane_dropout": (PLANE, "Dropout"),
        "forms_plane_isotropic": (PLANE, ISOTROPIC),
        "forms_isotropic_dropout": (ISOTROPIC, "Dropout"),
        "forms_dropout_centre_vectors": (CENTRED, "Dropout"),
    }
    found |= {name: signed(*study.paired_difference("vectors", *pair), scale=100) for name, pair in vectors.items()}
    for network in NETWORKS:
        pairs = {
            "zeros": (zeros, DEFAULT),
            "dropout": ("Dropout", DEFAULT),
            "dropout_zeros": ("Dropout", zeros),
            "isotropic": (ISOTROPIC, DEFAULT),
        }
        for name, pair in pairs.items():
            found[f"forms_{name}_{network}"] = signed(*study.paired_difference(network, *pair), scale=100)
        errors = (study.paired_difference(network, form)[1] for form in FORMS[network] if form != DEFAULT)
        found[f"forms_unclear_{network}"] = f"{100 * forms.CLEAR * max(errors):.2f}"
    return {
        **found,
        "forms_centre_table": _centres(study),
        "forms_seeds": str(study.settings["seeds"]),
        "forms_p": f"{study.settings['p']:g}",
    }


def _sizes() -> dict[str, str]:
    """Dropout and RotationOut on digits in other settings."""
    study = FormsStudy.load(RESULTS / "sizes.json")
    return {"sizes_table": sizes.table(study).markdown(), "sizes_verdict": sizes.verdict(study)}


def _centres(study: FormsStudy) -> str:
    """RotationOut and Dropout on maps, about the mean and about the origin, at every strength."""
    pairs = {"RotationOut": (DEFAULT, ORIGIN), "Dropout": (CENTRED, "Dropout")}
    rows = []
    for p in (*WEAKER[::-1], study.settings["p"]):
        weaker = "" if p == study.settings["p"] else f"p = {p:g}"
        row = [f"{p:g}"]
        for pair in pairs.values():
            mean, origin = (", ".join(filter(None, [form, weaker])).replace("default, ", "") for form in pair)
            row += [digits.percent(study.find("maps", form).test_accuracy) for form in (mean, origin)]
            row.append(signed(*study.paired_difference("maps", mean, origin), scale=100))
        rows.append(row)
    header = [
        f"{noise}, {what}" for noise in pairs for what in ("about the mean, %", "about the origin, %", "difference")
    ]
    return markdown(["p", *header], rows)


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


def _small_batch() -> dict[str, str]:
    study = SmallBatchStudy.load(RESULTS / "small_batch.json")
    verdicts = [
        small_batch.verdict(study, norm, m) for norm in ("poly", "cross") for m in ("test_accuracy", "test_loss")
    ]
    return {
        "small_batch_table": small_batch.table(study).markdown(),
        "small_batch_verdicts": "\n".join(f"- {verdict}" for verdict in verdicts),
        "small_batch_seeds": str(study.settings["seeds"]),
        "small_batch_train": f"{study.settings['train_examples']:,}",
        "small_batch_test": f"{study.settings['test_examples']:,}",
    }


def _tables() -> dict[str, str]:
    """The paper's tables beside what is recorded of each, or a sentence that nothing is."""
    found: dict[str, list[str]] = {task.report: [] for task in TASKS.values()}  # table1 to table4
    for name, configs in TABLES.items():
        records = [] if name in ELSEWHERE else read_records(RESULTS, name)
        if records:
            report = module_of(name)
            said = [f"`{name}`:", report.table(records).markdown(), *report.prose(records), report.verdict(records)]
            found[TASKS[type(configs()[0])].report].append("\n\n".join(said))
    texts = {key: "\n\n".join(parts) or _nothing(key.replace("table", "Table ")) for key, parts in found.items()}
    whole = reproduced.table(RESULTS)
    return {**texts, "reproduced_table": whole.markdown(), "reproduced_meaning": verdicts.MEANING}


def _nothing(what: str) -> str:
    return f"*No run of {what} is recorded yet.*"


def _studies() -> dict[str, str]:
    """Tables of other trained networks: stronger weight decay, and ghost batches."""
    found = {}
    for key, recipe in {"search_table": SEARCH, "strong_table": STRONG}.items():
        records = read_records(RESULTS, recipe)
        found[key] = search.table(records).markdown() if records else _nothing(f"`{recipe}`")
    return {**found, **_searched(), **_strong(), **_ghosts()}


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


def _ghosts() -> dict[str, str]:
    """All that came out with ghost batches, and of it what is missing and what came out of CrossNorm."""
    records = read_records(RESULTS, ghost.RECIPE)
    said = ghost.findings(records)
    findings = "\n".join(f"- {line}" for line in said)
    means = {key: statistics.fmean(values) for key, values in ghost.accuracies(records).items()}
    measured = [
        abs(mean - means["batch", kind, size]) for (mode, kind, size), mean in means.items() if mode == "poly_measured"
    ]
    return {
        "ghost_lost": f"{means['batch', 'running', 128] - means['batch', 'running', 4]:.1f}",
        "ghost_measured": f"{max(measured):.1f}",
        "ghost_batches": "\n\n".join([ghost.table(records).markdown(), *ghost.prose(records), findings]),
        "ghost_first": " ".join(said[: len(ghost.trouble(records)) + 1]),
    }


def _blocks() -> dict[str, str]:
    """ResNet-50: how far RotationOut in blocks is ahead of it everywhere, and noises are from none on Imagewoof."""
    plain = [run for run in read_records(RESULTS, "imagewoof") if run["row"] == "none"]
    found = {"imagewoof_loss": f"{statistics.fmean(run['train_loss'][-1] for run in plain):.2f}"}
    for recipe, score in {"bccd": "ap", "imagewoof": "last10_top1"}.items():
        scores = {row: [run[score] for run in runs] for row, runs in by_row(read_records(RESULTS, recipe)).items()}
        lead = mean_lead([(scores["rotation block"], scores["rotation"])])
        found |= {f"blocks_{recipe}": f"{lead.mean:.1f}", f"blocks_{recipe}_p": shown_p(lead.p)}
    named = {"rotation": "rotation", "dropout": "dropout keep 0.7", "spatial": "spatial dropout keep 0.9"}
    behind = {key: mean_lead([(scores[row], scores["none"])]) for key, row in named.items()}
    found |= {f"imagewoof_{key}": f"{abs(lead.mean):.1f}" for key, lead in behind.items()}
    found["imagewoof_spatial_p"] = shown_p(behind["spatial"].p)
    return found


def _speech() -> dict[str, str]:
    """How RotationOut did on AN4, and how large a difference its runs could have shown."""
    records = read_records(RESULTS, "an4")
    rows = [[run["edit_distance"] for run in runs] for runs in by_row(records).values()]
    runs = min(map(len, rows))
    deviation = statistics.fmean(map(statistics.variance, rows)) ** 0.5
    losses = [record["train_loss"][-1] for record in records]
    return {
        "speech_runs": str(runs),
        "speech_seen": f"{t.ppf(1 - verdicts.LEVEL / 2, 2 * runs - 2) * deviation * (2 / runs) ** 0.5:.2f}",
        "speech_train": f"{records[0]['train_utterances']:,}",
        "speech_losses": f"{min(losses):.3f} to {max(losses):.3f}",
    }
