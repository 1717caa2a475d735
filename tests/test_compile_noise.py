"""torch.compile of every noise of the registry: one graph, without breaks, for a whole schedule of strengths."""

import pytest
import torch
from tests.core.noise_cases import Case, parameters
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import rotationout as ro
from rotationout.nn.base import Noise


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch, after a graph break of its recurrent modules
@pytest.mark.parametrize(("kind", "case"), parameters(most=2))
def test_each_noise_is_one_graph(kind: str, case: Case) -> None:
    """Traced and differentiated by the compiler; Inductor has its turn below."""
    module, x = ro.noise(kind, case.p, **case.options()), torch.randn(case.shape, requires_grad=True)
    compiled = torch.compile(lambda x: case.call(module, x), fullgraph=case.transforms, backend="aot_eager")
    energies = []
    for p in (0.05, 0.24) if isinstance(module, Noise) else (case.p,):
        module.p = p
        outputs = [compiled(x) for _ in range(20)]
        assert kind == "none" or any(not torch.equal(y, outputs[0]) for y in outputs), "every call draws anew"
        energies.append(sum((y - case.still(x)).square().sum().item() for y in outputs))
        outputs[0].sum().backward()
        assert x.grad is not None
    seeded = []
    for call in (lambda x: case.call(module, x), compiled):
        torch.manual_seed(0)
        again = x.detach().requires_grad_()
        output = call(again)
        seeded.append((output, *torch.autograd.grad(output.sum(), again)))
    for ours, theirs in zip(*seeded, strict=True):
        torch.testing.assert_close(ours, theirs, msg=lambda text: f"not what it is without the compiler: {text}")
    assert not case.transforms or counters["stats"]["unique_graphs"] == 1
    assert energies == sorted(energies), "the strength must reach the graph"


class Block(nn.Module):
    """A residual block with the noises that are small modules of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.cutout = ro.noise("cutout", 0.2)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 1), *(ro.noise(kind, 0.2, dims=2) for kind in kinds))
            for kinds in (("gaussian", "centred-dropout"), ("uout", "centred-gaussian"))
        )
        self.mix = ro.noise("shake-shake", 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cutout(x)
        return x + self.mix(*(branch(x) for branch in self.branches))


def test_inductor_compiles_them_together() -> None:
    model, x = Block(), torch.randn(6, 4, 5, 5)
    compiled = torch.compile(model, fullgraph=True)
    compiled(x).square().mean().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert not torch.equal(compiled(x), compiled(x))
    for module in model.modules():
        if isinstance(module, Noise):
            module.p = 0.1
    compiled(x)
    assert counters["stats"]["unique_graphs"] == 1, "a schedule must not recompile"
    torch.testing.assert_close(compiled.eval()(x), x + sum(branch(x) for branch in model.eval().branches) / 2)


class Checkpointed(nn.Module):
    """A block whose activations are computed again in backward."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), ro.RotationOut(p), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


def test_blocks_of_a_model_that_was_loaded_are_compiled_without_breaks() -> None:
    """Built on meta and given its weights, as transformers does; the strengths differ, and no block is moved."""

    def make() -> nn.Sequential:
        return nn.Sequential(*[Checkpointed(p) for p in (0.1, 0.2, 0.3)])

    with torch.device("meta"):
        model = make()
    model.load_state_dict(make().state_dict(), assign=True)
    for block in model:
        block.compile(backend="aot_eager", fullgraph=True)
    x = torch.randn(8, 6, requires_grad=True)
    outputs = [model(x) for _ in range(2)]
    assert not torch.equal(*outputs)
    outputs[0].sum().backward()
    assert x.grad is not None
    assert counters["stats"]["unique_graphs"] <= 2
