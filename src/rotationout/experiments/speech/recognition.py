"""Training runs of speech recognition: Adam on CTC's loss, and what is heard of the test utterances."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...registry import noise as make_noise
from ...strength import check_choice, check_rate
from .. import problems, processes
from ..config import Config
from ..problems import Problem
from ..run import Run
from .audio import FEATURES
from .batches import Speech, bucketed, select, without_speakers
from .features import open_corpus
from .network import CUDNN_LABELS, Listener, ctc_loss
from .scoring import examples, greedy, score
from .stepped import has_kernels
from .text import ALPHABET

__all__ = ["Corpus", "Recognition", "SpeechConfig", "load_speech"]

CACHE = Path("out/features")
"""Where the features of a corpus are kept."""
PATIENCE = 16
"""After so many batches most of the lengths of a corpus have come, and graphs are captured."""


@dataclass(frozen=True, kw_only=True)
class SpeechConfig(Config):
    """A run of speech recognition. Its noise acts on the output of every layer.

    Args:
        hidden: units of each direction of a layer.
        layers: how many LSTM layers, each in both directions.
        weight_drop: drop probability of the recurrent weights.
        variational: drop whole rows of the recurrent weights instead of single ones.
        alphabet: what transcripts are written in.
        train_split: the split to learn from.
        test_split: the split to test on.
        held_out: learn without so many of the speakers, and test on them instead.
        test_every: epochs from test to test; the last one is always tested.
        lstm: what runs the LSTMs on a GPU: ``"cudnn"``, or ``"stepped"``, kernels of our own that leave room for
            those of other runs, for multiples of 64 units where triton is installed. What is computed is the same but
            for rounding. Elsewhere, and on a CPU, torch does either way.
        precision: ``"fp32"``, in which cuDNN's matrix products are TF32, or ``"fp16"``; torch casts no LSTM of cuDNN's
            to bf16.
    """

    batch: int = 32
    learning_rate: float = 1e-3
    rate_factor: float = 0.2
    weight_decay: float = 1e-5
    precision: str = "fp32"
    hidden: int = 512
    layers: int = 4
    weight_drop: float = 0.0
    variational: bool = False
    alphabet: str = ALPHABET
    train_split: str = "train"
    test_split: str = "test"
    held_out: int = 0
    test_every: int = 5
    lstm: str = field(default="cudnn", compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("precision", self.precision, ("fp16", "fp32"))
        check_choice("lstm", self.lstm, ("cudnn", "stepped"))
        check_rate(self.weight_drop, "weight_drop")
        self._check_least(1, "hidden", "layers", "test_every")
        self._check_least(0, "held_out")
        if len(set(self.alphabet)) < len(self.alphabet) or not self.alphabet:
            raise ValueError(f"alphabet must have every character once, got {self.alphabet!r}")


@dataclass(frozen=True)
class Corpus:
    """What to learn from and what to test on, on the device, and what of it could not be used."""

    train: Speech
    test: Speech
    problems: tuple[Problem, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        every = [*self.problems, *self.train.problems, *self.test.problems]
        return {"train_utterances": len(self.train), "test_utterances": len(self.test), **problems.facts(every)}


def load_speech(config: SpeechConfig, data: Path, device: torch.device) -> Corpus:
    """Read a corpus, or features that were computed before (`rotationout.experiments.speech.features.open_corpus`)."""
    splits = [config.train_split] if config.held_out else [config.train_split, config.test_split]
    features = open_corpus(data, splits, cache=CACHE)
    learnt = select(features, config.train_split)
    if config.held_out:
        learnt, tested = without_speakers(features, learnt, config.held_out)
    else:
        tested = select(features, config.test_split)
    train, test = (Speech(features, chosen, config.alphabet, device) for chosen in (learnt, tested))
    return Corpus(train, test, tuple(problem for problem in features.problems if problem.split in splits))


class Recognition(Run):
    """A run of speech recognition.

    Args:
        config: what to run.
        corpus: what to learn from and to test on, on the device.
        device: where.
    """

    config: SpeechConfig
    captured = False  # as a whole: there is a graph for every length that batches are padded to

    def __init__(self, config: SpeechConfig, corpus: Corpus, device: torch.device) -> None:
        self.corpus = corpus
        train, test = corpus.train, corpus.test
        if len(train) < config.batch:
            raise ValueError(f"there are {len(train)} training utterances, fewer than a batch of {config.batch}")
        super().__init__(config, device)
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)  # where all graphs leave it
        self.order = torch.empty(0, config.batch, dtype=torch.int64)
        self.placed = self.order.to(device)
        self.chosen = torch.zeros(self.share.stop - self.share.start, dtype=torch.int64, device=device)
        self.frames = 0
        self.tested = test.durations.argsort().split(len(self.chosen))
        longest = max(test.padded_length(row) for row in self.tested)
        self.paths = torch.zeros(longest, len(self.chosen), dtype=torch.int64, device=device)
        self.transcripts: list[dict[str, str]] = []
        short = train.labels.size(1) <= CUDNN_LABELS  # else the host looks at lengths, which a graph cannot
        self._find_gradient = self._graphs.by_length(self._add_gradient, captured=short, patience=PATIENCE)
        self._follow = self._graphs.by_length(self._use_gradient)
        self._hear = self._graphs.by_length(self._find_paths)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of the training utterances; what is left over waits for another epoch."""
        return len(self.corpus.train) // self.config.batch

    @property
    def result(self) -> dict[str, float]:
        """The last test: mean edit distance of an utterance, and the character error rate in per cent."""
        return {"edit_distance": self.curves["distance_curve"][-1], "cer": self.curves["cer_curve"][-1]}

    @property
    def facts(self) -> dict[str, Any]:
        """What was learnt from and tested on, what was left out of it, and a few transcripts."""
        return {**self.corpus.facts, "transcripts": self.transcripts}

    @property
    def status(self) -> str:
        """The last test."""
        return f"CER {self.curves['cer_curve'][-1]:.1f} %" if self.curves else ""

    @property
    def summary(self) -> str:
        """The last test, in a line."""
        result = self.result
        return f"edit distance {result['edit_distance']:.2f}, CER {result['cer']:.2f} %"

    def compile(self) -> None:
        """There is nothing to compile: the LSTMs are nearly all of the work."""
        raise ValueError(
            "compile: speech recognition runs in kernels for LSTMs, which torch.compile leaves as they are"
        )

    def build_network(self) -> nn.Module:
        """The bidirectional LSTM, with its noises."""
        config = self.config
        return Listener(
            FEATURES,
            config.hidden,
            config.layers,
            len(config.alphabet) + 1,
            noise=lambda: make_noise(config.noise, config.p, **config.noise_options),
            weight_drop=config.weight_drop,
            variational=config.variational,
            stepped=config.lstm == "stepped" and has_kernels(self.device, config.hidden),
        )

    def build_optimizer(self) -> torch.optim.Optimizer:
        """Adam."""
        decay, on_gpu = self.config.weight_decay, self.device.type == "cuda"
        return torch.optim.Adam(self.network.parameters(), self.rate, weight_decay=decay, fused=True, capturable=on_gpu)

    def begin_epoch(self) -> None:
        """New batches."""
        self.order = bucketed(self.corpus.train.durations, self.config.batch, self.shuffler)
        self.placed = self.order.to(self.device)

    def take_batch(self, place: int) -> None:
        """Which utterances are next, and how long they will be."""
        self.frames = self.corpus.train.padded_length(self.order[place])
        self.chosen.copy_(self.placed[place, self.share])

    def batch_loss(self) -> Tensor:
        """CTC's loss of the chosen utterances."""
        batch = self.corpus.train.batch(self.chosen, self.frames)
        scores = self.network(batch.features, batch.lengths)
        return ctc_loss(scores, batch.lengths, batch.labels, batch.sizes)

    def test(self) -> dict[str, float]:
        """How well the test utterances are heard, if it is their turn; every process listens to some of them."""
        if len(self.losses) % self.config.test_every and not self.finished:
            return {}
        test = self.corpus.test
        found = {index: text for part in processes.gather(self._listen()) for index, text in part.items()}
        heard = [found[index] for index in range(len(test))]
        self.transcripts = examples(heard, test.texts, test.names)
        scores = score(heard, test.texts)
        return {"distance_curve": scores["distance"], "cer_curve": scores["cer"]}

    def _listen(self) -> dict[int, str]:
        """What is heard of this process's part of the test utterances, by their numbers."""
        test = self.corpus.test
        self.network.eval()
        rows = self.tested[processes.rank() :: processes.size()]
        found = []
        for row in rows:
            frames = test.padded_length(row)
            repeats = -(-len(self.chosen) // len(row))
            self.chosen.copy_(row.repeat(repeats)[: len(self.chosen)])  # the last batch is as large as the others
            self._hear(frames)
            found.append(self.paths[:frames, : len(row)].clone())
        heard: dict[int, str] = {}
        for row, paths in zip(rows, found, strict=True):
            texts = greedy(paths.cpu(), test.durations[row].tolist(), test.alphabet)
            heard.update(zip(row.tolist(), texts, strict=True))
        return heard

    def state(self) -> dict[str, Any]:
        """With the batches of this epoch and the last transcripts."""
        return {**super().state(), "order": self.order, "transcripts": self.transcripts}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        super().restore(state)
        self.order, self.transcripts = state["order"], state["transcripts"]
        self.placed = self.order.to(self.device)

    def _learn(self) -> None:
        self.network.train()
        self._find_gradient(self.frames)
        processes.average_([parameter.grad for parameter in self.network.parameters() if parameter.grad is not None])
        self._follow(0)  # of whatever length the batch is

    def _use_gradient(self, _: int) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _add_gradient(self, frames: int) -> None:
        self.frames = frames  # another length than this batch's may be captured
        self.optimizer.zero_grad(set_to_none=False)
        with self.autocast():
            loss = self.batch_loss()
        self.scaler.scale(loss).backward()
        self.loss += loss.detach()

    @torch.no_grad()
    def _find_paths(self, frames: int) -> None:
        batch = self.corpus.test.batch(self.chosen, frames)
        with self.autocast():
            scores = self.network(batch.features, batch.lengths)
        self.paths[:frames].copy_(scores.argmax(-1))
