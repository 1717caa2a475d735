"""torch.compile of every noise of the registry: one graph, without breaks, for a whole schedule of strengths."""

import importlib.util

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import rotationout as ro
from rotationout.nn.base import Noise
from rotationout.registry import KINDS
from tests.core.noise_cases import CASES, TORCHVISION, Case


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind in KINDS for case in CASES[kind]])
def test_each_noise_is_one_graph(kind: str, case: Case) -> None:
    """Traced and differentiated by the compiler; Inductor has its turn below."""
    module, x = ro.noise(kind, case.p, **case.options()), torch.randn(case.shape, requires_grad=True)
    compiled = torch.compile(lambda x: case.call(module, x), fullgraph=True, backend="aot_eager")
    energies = []
    for p in (0.05, 0.24) if isinstance(module, Noise) else (case.p,):
        module.p = p
        outputs = [compiled(x) for _ in range(20)]
        assert kind == "none" or any(not torch.equal(y, outputs[0]) for y in outputs), "every call draws anew"
        energies.append(sum((y - case.still(x)).square().sum().item() for y in outputs))
        outputs[0].sum().backward()
        assert x.grad is not None
    assert counters["stats"]["unique_graphs"] == 1
    assert energies == sorted(energies), "the strength must reach the graph"
