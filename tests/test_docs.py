"""The documentation: its code runs, its commands exist, its site builds without a warning and needs no network."""

import contextlib
import doctest
import importlib
import inspect
import io
import json
import math
import pkgutil
import re
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.records import RESULTS
from scipy.stats import t

import rotationout as ro
from rotationout.cli import main
from rotationout.cli.app import COMMANDS
from rotationout.experiments import digits
from rotationout.experiments.forms import FormsStudy
from rotationout.experiments.records import Study, mean_sd
from rotationout.experiments.results import read_records
from rotationout.experiments.small_batch import SmallBatchStudy
from rotationout.kernels import small
from rotationout.registry import KINDS
from rotationout.report.cells import CLEAR, by_row, p_value
from rotationout.report.small_batch import verdict
from rotationout.report.verdicts import LEVEL

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
MODULES = re.findall(r"\{public-names\} (\S+)", "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES))


def blocks(page: str) -> Iterator[tuple[int, str, str]]:
    """Line, language and code of every block of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for match in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", text, flags=re.S | re.M):
        yield text.count("\n", 0, match.start()) + 1, match[2], textwrap.dedent(match[3])


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    """A page adds a noise of its own; and its tensors are small, so that threads would only wait for each other."""
    kept, threads = dict(KINDS), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    KINDS.clear()
    KINDS.update(kept)


def test_pages_use_what_the_package_has_without_further_imports() -> None:
    """Code that runs here may find a module that another test has imported."""
    for page in PAGES:
        code = "".join(code for _, language, code in blocks(page) if language in ("python", "pycon"))
        names = set(re.findall(r"\bro\.(\w+)", code))
        assert names <= set(ro.__all__), page


@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_in_order(page: str) -> None:
    names: dict[str, Any] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for line, language, code in blocks(page):
        if language == "python":
            # As many lines before it as in the page: a traceback then names the right one.
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * line + code, str(DOCS / page), "exec"), names)
        elif language == "pycon":
            example = doctest.DocTestParser().get_doctest(code, names, page, str(DOCS / page), line)
            said = io.StringIO()
            runner.run(example, out=said.write, clear_globs=False)
            names.update(example.globs)
            assert not said.getvalue(), said.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_with_placeholders_says_what_they_are_to_those_who_read_its_source(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    told = "% You are reading the source of this page." in text
    assert told == ("{{" in text), "MyST leaves such a line out of the site"


def test_every_number_that_is_made_is_shown_and_every_one_shown_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    made = importlib.import_module("evidence").substitutions()
    shown = {name for page in PAGES for name in re.findall(r"{{ (\w+) }}", (DOCS / page).read_text(encoding="utf-8"))}
    assert shown == made.keys()
    assert not [name for name, text in made.items() if re.search(r"\b(nan|inf)\b", text)], "too few runs"
    shown_there = re.findall(r"^`(\w+)`:$", made["table1"], flags=re.M)
    assert shown_there
    assert all(name.endswith(("_paper", "_authors")) for name in shown_there), "rows of Table 1 alone"
    costs = re.findall(r"^\| `(\w+)` .* (\d+) \|$", made["cost_table"], flags=re.M)
    ran = {name: read_records(ROOT / "results", name) for name, count in costs if int(count)}
    assert len(costs) > len(ran) > 5
    assert all(run["device"].startswith("NVIDIA") for runs in ran.values() for run in runs), "minutes of a GPU"


def test_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    used = {
        (match[1], tuple(re.findall(r"--\w+", match[2])))
        for page in PAGES
        for _, language, code in blocks(page)
        if language == "sh"
        for match in re.finditer(r"^rotationout (\w+)(.*)", code.replace("\\\n", ""), flags=re.M)
    }
    assert used
    for command, options in used:
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(option in shown for option in options), (command, options)
    texts = [(DOCS / page).read_text(encoding="utf-8") for page in PAGES]
    assert {name for text in texts for name in re.findall(r"-m (rotationout[\w.]*)", text)} == {"rotationout.cli"}
    assert {name for text in texts for name in re.findall(r"`rotationout ([a-z]\w*)", text)} <= COMMANDS.keys()


def test_messages_that_pages_help_with_are_raised() -> None:
    """The table of from_dropout.md is found by the words of an error."""
    page = (DOCS / "from_dropout.md").read_text(encoding="utf-8").partition("## Troubleshooting")[2]
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    cases: list[tuple[torch.nn.Module, Any]] = [
        (ro.RotationOut2d(0.2), torch.ones(1, 8, 1, 1)),
        (ro.RotationOut(0.2), torch.ones(4, 1)),
        (ro.RotationOut(0.2), packed),
    ]
    quoted = re.findall(r"^\| `([^`]+)`", page, flags=re.M)
    for words, (layer, given) in zip(quoted, cases, strict=True):
        parts = ".*".join(re.escape(part.strip(" ,")) for part in words.split("…"))
        with pytest.raises((TypeError, ValueError), match=parts):
            layer(given)


def test_what_commands_print_is_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A console after Python code, which is a file of the user's: the same words, and nearly the same numbers."""
    before, shown = "", 0
    for page in PAGES:
        for _, language, code in blocks(page):
            if language == "console":
                command, _, expected = code.partition("\n")
                program, *words = command.removeprefix("$ ").split()
                module = next(word for word in words if ":" in word).partition(":")[0]
                (tmp_path / f"{module}.py").write_text(before, encoding="utf-8")
                monkeypatch.chdir(tmp_path)
                monkeypatch.syspath_prepend(str(tmp_path))
                assert program == "rotationout"
                assert main([*words, *(["--device", "cpu"] if words[0] == "diagnose" else [])]) == 0
                sys.modules.pop(module)  # other tests have a module of that name
                printed = capsys.readouterr().out
                found, wanted = (re.sub("([*;])", r" \1", text).split() for text in (printed, expected))
                assert len(found) == len(wanted)
                for one, other in zip(found, wanted, strict=True):
                    number = re.fullmatch(r"\d+(\.\d+)?", one)
                    assert float(other) == pytest.approx(float(one), rel=0.03) if number else one == other, expected
                shown += 1
            before = code
    assert shown


def test_what_pages_say_in_words_is_so() -> None:
    """Numbers are filled in from records; these are the sentences about them."""
    study = Study.load(ROOT / "results" / "digits.json")
    accuracy = {
        noise: [mean_sd([run.test_accuracy for run in study.select(noise, p)])[0] for p in study.rates]
        for noise in ("none", "dropout", "rotationout")
    }
    # choosing.md: Dropout is ahead at every strength, and the strength hardly matters. negative_results.md: and
    # RotationOut is level with no noise. reproducing.md: how many runs the demonstration has.
    assert all(d > r for d, r in zip(accuracy["dropout"], accuracy["rotationout"], strict=True))
    assert all(max(values) - min(values) < 0.005 for values in accuracy.values())
    assert abs(accuracy["rotationout"][-1] - accuracy["none"][0]) < 0.002
    assert len(list(digits.plan(digits.P, digits.SEEDS))) == 45
    assert len(study.select("dropout")) == 20

    # negative_results.md: in detection no noise is ahead of none; rotations without blocks are behind, and noise in
    # blocks is level, in three runs a row.
    scores = {row: [run["ap"] for run in runs] for row, runs in by_row(read_records(ROOT / "results", "bccd")).items()}
    none, rotation = scores["none"], scores["rotation"]
    p_values = {row: p_value(values, none) for row, values in scores.items() if row != "none"}
    assert {row for row, p in p_values.items() if p < LEVEL} == {"rotation"}
    dropout = scores["dropout keep 0.9"]
    assert sorted(value > max(rotation) for value in dropout) == [False, True, True]
    assert max(rotation) < min(
        value for values in scores.values() for value in values if values not in (rotation, dropout)
    )
    for row in ("rotation block", "dropblock keep 0.9, block 5"):
        assert p_values[row] > 0.5
    assert {len(values) for values in scores.values()} == {3}
    # choosing.md: rotations in blocks are ahead of those everywhere.
    assert p_value(scores["rotation block"], rotation) < LEVEL
    assert min(scores["rotation block"]) > max(rotation)
    # choosing.md and negative_results.md: on Imagewoof no noise is ahead of none, four are behind, and blocks, which
    # are ahead of rotations everywhere, do not differ from it, nor does DropPath.
    images = {
        row: [run["last10_top1"] for run in runs]
        for row, runs in by_row(read_records(ROOT / "results", "imagewoof")).items()
    }
    none, block, everywhere = images["none"], images["rotation block"], images["rotation"]
    assert {len(values) for values in images.values()} == {3}
    assert min(block) > max(everywhere)
    assert p_value(block, everywhere) < LEVEL
    behind = {row for row, values in images.items() if row != "none" and p_value(values, none) < LEVEL}
    assert behind == {"dropout keep 0.7", "cutout", "dropblock keep 0.9", "rotation"}
    smallest = sorted((p_value(values, none), row) for row, values in images.items() if row != "none")
    assert len(smallest) == 7
    corrected = takewhile(lambda found: found[1][0] < LEVEL / (7 - found[0]), enumerate(smallest))  # Holm's
    assert [row for _, (_, row) in corrected] == ["dropout keep 0.7", "cutout"]
    assert all(statistics.fmean(images[row]) < statistics.fmean(none) for row in images if row != "none")
    for row in ("rotation block", "droppath keep 0.9"):
        assert p_value(images[row], none) > 0.5
    # choosing.md: beyond three standard errors in one study of two hundred.
    seeds = FormsStudy.load(ROOT / "results" / "forms.json").settings["seeds"]
    assert 1 / 250 < 2 * t.sf(CLEAR, seeds - 1) < 1 / 150

    # negative_results.md: a ramp brought nothing, nor do other norms at small batch sizes.
    protocol = {run["row"]: run["last10_top1"] for run in read_records(ROOT / "results", "cifar100_resnet110_protocol")}
    ramps = {row: row.replace(", ramp", ", no ramp") for row in protocol if ", ramp" in row}
    assert [protocol[row] < protocol[other] for row, other in ramps.items()].count(True) == 4
    assert len(ramps) == 6
    # choosing.md: which form is first, and more weight decay helps all.
    for decay in ("1e-4", "5e-4"):
        those = {row: value for row, value in protocol.items() if row.endswith(decay)}
        assert max(those, key=lambda row: those[row]) == f"default, no ramp, weight decay {decay}"
    assert all(value > protocol[row.replace("5e-4", "1e-4")] for row, value in protocol.items() if row.endswith("5e-4"))
    # speed.md: which implementation runs on a CPU.
    assert f"up to {small.MOST:,} elements" in (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    norms = SmallBatchStudy.load(ROOT / "results" / "small_batch.json")
    for norm in ("poly", "cross"):
        for measure in ("test_accuracy", "test_loss"):
            assert ": better than BatchNorm in 0 of" in verdict(norms, norm, measure)


def test_what_pages_say_in_words_of_speed_is_so() -> None:
    """The same of sentences about time and memory on a GPU."""
    tensors: dict[str, dict[str, dict[str, Any]]] = {}
    for row in json.loads((RESULTS / "ops_nvidia-h200_torch-2.11.0.json").read_text(encoding="utf-8"))["rows"]:
        tensors.setdefault(row["tensor"], {})[row["noise"]] = row
    for tensor, rows in tensors.items():
        times = {noise: row["captured_us"][0] for noise, row in rows.items()}
        dropout = times["nn.Dropout"]
        assert times["running mean"] < times["batch mean"], tensor  # speed.md
        if "both_us" not in rows["nn.Dropout"]:  # not a large tensor
            continue
        assert times["batch mean"] > dropout, tensor  # negative_results.md: slower than Dropout
        assert times["running mean"] > 0.98 * dropout or "bfloat16" in tensor  # hardly faster in fp32
        structured = times.get("structured per example", times["structured per row"])
        assert abs(times["permutation per batch"] - structured) < 0.03 * dropout  # speed.md: about as fast
        n, *sizes = map(int, re.findall(r"\d+", tensor.partition("(")[2]))
        positions = n * math.prod(sizes[1:])  # speed.md: what is kept for backward, in bytes
        assert rows["permutation per batch"]["bytes_kept"] == 4 * positions + 2 * sizes[0]
        assert rows["structured per row"]["bytes_kept"] == 4 * positions + 2 * positions + 8
        if "structured per example" in rows:
            assert rows["structured per example"]["bytes_kept"] == 4 * positions + 2 * n + 8

    steps: dict[str, dict[str, float]] = {}
    for row in json.loads((RESULTS / "models_nvidia-h200_torch-2.11.0.json").read_text(encoding="utf-8"))["rows"]:
        network = row["network"].split()[0].rstrip(",") + (" compiled" if row["compiled"] else "")
        steps.setdefault(network, {})[row["noise"]] = row["step_ms"][0]
    compiled = steps["block compiled"]  # speed.md: what torch.compile is given is the faster
    assert compiled["default, fused by the compiler"] > compiled["RotationOut (default)"]
    resnet = steps["ResNet-50"]  # speed.md: longer than with Dropout; about as long as with others
    assert resnet["RotationOut (default)"] > 1.003 * resnet["nn.Dropout"]
    assert resnet["RotationOut (default)"] == pytest.approx(resnet["nn.Dropout2d"], rel=0.003)
    assert resnet["un-centred, structured"] == pytest.approx(resnet["nn.Dropout"], rel=0.003)

    for row in json.loads((RESULTS / "centred_nvidia-h200_torch-2.11.0.json").read_text(encoding="utf-8"))["rows"]:
        if row["tensor"].startswith("bfloat16 (256, ") and row["copy_us"] < 100:  # speed.md: maps of ResNet-50
            both = {noise: times["both_us"] for noise, times in row["noises"].items()}
            assert both["no mean"] < both["nn.Dropout"] < both["no mean"] + row["copy_us"] < both["batch mean"]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_example(module: str) -> None:
    """In its docstring; data, which have none, in the page of the reference that has them."""
    package = importlib.import_module(module)
    page = next(page for page in PAGES if f"{{public-names}} {module}\n" in (DOCS / page).read_text(encoding="utf-8"))
    codes = "".join(code for _, language, code in blocks(page) if language == "pycon")
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.ismodule(value):
            continue
        written = inspect.getdoc(value) if callable(value) else None
        shown = ">>>" in written if written else re.search(rf"\b{name}\b", codes)
        assert shown, f"{module}.{name} has no example"


def test_every_public_module_is_in_the_reference() -> None:
    """Packages that users import, and modules that one of them names; what runs and reports experiments is no API."""
    tools = {
        "rotationout.cli",
        "rotationout.experiments",
        "rotationout.kernels",
        "rotationout.recipes",
        "rotationout.report",
    }
    packages = {m.name for m in pkgutil.iter_modules(ro.__path__, "rotationout.") if m.ispkg}
    assert tools <= packages
    named = {
        value.__name__
        for module in MODULES
        for name in importlib.import_module(module).__all__
        if inspect.ismodule(value := getattr(importlib.import_module(module), name))
    }
    assert (packages - tools) | named | {"rotationout"} <= set(MODULES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-E", "-d", f"{out}/doctrees"]
    done = subprocess.run([*call, str(DOCS), f"{out}/html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_the_site_has_every_page_and_needs_nothing_else(site: Path) -> None:
    for page in PAGES:
        html = (site / page).with_suffix(".html").read_text(encoding="utf-8")
        assert str(ROOT) not in html
        loaded = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=\"([^\"]+)\"", html)
        assert not [address for address in loaded if "//" in address], page
        assert not re.search(r"\{\{|\}\}", html), f"{page} has a number that was not filled in"
        assert not re.search(r"No run of (?!Table \d|<code)", html), f"{page} must say of what no run is recorded"


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        known = {name for objects in InventoryFile.load(file, "", "/".join).values() for name in objects}
    documented = {id(_value(name)) for name in known if name.startswith("rotationout.")}
    for module in MODULES:
        package = importlib.import_module(module)
        missing = [name for name in package.__all__ if id(getattr(package, name)) not in documented]
        assert not missing, (module, missing)


def _value(name: str) -> object:
    value: Any = importlib.import_module("rotationout")
    for part in name.split(".")[1:]:
        if not hasattr(value, part) and inspect.ismodule(value):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part, None)
    return value


def test_what_pages_say_of_steps_of_wideresnet_is_so() -> None:
    """reproducing.md: what compiling the whole network saves, also with all algorithms of cuDNN, and a second run."""
    record = json.loads((RESULTS / "wide_nvidia-h200_torch-2.11.0.json").read_text(encoding="utf-8"))
    ms = {(row["way"], row["together"]): statistics.median(row["ms"]) for row in record["steps"]}
    assert {row["row"] for row in record["steps"]} == {"none"}
    for count in (1, 2):
        assert 0.99 < ms["whole", count] / ms["blocks", count] <= 1, "less than one per cent"
        assert 0.975 < ms["whole, all algorithms", count] / ms["blocks", count] < 0.99, "one to two per cent"
    assert ms["blocks", 2] < ms["blocks", 1]
