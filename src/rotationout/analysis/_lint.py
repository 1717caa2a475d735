"""`lint`: find what is probably not intended about the noise and the BatchNorm layers of a model.

Each rule is a function of `rotationout.analysis._rules` whose docstring is the explanation: ``RULES[name].__doc__``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from ..placing._probe import watch
from ..placing._running import ModelFailedError, call
from . import _passes
from ._flow import Flow, noises_of, observe
from ._rules import RULES, View
from ._trace import UntraceableError, trace

__all__ = ["RULES", "Finding", "Findings", "judge", "lint", "look"]


class Finding(NamedTuple):
    """Something about a model that is probably not intended.

    Attributes:
        layer: the name of the module; empty for the model itself.
        rule: the name of the rule; ``RULES[rule].__doc__`` explains it.
        message: what was found, and what to do about it.

    >>> print(Finding("drop", "too-strong", "p = 1 drops everything; use a smaller p"))
    drop: p = 1 drops everything; use a smaller p [too-strong]
    """

    layer: str
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.layer or 'the model'}: {self.message} [{self.rule}]"


class Findings(list[Finding]):
    """A list that can be printed: a line for each finding, and one for all layers of which the same was found.

    Attributes:
        ran: whether the model was run; otherwise the rules that need shapes were skipped.

    >>> print(Findings())
    nothing found
    """

    ran = True

    def __str__(self) -> str:
        alike: dict[tuple[str, str], list[str]] = {}
        for layer, rule, message in self:
            alike.setdefault((rule, message), []).append(layer or "the model")
        lines = (str(Finding(", ".join(layers), rule, message)) for (rule, message), layers in alike.items())
        skipped = "" if self.ran else "; shapes and axes were not checked, for want of an example input"
        return "\n".join(lines) or f"nothing found{skipped}"


def lint(model: nn.Module, example_inputs: Any = None) -> Findings:
    """Look for noise that does harm where it is placed, does nothing, or does something else than intended.

    The model is not changed: it is run on copies of its buffers, and modes and random numbers are put back.

    Args:
        model: in any mode.
        example_inputs: an input of the model in training, for a run in each mode without gradients: a tensor, a tuple
            of arguments, or a mapping of keyword arguments; on the model's device. Without it torch.fx traces the
            model, if it can, and rules that need shapes are skipped.

    Returns:
        The findings, in order of the rules; ``print`` them. A finding ``not-checked`` says what could not be checked.

    >>> print(lint(nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))))
    1: directly before the BatchNorm1d layer 2, which records the variance of noisy features and divides clean ones by
        it; move the noise after it, or repair the layer with recalibrate_batchnorm_(model, batches)
        [noise-before-normalisation]
    """
    return judge(*look(model, example_inputs))


def look(model: nn.Module, example_inputs: Any = None) -> tuple[View, Finding | None]:
    """What the rules are about, and what could not be looked at; the arguments are those of `lint`."""
    _passes.check_model(model)
    noises = noises_of(model)
    flow, seen, problem = Flow(), {}, None
    with _passes.untouched(model):
        model.train()
        reached = {name: noise.training for name, noise in noises.items()}
        try:
            if example_inputs is None:
                flow = trace(model)
            else:
                observe(model, lambda: call(model, example_inputs), flow)
                seen = watch(model, example_inputs, noises.values())
        except UntraceableError as error:
            problem = Finding("", "not-checked", f"the order of the layers is not known: {error}")
        except ModelFailedError as error:
            problem = Finding("", "not-checked", str(error))
    return View(model, noises, reached, flow, seen, ran=example_inputs is not None and problem is None), problem


def judge(view: View, problem: Finding | None) -> Findings:
    """What the rules find."""
    findings = Findings()
    for name, rule in RULES.items():
        findings.extend(Finding(layer, name, message) for layer, message in rule(view))
    if problem is not None:
        findings.append(problem)
    findings.ran = view.ran
    return findings
