"""Training runs of Table 4: Adam on the CTC loss, and the edit distance of greedily decoded test utterances."""

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
from .scoring import examples, greedy, score, torchmetrics_text
from .stepped import has_kernels
from .text import ALPHABET

__all__ = ["Corpus", "Recognition", "SpeechConfig", "load_speech"]

CACHE = Path("out/features")
"""The folder in which the features of a corpus are cached."""
PATIENCE = 16
"""Graphs are captured after so many batches, when most padded lengths of a corpus have been seen."""


@dataclass(frozen=True, kw_only=True)
class SpeechConfig(Config):
    """A run of speech recognition. Its noise acts on the output of every layer.

    Args:
        hidden: hidden units of a layer, per direction.
        layers: number of bidirectional LSTM layers.
        weight_drop: drop probability of the recurrent weights.
        variational: drop whole rows of the recurrent weights instead of single weights.
        alphabet: the characters of transcripts.
        train_split: the split to train on.
        test_split: the split to test on.
        held_out: hold the utterances of this many training speakers out, and test on them instead of ``test_split``.
        test_every: number of epochs from test to test; the last epoch is always tested.
        lstm: the kernels of the LSTMs on a GPU: ``"cudnn"``, or ``"stepped"``, our own Triton kernels, with which runs
            side by side are faster. Results differ by rounding only. ``"stepped"`` has no effect without triton, if
            ``hidden`` is not a multiple of 64, or on a CPU.
        precision: ``"fp32"``, in which cuDNN's matrix products are TF32, or ``"fp16"``; not bf16, as torch's autocast
            does not cast cuDNN's LSTMs to it.
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
            raise ValueError(f"alphabet must have characters, each of them once, got {self.alphabet!r}")


@dataclass(frozen=True)
class Corpus:
    """The training utterances and the test utterances, on the device, and those that could not be used."""

    train: Speech
    test: Speech
    problems: tuple[Problem, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of a record about the corpus."""
        every = [*self.problems, *self.train.problems, *self.test.problems]
        return {"train_utterances": len(self.train), "test_utterances": len(self.test), **problems.facts(every)}


def load_speech(config: SpeechConfig, data: Path, device: torch.device) -> Corpus:
    """Load a corpus, or a file of its features, for a config: `rotationout.experiments.speech.features.open_corpus`."""
    torchmetrics_text()  # if it is missing, the first test would be late to say so
    splits = [config.train_split] if config.held_out else [config.train_split, config.test_split]
    features = open_corpus(data, splits, cache=CACHE)
    train_indices = select(features, config.train_split)
    if config.held_out:
        train_indices, test_indices = without_speakers(features, train_indices, config.held_out)
    else:
        test_indices = select(features, config.test_split)
    train, test = (Speech(features, chosen, config.alphabet, device) for chosen in (train_indices, test_indices))
    heard = tuple(problem for problem in features.problems if problem.split in splits)
    listed = [*(features.splits[index] for index in (*train_indices, *test_indices)), *(bad.split for bad in heard)]
    problems.refuse_if_many([*heard, *train.problems, *test.problems], listed, "utterances")
    return Corpus(train, test, heard)


class Recognition(Run):
    """A run of speech recognition.

    Args:
        config: what to run.
        corpus: the training utterances and the test utterances, on the device.
        device: the device to train on.
    """

    config: SpeechConfig
    captured = False  # by `Run`, as a whole: here each padded length has a graph of its own

    def __init__(self, config: SpeechConfig, corpus: Corpus, device: torch.device) -> None:
        self.corpus = corpus
        train, test = corpus.train, corpus.test
        if len(train) < config.batch:
            raise ValueError(f"there are {len(train)} training utterances, fewer than a batch of {config.batch}")
        super().__init__(config, device)
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)  # all graphs write their gradients here
        self.order = torch.empty(0, config.batch, dtype=torch.int64)
        self.order_on_device = self.order.to(device)
        self.chosen = torch.zeros(self.share.stop - self.share.start, dtype=torch.int64, device=device)
        self.frames = 0
        self.test_batches = test.durations.argsort().split(len(self.chosen))
        longest = max(test.padded_length(row) for row in self.test_batches)
        self.paths = torch.zeros(longest, len(self.chosen), dtype=torch.int64, device=device)
        self.transcripts: list[dict[str, str]] = []
        short = train.labels.size(1) <= CUDNN_LABELS  # longer ones need the host, see ctc_loss
        self._forward_backward_graph = self._graphs.by_length(self._forward_backward, captured=short, patience=PATIENCE)
        self._apply_gradient_graph = self._graphs.by_length(self._apply_gradient)
        self._best_paths_graph = self._graphs.by_length(self._best_paths)

    @property
    def steps_per_epoch(self) -> int:
        """The number of whole batches of training utterances; what is left over is not used in this epoch."""
        return len(self.corpus.train) // self.config.batch

    @property
    def result(self) -> dict[str, float]:
        """The last test: mean edit distance of an utterance, and the character error rate in per cent."""
        return {"edit_distance": self.curves["distance_curve"][-1], "cer": self.curves["cer_curve"][-1]}

    @property
    def facts(self) -> dict[str, Any]:
        """The numbers of utterances, what was left out, and a few transcripts."""
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
        """An error: nearly all of the work is in LSTM kernels, which torch.compile does not change."""
        raise ValueError("--compile has no effect on speech recognition, whose work is in LSTM kernels: leave it out")

    def build_network(self) -> nn.Module:
        """The bidirectional LSTM with its noise."""
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
        """Draw the batches of an epoch."""
        self.order = bucketed(self.corpus.train.durations, self.config.batch, self.shuffler)
        self.order_on_device = self.order.to(self.device)

    def take_batch(self, place: int) -> None:
        """Set the numbers of the utterances of a batch, and the length to which they are padded."""
        self.frames = self.corpus.train.padded_length(self.order[place])
        self.chosen.copy_(self.order_on_device[place, self.share])

    def batch_loss(self) -> Tensor:
        """The CTC loss of the current batch."""
        batch = self.corpus.train.batch(self.chosen, self.frames)
        scores = self.network(batch.features, batch.lengths)
        return ctc_loss(scores, batch.lengths, batch.labels, batch.sizes)

    def test(self) -> dict[str, float]:
        """Edit distance and character error rate on the test utterances, which the processes share.

        Nothing except every ``test_every`` epochs, and at the end.
        """
        if len(self.losses) % self.config.test_every and not self.finished:
            return {}
        test = self.corpus.test
        found = {index: text for part in processes.gather(self._transcribe()) for index, text in part.items()}
        heard = [found[index] for index in range(len(test))]
        self.transcripts = examples(heard, test.texts, test.names)
        scores = score(heard, test.texts)
        return {"distance_curve": scores["distance"], "cer_curve": scores["cer"]}

    def _transcribe(self) -> dict[int, str]:
        """The decoded texts of this process's part of the test utterances, by their numbers."""
        test = self.corpus.test
        self.network.eval()
        rows = self.test_batches[processes.rank() :: processes.size()]
        found = []
        for row in rows:
            frames = test.padded_length(row)
            repeats = -(-len(self.chosen) // len(row))
            self.chosen.copy_(row.repeat(repeats)[: len(self.chosen)])  # the last batch is as large as the others
            self._best_paths_graph(frames)
            found.append(self.paths[:frames, : len(row)].clone())
        heard: dict[int, str] = {}
        for row, paths in zip(rows, found, strict=True):
            texts = greedy(paths.cpu(), test.durations[row].tolist(), test.alphabet)
            heard.update(zip(row.tolist(), texts, strict=True))
        return heard

    def state(self) -> dict[str, Any]:
        """The state of `Run`, with the batches of this epoch and the last transcripts."""
        return {**super().state(), "order": self.order, "transcripts": self.transcripts}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; an error if its batches cannot be of these training utterances."""
        order: Tensor = state["order"]
        if len(order) and (len(order) != self.steps_per_epoch or int(order.max()) >= len(self.corpus.train)):
            raise ValueError(f"it has batches of other utterances than these {len(self.corpus.train)}")
        super().restore(state)
        self.order, self.transcripts = order, state["transcripts"]
        self.order_on_device = self.order.to(self.device)

    def _train_step(self) -> None:
        self.network.train()
        self._forward_backward_graph(self.frames)
        processes.average_([parameter.grad for parameter in self.network.parameters() if parameter.grad is not None])
        self._apply_gradient_graph(0)  # the update does not depend on the length

    def _apply_gradient(self, _: int) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _forward_backward(self, frames: int) -> None:
        self.frames = frames  # `ByLength` may capture another length than this batch's
        self.optimizer.zero_grad(set_to_none=False)
        with self.autocast():
            loss = self.batch_loss()
        self.scaler.scale(loss).backward()
        self.loss += loss.detach()

    @torch.no_grad()
    def _best_paths(self, frames: int) -> None:
        batch = self.corpus.test.batch(self.chosen, frames)
        with self.autocast():
            scores = self.network(batch.features, batch.lengths)
        self.paths[:frames].copy_(scores.argmax(-1))
