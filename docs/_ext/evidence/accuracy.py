"""What training runs reached: handwritten digits, small batches, and all tables; of ResNet110 `resnet110` says more."""

from __future__ import annotations

import statistics

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
from rotationout.recipes import TABLES
from rotationout.recipes.search import SEARCH, STRONG
from rotationout.report import digits, forms, ghost, reproduced, shift, sizes, small_batch, verdicts
from rotationout.report.cells import by_row, mean_lead, shown_p, signed
from rotationout.report.modules import module_of

from .cells import RESULTS, markdown
from .resnet110 import PROTOCOL
from .tokens import RECIPE as TOKENS
from .vectors import IMAGES

__all__ = ["texts"]

BEST_ABOUT_ORIGIN = 0.2
"""The p at which RotationOut is best on maps of digits, both about the origin and about the mean."""
ELSEWHERE = (PROTOCOL, shift.RECIPE, ghost.RECIPE, SEARCH, STRONG, *IMAGES.values(), TOKENS)
"""Recipes on CIFAR-100 that are no rows of Table 1."""


def texts() -> dict[str, str]:
    """By name."""
    return {
        **_digits(),
        **_forms(),
        **_sizes(),
        **_small_batch(),
        **_tables(),
        **_ghosts(),
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
