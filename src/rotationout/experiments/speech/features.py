"""The features of a corpus: computed once and kept in one file, which can be used without the audio and soundfile.

Features are normalised by speaker, as is common in Kaldi: they have mean 0 and variance 1 in each band over all
utterances of a speaker. This removes voice and microphone but not the share of silence in an utterance, as statistics
of a single short utterance would. They are kept in fp16, with a relative error of at most a thousandth.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..problems import Problem, UnusableError, refuse_if_many, report_all
from ..results import check_readable, write_whole
from ..threads import one_thread
from .audio import FEATURES, HOP, SAMPLE_RATE, WINDOW, log_filter_banks, read_audio
from .corpus import Utterance, read_corpus

__all__ = ["Features", "compute", "load", "open_corpus", "save"]

SETTINGS = {"bands": FEATURES, "window": WINDOW, "hop": HOP, "rate": SAMPLE_RATE, "normalised": "speaker", "version": 1}
CHECKS = 2
"""Changes whenever audio is refused that was accepted before: cached features are then computed again."""


@dataclass(frozen=True)
class Features:
    """The features of a corpus, utterance after utterance.

    Attributes:
        frames: the frames of all utterances, (all frames, 40), fp16.
        lengths: number of frames of each utterance, (utterances,), int64.
        names: name of each utterance.
        splits: split of each utterance.
        speakers: speaker of each utterance.
        texts: transcript of each utterance.
        problems: utterances whose audio could not be used.
    """

    frames: Tensor
    lengths: Tensor
    names: list[str]
    splits: list[str]
    speakers: list[str]
    texts: list[str]
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)


def open_corpus(path: Path | str, splits: Sequence[str] | None = None, *, cache: Path | None = None) -> Features:
    """The features of a corpus: read from a file that `save` wrote, or computed from a folder with audio.

    Args:
        path: the file, or the folder (`rotationout.experiments.speech.corpus` describes its layout).
        splits: the splits to read, by default all.
        cache: a folder in which computed features are kept. They are computed again if files of the corpus change.
    """
    source = Path(path)
    if source.is_file():
        return _reported(_with_splits(load(source), splits, source), splits)
    utterances = read_corpus(source, splits)
    kept = None if cache is None else cache / f"{source.resolve().name}-{_key(utterances)}.pt"
    if kept is not None and kept.is_file():
        return _reported(load(kept), splits)
    features = compute(utterances)
    if kept is not None:
        try:
            save(features, kept)
        except (OSError, RuntimeError) as error:  # where nothing can be written, each run computes them
            print(f"the features are not kept in {cache}: {error}", file=sys.stderr)
    return features


def compute(utterances: Sequence[Utterance]) -> Features:
    """Compute the features of all utterances whose audio can be used; report the problems of the others."""
    found: dict[int, Tensor] = {}
    problems: list[Problem] = []
    by_speaker: dict[tuple[str, str], list[int]] = {}
    for index, utterance in enumerate(utterances):
        by_speaker.setdefault((utterance.split, utterance.speaker), []).append(index)
    for indices in by_speaker.values():
        spoken: dict[int, Tensor] = {}
        for index in indices:
            try:
                with one_thread():
                    spoken[index] = _bands(utterances[index])
            except UnusableError as error:
                name = utterances[index].name
                problems.append(Problem(utterances[index].split, name, error.reason, f"{name}: {error}"))
                report_all(problems[-1:])
        found |= _normalised(spoken)
        if sys.stderr.isatty():
            print(f"\rfeatures of {len(found)} of {len(utterances)} utterances", end="", file=sys.stderr, flush=True)
    refuse_if_many(problems, (utterance.split for utterance in utterances), "utterances")
    order = sorted(found)
    kept = [utterances[index] for index in order]
    return Features(
        frames=torch.cat([found[index] for index in order]) if order else torch.empty(0, FEATURES).half(),
        lengths=torch.tensor([len(found[index]) for index in order], dtype=torch.int64),
        names=[u.name for u in kept],
        splits=[u.split for u in kept],
        speakers=[u.speaker for u in kept],
        texts=[u.text for u in kept],
        problems=problems,
    )


def _bands(utterance: Utterance) -> Tensor:
    samples = read_audio(utterance)
    if samples.numel() < WINDOW:
        raise UnusableError(
            "too short", f"{utterance.path} must have at least {WINDOW} samples, one frame, got {samples.numel()}"
        )
    bands = log_filter_banks(samples)
    if not bool(bands.isfinite().all()):  # normalisation would spread this over all of the speaker
        most = float(samples.abs().max())
        raise UnusableError(
            "damaged audio", f"{utterance.path} must have samples of about −1 to 1, got one of ±{most:.3g}"
        )
    return bands


def _normalised(spoken: dict[int, Tensor]) -> dict[int, Tensor]:
    """Normalise the features of one speaker to mean 0 and variance 1 over all frames, in fp16."""
    if not spoken:
        return {}
    frames = torch.cat(list(spoken.values())).double()
    mean, std = frames.mean(0), frames.std(0, correction=0).clamp(min=1e-5)
    return {index: ((bands - mean) / std).half() for index, bands in spoken.items()}


def save(features: Features, path: Path) -> None:
    """Write features to one file, which `load` reads without executing any code in it."""
    content = {"settings": SETTINGS, **vars(features), "problems": [asdict(p) for p in features.problems]}
    write_whole(path, partial(torch.save, content))


def load(path: Path | str) -> Features:
    """Read the features that `save` wrote."""
    check_readable(Path(path))
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        settings = content.pop("settings")
        problems = [Problem(**problem) for problem in content.pop("problems")]
        features = Features(**content, problems=problems)
        sound = int(features.lengths.sum()) == len(features.frames) and len(features.lengths) == len(features)
        if not bool(features.frames.isfinite().all()):
            raise ValueError("it has features that are not finite")
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(
            f"{path} does not hold the features of a corpus, or is damaged; it must be a file that `rotationout "
            "features` wrote, or the folder of a corpus"
        ) from error
    if settings != SETTINGS or not sound:
        raise ValueError(f"{path} holds other features ({settings}); compute them again: `rotationout features`")
    return features


def _reported(features: Features, splits: Sequence[str] | None) -> Features:
    """Report what was left out of these splits when the features were computed, perhaps long ago."""
    report_all(problem for problem in features.problems if splits is None or problem.split in splits)
    return features


def _with_splits(features: Features, splits: Sequence[str] | None, source: Path) -> Features:
    found = sorted(set(features.splits))
    missing = sorted(set(splits or ()) - set(found))
    if missing:
        raise ValueError(f"{source} has no features of {', '.join(missing)}; it has {', '.join(found)}")
    return features


def _key(utterances: Sequence[Utterance]) -> str:
    """A hash of all that the features depend on: the settings, the corpus, and size and time of each of its files."""
    paths = {utterance.path for utterance in utterances}
    stats = {path: path.stat() for path in paths if os.access(path, os.R_OK) and path.is_file()}
    files = [(stats[u.path].st_size, stats[u.path].st_mtime_ns) if u.path in stats else None for u in utterances]
    listed = [[str(value) for value in vars(u).values()] for u in utterances]
    text = json.dumps([SETTINGS, CHECKS, listed, files])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
