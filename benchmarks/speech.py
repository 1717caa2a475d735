"""Time of training steps of Table 4 on a GPU: ``python -m benchmarks.speech``, about a minute.

Runs of speech recognition on made-up utterances of one length, several side by side in each of several processes: with
cuDNN's LSTMs, and with kernels that go frame by frame. The result is the time per run and step. Several processes take
turns unless NVIDIA's MPS is running (``nvidia-cuda-mps-control -d``). Written as JSON under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rotationout import noise
from rotationout.experiments.speech import recognition
from rotationout.experiments.speech.audio import FEATURES
from rotationout.experiments.speech.batches import Speech
from rotationout.experiments.speech.features import Features
from rotationout.experiments.speech.network import Listener
from rotationout.experiments.speech.recognition import Corpus, Recognition, SpeechConfig

from .records import RESULTS, write

VARIANTS = {"cudnn": {"stepped": False}, "stepped": {"stepped": True}}


@dataclass(frozen=True)
class Case:
    """What is timed."""

    variant: str
    copies: int
    processes: int
    frames: int
    hidden: int
    seconds: float
    tile: tuple[int, ...] | None


class Timed(Recognition):
    """A run whose network is a variant."""

    def __init__(self, variant: str, config: SpeechConfig, corpus: Corpus, device: torch.device) -> None:
        self.options = VARIANTS[variant]
        super().__init__(config, corpus, device)

    def build_network(self) -> nn.Module:
        """RotationOut on the output of every layer."""
        sizes = FEATURES, self.config.hidden, self.config.layers, len(self.config.alphabet) + 1
        return Listener(*sizes, noise=lambda: noise(self.config.noise, self.config.p), **self.options)


def utterances(frames: int, device: torch.device) -> Corpus:
    """As many utterances as AN4 has in an epoch, at whose end the host waits, and one to test on."""
    count = 29 * SpeechConfig.batch + 1
    made = Features(
        frames=torch.randn(count * frames, FEATURES).half(),
        lengths=torch.full((count,), frames),
        texts=["RUBOUT G M E F THREE NINE"] * count,
        names=[f"u{place}" for place in range(count)],
        splits=["train"] * (count - 1) + ["test"],
        speakers=["one"] * count,
    )
    train, test = (Speech(made, chosen, SpeechConfig.alphabet, device) for chosen in (range(count - 1), [count - 1]))
    return Corpus(train, test)


def measure(case: Case, gate: Any = None, answer: Any = None) -> dict[str, float]:
    """Steps per second of this process's runs, how long the host takes to launch one, and the memory of all."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus = utterances(case.frames, device)
    if case.tile is not None:
        from rotationout.experiments.speech import step_kernels

        step_kernels.UNITS, step_kernels.DEPTH, step_kernels.WARPS, step_kernels.STAGES = case.tile
    recognition.PATIENCE = 0  # there is one length
    config = SpeechConfig(
        recipe="speed",
        row="rotation",
        noise="rotation-sequence",
        p=0.2,
        hidden=case.hidden,
        steps=1_000_000,
        test_every=1_000_000,
        precision="fp16" if device.type == "cuda" else "fp32",
    )
    runs = [Timed(case.variant, config.replace(seed=seed), corpus, device) for seed in range(case.copies)]

    def step_all() -> None:
        for run in runs:
            run.advance()

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(4):  # as they are, captured, and replayed
        step_all()
    wait()
    begun = time.perf_counter()
    step_all()
    launched = time.perf_counter() - begun
    wait()
    if gate is not None:
        gate.wait()
    begun, steps = time.perf_counter(), 0
    while time.perf_counter() - begun < case.seconds:
        step_all()
        steps += case.copies
    wait()
    found = {
        "rate": steps / (time.perf_counter() - begun),
        "host_ms": 1e3 * launched / case.copies,
        "gigabytes": torch.cuda.max_memory_reserved() / 1e9 if device.type == "cuda" else 0.0,
    }
    if answer is not None:
        answer.put(found)
    return found


def timed(case: Case) -> dict[str, Any]:
    """A case in all its processes; this one, if it is one."""
    if case.processes == 1:
        parts = [measure(case)]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    else:
        spawn = multiprocessing.get_context("spawn")
        gate, answer = spawn.Barrier(case.processes), spawn.Queue()
        children = [spawn.Process(target=measure, args=(case, gate, answer)) for _ in range(case.processes)]
        for child in children:
            child.start()
        parts = [answer.get(timeout=120) for _ in children]
        for child in children:
            child.join()
    return {
        **asdict(case),
        "ms": 1e3 / sum(part["rate"] for part in parts),
        "host_ms": max(part["host_ms"] for part in parts),
        "gigabytes": sum(part["gigabytes"] for part in parts),
    }


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--copies", nargs="+", type=int, default=[1, 4, 8], help="runs side by side in a process")
    parser.add_argument("--processes", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--tiles",
        nargs="+",
        type=lambda text: tuple(int(part) for part in text.split(",")),
        default=[None],
        metavar="UNITS,DEPTH,WARPS,STAGES",
        help="of the kernels that go frame by frame, to try others than they have",
    )
    parser.add_argument("--frames", type=int, default=320, help="of an utterance")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--commit", default="", help="the commit that is measured, if git is not available")
    options = parser.parse_args()
    rows = []
    choices = (options.variants, options.copies, options.processes, options.tiles)
    for variant, copies, processes, tile in itertools.product(*choices):
        case = Case(variant, copies, processes, options.frames, options.hidden, options.seconds, tile)
        rows.append(timed(case))
        print(
            f"{variant:8} {tile or ''} {copies:2} runs × {processes} processes: "
            f"{rows[-1]['ms']:6.2f} ms per run and step, "
            f"{rows[-1]['host_ms']:6.2f} ms to launch, {rows[-1]['gigabytes']:5.1f} GB",
            flush=True,
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"\nwritten to {write(options.out, 'speech', options.commit, {'rows': rows}, device)}")


if __name__ == "__main__":
    main()
