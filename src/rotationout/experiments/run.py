"""The training loop of all tasks: random numbers, precision, CUDA graphs, schedules, ends of epochs, checkpoints.

A task subclasses `Run` and provides its network, batches, loss and tests. On a GPU an update is captured in a CUDA
graph, and the loss stays on the device until an epoch ends: the host only launches. So several runs can share a GPU,
each on a stream of its own.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from ..nn.base import Noise
from ..placing import Schedule
from . import processes
from .config import Config
from .graphs import Action, Graphs
from .random_stream import RandomStream

__all__ = ["Run"]

MOST_GRAPHS = 1000
"""How many different regions torch.compile may compile, over all runs of a process; its own limit is 8."""
ALGORITHMS = 0
"""How many of its algorithms cuDNN times for a convolution of a compiled network, 0 for all; its own limit is 10."""


class Run(abc.ABC):
    """One training run, from its first step or from a checkpoint.

    A subclass stores its data before it calls ``super().__init__``, and implements the abstract methods. Within a run
    torch's default generator draws the noise, and ``shuffler`` everything about data.

    Args:
        config: what to run.
        device: the device to train on.

    Attributes:
        network: the network that is trained.
        optimizer: its optimizer.
        rate: the learning rate, a scalar tensor on the device, which the optimizer reads.
        shuffler: a generator on the CPU that draws the order of the examples and the like, the same in all processes.
        share: this process's part of every batch, a slice.
        step: the number of updates done.
        losses: the mean loss of every epoch.
        curves: the scores that `test` returned, by their names in the record.

    >>> class Slope(Run):  # fits y = 2·x
    ...     steps_per_epoch = 10
    ...     def build_network(self): return nn.Linear(1, 1)
    ...     def build_optimizer(self): return torch.optim.SGD(self.network.parameters(), self.rate)
    ...     def begin_epoch(self): self.x = torch.rand(40, 1, generator=self.shuffler)
    ...     def take_batch(self, place): self.inputs = self.x[4 * place : 4 * place + 4]
    ...     def batch_loss(self): return (self.network(self.inputs) - 2 * self.inputs).square().mean()
    ...     def test(self): return {"slope": self.network.weight.item()}
    ...     result = property(lambda self: {"slope": self.curves["slope"][-1]})
    >>> config = Config(recipe="doc", row="none", steps=300, learning_rate=0.5, precision="fp32")
    >>> run = Slope(config, torch.device("cpu"))
    >>> while not run.finished:
    ...     run.advance()
    >>> len(run.losses), round(run.result["slope"], 2)
    (30, 2.0)
    """

    captured = True
    """Whether actions are captured on a GPU; False for tasks whose shapes change from batch to batch."""
    compiled = False
    """Whether the network is compiled."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device = config, device
        if config.precision == "fp16" and device.type != "cuda":
            raise ValueError(f"precision = 'fp16' needs a GPU; on {device.type!r} use 'bf16' or 'fp32' (--precision)")
        self.share = processes.share(config.batch)
        self.random_stream = RandomStream(config.seed, device, processes.rank())
        with self.random_stream.initial_weights():
            self.network = self.build_network()
        if config.sync_batchnorm:
            self.network = processes.synchronized(self.network, device)
        self.network.to(device)
        kept = self.network.state_dict(keep_vars=True).values()
        self._statistics = [t for t in kept if t.is_floating_point() and not isinstance(t, nn.Parameter)]
        self.schedule = self._build_schedule()
        self.rate = torch.tensor(config.learning_rate, device=device)
        self._rate = config.learning_rate
        self.optimizer = self.build_optimizer()
        self.scaler = GradScaler(device.type, enabled=config.precision == "fp16")
        if self.scaler.is_enabled():
            _init_momentum(self.optimizer)
        self.shuffler = torch.Generator().manual_seed(config.seed)
        self.step = 0
        self.losses: list[float] = []
        self.curves: dict[str, list[float]] = {}
        self.loss = torch.zeros((), device=device)
        self._graphs = Graphs(device)
        self._update = self.action(self._train_step)

    @abc.abstractmethod
    def build_network(self) -> nn.Module:
        """Build the network with its noise, on the CPU; torch's default generator draws the weights."""

    @abc.abstractmethod
    def build_optimizer(self) -> torch.optim.Optimizer:
        """Build the optimizer of ``network``, fused if on a GPU: CUDA graphs and the GradScaler need that."""

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""

    @abc.abstractmethod
    def begin_epoch(self) -> None:
        """Draw the batches of an epoch, with ``shuffler``."""

    @abc.abstractmethod
    def take_batch(self, place: int) -> None:
        """Put this process's ``share`` of batch number ``place`` where `batch_loss` reads it.

        If that is captured, these must always be the same tensors.
        """

    @abc.abstractmethod
    def batch_loss(self) -> Tensor:
        """The mean loss of the batch, to be differentiated. Called under autocast."""

    @abc.abstractmethod
    def test(self) -> dict[str, float]:
        """Test the network; the scores by name, the same in all processes."""

    @property
    @abc.abstractmethod
    def result(self) -> dict[str, float]:
        """The results of the run, by their names in the record."""

    @property
    def facts(self) -> dict[str, Any]:
        """Further fields of the record, JSON-able: how many examples were skipped, for example.

        All processes must call this at the same time.
        """
        return {}

    @property
    def files(self) -> dict[str, bytes]:
        """Further files to write beside the record: their contents, by the ending that replaces ``.json``."""
        return {}

    @property
    def status(self) -> str:
        """The last scores in a few characters, for the progress display."""
        return " ".join(f"{name} {values[-1]:.4g}" for name, values in self.curves.items())

    @property
    def summary(self) -> str:
        """The results in a line."""
        return ", ".join(f"{name} {value:.4g}" for name, value in self.result.items())

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.config.steps

    def advance(self) -> None:
        """Do one step, and a test if it ends an epoch or the run."""
        place = self.step % self.steps_per_epoch
        if place == 0:
            self.begin_epoch()
        if self.device.type == "cuda" and self.captured and not self._graphs.captured:
            self.take_batch(place)
            self._capture()
        with self.random_stream.active(), self._graphs.on_stream():
            self.take_batch(place)
            self._set_rate(self.config.rate_at(self.step))
            self._update()
            self.step += 1
            if self.schedule is not None and not self.finished:  # studies after the last step need the last noise
                self.schedule.step()
            if place + 1 == self.steps_per_epoch or self.finished:
                self._end_epoch(place + 1)

    def state(self) -> dict[str, Any]:
        """All that a run needs to continue, as tensors and plain types. Subclasses add what `begin_epoch` drew.

        All processes must call this at the same time; the checkpoint is what the first of them returns.
        """
        self._graphs.wait()
        loss = self.loss.clone()
        processes.average_([loss])
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": {k: v for k, v in self.optimizer.state_dict().items() if k == "state"},
            "scaler": self.scaler.state_dict(),
            "shuffler": self.shuffler.get_state(),
            "numbers": processes.gather(self.random_stream.state()),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "loss": loss.cpu(),
            "losses": list(self.losses),
            "curves": {name: list(values) for name, values in self.curves.items()},
        }

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """End what works in the background, if anything does: no more steps are done."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`: on a CPU exactly as if the run had never stopped; after a GPU, with other noise."""
        self.step, self.losses, self.curves = state["step"], state["losses"], state["curves"]
        self.network.load_state_dict(state["network"])
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for place, kept in state["optimizer"]["state"].items():
            parameter = parameters[place]
            mine = self.optimizer.state[parameter]
            for name, value in kept.items():
                if isinstance(mine.get(name), Tensor):  # in place: a CUDA graph may hold its address
                    mine[name].copy_(value)
                else:
                    mine[name] = value.to(parameter.device, copy=True) if isinstance(value, Tensor) else value
        self.scaler.load_state_dict(state["scaler"])
        self.shuffler.set_state(state["shuffler"])
        self.loss.copy_(state["loss"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        if processes.rank() < len(state["numbers"]):  # there may be more processes now
            self.random_stream.restore(state["numbers"][processes.rank()])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def action(self, work: Callable[[], None]) -> Action:
        """An action to call like ``work``; on a GPU it is captured in a CUDA graph before the first step."""
        return self._graphs.add(work)

    def regions(self) -> Iterable[nn.Module]:
        """The modules that `compile` compiles one by one. Those with equal code and shapes share a compilation."""
        return [self.network]

    def compile(self) -> None:
        """Compile the network, before the first step; tests run it without compilation.

        Not the default, as compiling takes a while, and so does cuDNN, which then times more algorithms. The kernels of
        `rotationout.experiments.narrow` are not used in a compiled network.
        """
        for region in self.regions():
            region.compile(dynamic=False)
        self.compiled = True

    def autocast(self) -> torch.autocast:
        """A context in which the network computes in the precision of the config."""
        dtype = torch.float16 if self.config.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.config.precision != "fp32")

    @contextmanager
    def execution_context(self) -> Iterator[None]:
        """A context to use the network in outside of steps: the run's random numbers and stream, nothing compiled."""
        with self.random_stream.active(), self._graphs.on_stream(), self._compiling(regions=False):
            yield

    @contextmanager
    def _compiling(self, *, regions: bool) -> Iterator[None]:
        """A context that runs the regions compiled, however many of them differ, or not compiled."""
        if not self.compiled:
            yield
        elif regions:
            limits = {"recompile_limit": MOST_GRAPHS, "accumulated_recompile_limit": MOST_GRAPHS}
            # Inserted noise lives in hooks. Without guards on hooks, a run with noise would reuse the compiled blocks
            # of an earlier run without noise, and train without noise.
            with torch._dynamo.config.patch({**limits, "skip_nnmodule_hook_guards": False}):
                yield
        else:
            with torch.compiler.set_stance("force_eager"):
                yield

    def _build_schedule(self) -> Schedule | None:
        config = self.config
        noises = [module for module in self.network.modules() if isinstance(module, Noise)]
        for name in ("ramp", "fade_out"):
            steps = getattr(config, name)
            if steps and config.p and not noises:
                raise ValueError(f"{name} = {steps}: the strength of {config.noise!r} cannot be changed during a run")
        schedule = None
        if config.ramp and noises:
            schedule = Schedule.ramp(noises, steps=config.ramp)
        if config.fade_out and noises:
            start = config.steps - config.fade_out
            schedule = Schedule.fade_out(schedule or noises, steps=config.fade_out, start=start)
        return schedule

    def _set_rate(self, rate: float) -> None:
        if rate != self._rate:
            self._rate = rate
            self.rate.fill_(rate)

    def _train_step(self) -> None:
        self.network.train()
        with self.autocast(), self._compiling(regions=True):
            loss = self.batch_loss()
        self.scaler.scale(loss).backward()
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        processes.average_([*gradients, *self._statistics])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss += loss.detach()

    def _end_epoch(self, steps: int) -> None:
        processes.average_([self.loss])
        loss = self.loss.item() / steps
        self.loss.zero_()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss of {self.config.recipe}, row {self.config.row!r}, seed {self.config.seed} is {loss} at step "
                f"{self.step}; try precision='fp32' or a smaller learning rate"
            )
        self.losses.append(loss)
        with self._compiling(regions=False):
            scores = self.test()
        for name, value in scores.items():
            self.curves.setdefault(name, []).append(value)

    def _capture(self) -> None:
        """Capture all actions, then restore everything that their trial runs have changed."""
        network = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        optimizer = {
            parameter: {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
            for parameter, state in self.optimizer.state.items()
        }
        scaler, random_state, loss = self.scaler.state_dict(), self.random_stream.state(), self.loss.clone()
        try:
            self._graphs.capture(self._for_capture)
        finally:
            self.network.load_state_dict(network)
            for parameter, state in self.optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        kept = optimizer.get(parameter, {}).get(name)
                        value.zero_() if kept is None else value.copy_(kept)
            self.scaler.load_state_dict(scaler)
            self.loss.copy_(loss)
            self.random_stream.restore(random_state)
        torch.cuda.synchronize(self.device)

    @contextmanager
    def _for_capture(self, action: Action) -> Iterator[None]:
        """A context in which an action is tried and captured: this is when cuDNN chooses its algorithms."""
        cudnn = torch.backends.cudnn
        limit = cudnn.benchmark_limit
        with self.random_stream.active(), self._compiling(regions=action is self._update):
            cudnn.benchmark_limit = ALGORITHMS if self.compiled else limit
            try:
                yield
            finally:
                cudnn.benchmark_limit = limit


def _init_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Start momentum at zero: fused SGD leaves it uninitialised if the GradScaler skips the first step."""
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else []:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
