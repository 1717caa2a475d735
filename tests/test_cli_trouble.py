"""What the command line says, and its exit code, when it is typed wrong, fails, lacks an extra or is interrupted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import SOURCE, said

from rotationout import cli
from rotationout.experiments import digits

MISTAKES = [
    ("trian", 2, "No such command 'trian'. Did you mean 'train'?"),
    ("rows cifar100_resnet11_paper", 2, "did you mean 'cifar100_resnet110_paper'?"),
    ("train an4", 2, "Missing option '--data'"),
    ("train an4 --data nowhere", 2, "'nowhere' does not exist"),
    ("train an4 --data . --row rotatoin", 2, "did you mean 'rotation'?"),
    ("train an4 --data . --wieght-decay 1", 2, "--weight-decay"),
    ("train an4 --data . --steps many", 2, "'--steps': must be INT, for instance 100, got 'many'"),
    ("train an4 --data . --milestones 1,x", 2, "'--milestones': must be INT,INT,…, for instance 2,3, got '1,x'"),
    ("train an4 --data file", 1, "file does not hold the features of a corpus, or is damaged; it must be a file that"),
    ("train an4 --data . --stages 2", 2, "'--stages': an4 has no such field; its fields are --noise, --p,"),
    ("train an4 --data . --noise rotatoin", 2, "did you mean 'rotation'?"),
    ("train an4 --data . --p 0.3", 2, "'--p': has no effect: the row 'none' has no noise; choose another with --row"),
    ('train an4 --data . --noise dropout --noise-options {"nothing":1}', 2, "noise 'dropout' has no option 'nothing'"),
    ("score bccd --data .", 1, "there are no records of bccd in results yet; if they are elsewhere, give --results"),
    (
        "score bccd_steps=6 --data .",
        1,
        "there are no records of bccd_steps=6 in results yet; if they are elsewhere, give",
    ),
    ("score bccd_steps=6 --data .", 1, "or run rotationout train bccd --data PATH"),
    ("score an4 --data .", 2, "must be one of 'bccd', 'coco', got 'an4'"),
    ("score bccd --data nowhere", 2, "'nowhere' does not exist"),
    ("train an4 --data . --p 2 --steps 3", 2, "'--p': p is a drop probability and must be in [0, 1)"),
    ("train an4 --data . --device tpu", 2, "must be cpu, cuda, cuda:1 and so on, got 'tpu'"),
    ("train an4 --data .", 1, "neither a manifest.tsv nor a folder with a wav.scp"),
    ("train an4 --data . --device meta", 1, "device 'meta' was asked for, but torch cannot compute there"),
    ("sweep an4 --data . --seeds 3-1", 2, "must be numbers and ranges, as in 0,1,2 or 0-4, got '3-1'"),
    ("sweep an4 --data . --seeds 4294967296", 2, "must be at most 4294967295, got '4294967296'"),
    ("sweep an4 --data . --seeds 0-4000000000", 2, "must be at most 10000 in a range, got '0-4000000000'"),
    ("train an4 --data . --seed 4294967296", 2, "'--seed': must be at most 4294967295, got 4294967296"),
    ("train an4 --data . --seed -1", 2, "'--seed': must not be negative, got -1"),
    ("train an4 --data . --steps 2 --weight-decay nan", 2, "'--weight-decay': weight_decay must be a finite number"),
    ("train an4 --data . --steps 2 --learning-rate -1", 2, "'--learning-rate': learning_rate must not be negative"),
    ("sweep an4 --data . --seeds 0 1", 2, "unexpected extra argument"),
    ("sweep an4 --data . --together 0", 2, "Invalid value for '--together'"),
    (
        "table an4",
        1,
        "there are no records of an4 in results yet; if they are elsewhere, give --results, or run rotationout sweep "
        "an4 --data PATH",
    ),
    (
        "table an4 --results changed",
        1,
        "rotationout sweep an4 --data PATH. There are records with changed fields, of an4_steps=2",
    ),
    ("figures variance_shift_trained", 2, "Figures of experiments need their records in results"),
    ("table wsj --out damaged", 1, "none_seed0.json is not the record of a run, or is damaged"),
    ("table an4 --out damaged", 1, "none_seed0.json is not the record of a run: it must have a row, a seed"),
    ("report --out out --results damaged --no-theory", 1, "is not the record of a run"),
    ("report --out out --results lacking --no-theory", 1, "lacking/cifar100_ghost is damaged"),
    ("report --out out --results study --no-theory", 1, "study/digits.json is damaged, or not what its name says"),
    ("report --out out --benchmarks study --no-theory", 1, "study/ops_cpu.json is damaged"),
    ("table cifar100_ghost --results lacking", 1, "lacking/cifar100_ghost is damaged"),
    ("figures batchnorm_study --results study", 1, "study/small_batch.json is damaged"),
    ("report --out file", 1, "file: this must be a folder, not a file"),
    ("demo --p 0", 2, "noises do nothing at p = 0"),
    ("demo --out file", 1, "file: this must be a folder, not a file"),
    ("bench --shape 4", 2, "must be N,D or N,T,D or N,C,H,W, for instance 128,64,32,32, got '4'"),
    ("bench --shape 4,1", 2, "must have at least 2 features, D or C, to pair, got '4,1'"),
    ("bench --dtype int8", 2, "must be one of 'float32'"),
    ("bench --out nowhere/record.json", 2, "there is no folder 'nowhere' to write to"),
    ("bench --p 1", 2, "p is a drop probability"),
    ("bench --p 0", 2, "layers do nothing at p = 0"),
    ("bench --out .", 2, "must be a file, but '.' is a folder"),
    ("bench --shape 99999999999999999999,2", 2, "must not have more elements than a tensor can have"),
    ("bench --shape 1000000000,1000000000", 1, "there is not enough memory: "),
    ("bench --threads 1000000", 2, "Invalid value for '--threads'"),
    ("features . .", 2, "must be a file, but '.' is a folder"),
    ("features . file/new/an4.pt", 1, "file/new: this must be a folder, not a file"),
    ("images . file", 1, "file: this must be a folder, not a file"),
    ("score bccd --data . --results damaged", 1, "none_seed0.json is not the record of a run, or is damaged"),
    ("score bccd --data . --results lacking", 1, "none_seed0.json is damaged, or not what its name says: KeyError"),
    (
        "score coco --data . --results lacking",
        1,
        "none_seed0.detections.json.gz does not hold detections, or is damaged",
    ),
    ("bench --device cuda:99 --shape 4,4", 1, "torch finds no GPU here"),
    ("bench --device cuda:255 --shape 4,4", 1, "torch finds no GPU here"),
    ("bench --device vulkan --shape 4,4", 1, "device 'vulkan' was asked for, but torch cannot compute there"),
]


@pytest.mark.parametrize(("line", "code", "message"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_mistakes_are_told_in_a_line(
    line: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "file").touch()
    for table, text in {"wsj": "{", "an4": "{}", "bccd": "{"}.items():
        (tmp_path / "changed" / f"{table}_steps=2").mkdir(parents=True)
        (tmp_path / "changed" / f"{table}_steps=2" / "none_seed0.json").write_text(text)
        (tmp_path / "damaged" / table).mkdir(parents=True)
        (tmp_path / "damaged" / table / "none_seed0.json").write_text(text)
    (tmp_path / "lacking" / "cifar100_ghost").mkdir(parents=True)
    record = {"row": "GroupNorm", "seed": 0, "config": {}}
    (tmp_path / "lacking" / "cifar100_ghost" / "groupnorm_seed0.json").write_text(json.dumps(record))
    for table, config in {"bccd": {}, "coco": {"test_split": "val"}}.items():
        (tmp_path / "lacking" / table).mkdir()
        (tmp_path / "lacking" / table / "none_seed0.json").write_text(json.dumps({**record, "config": config}))
        (tmp_path / "lacking" / table / "none_seed0.detections.json.gz").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "study").mkdir()
    for name in ("digits", "small_batch", "ops_cpu"):
        (tmp_path / "study" / f"{name}.json").write_text("[]")
    assert cli.main(line.split()) == code
    err = said(capsys)
    assert message in err
    assert "Traceback" not in err


def test_a_bug_has_a_traceback_and_so_has_a_mistake_if_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no records of an4"):
        cli.main(["--debug", "table", "an4"])
    assert cli.main(["table", "an4"]) == 1, "and not the next time"
    monkeypatch.setattr(digits, "run", lambda *_: {}["bug"])
    with pytest.raises(KeyError, match="bug"):
        cli.main(["demo", "--out", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("missing", "line", "advice"),
    [
        ("typer", "rows an4", "the command line needs typer: pip install 'rotationout[cli]'"),
        ("sklearn", "demo", "sklearn is missing: pip install 'rotationout[demo]'"),
        ("matplotlib", "figures --list", "matplotlib is missing: pip install 'rotationout[demo]'"),
    ],
)
def test_a_missing_extra_is_named(missing: str, line: str, advice: str, tmp_path: Path) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from rotationout.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *line.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rotationout: {advice}\n"


def test_an_interrupt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "train", interrupted)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 130
    assert said(capsys).endswith("rotationout: interrupted")  # and would begin anew
