"""torch.compile and torch.export around noisy recurrent networks: torch breaks the graph there, and all still works."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from rotationout.nn import LockedDropout, NoisyLSTM, RotationOutSequence, WeightDrop

# What torch says of a graph break inside its recurrent modules.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


class Tagger(nn.Module):
    """Features, a recurrent network, a label for every step."""

    def __init__(self, recurrent: nn.Module, *, packed: bool = False) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.recurrent = recurrent
        self.labels = nn.Linear(12, 3)
        self.packed = packed

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = self.features(x)
        if not self.packed:
            return self.labels(self.recurrent(x)[0])
        return self.labels(self.recurrent(pack_padded_sequence(x, lengths, enforce_sorted=False))[0].data)


def stack(**noises: Any) -> NoisyLSTM:
    return NoisyLSTM(4, 6, 2, bidirectional=True, **noises)


BATCH = torch.randn(5, 3, 4), torch.tensor([3, 5, 2])
ALL = {
    "input_noise": RotationOutSequence(0.2),
    "layer_noise": LockedDropout(0.3),
    "output_noise": nn.Dropout(0.1),
    "weight_drop": 0.3,
}


@pytest.mark.parametrize("packed", [False, True])
def test_the_surrounding_model_compiles_and_trains(packed: bool) -> None:
    model = Tagger(stack(**ALL), packed=packed)
    compiled = torch.compile(model, backend="eager" if packed else "aot_eager")
    outputs = []
    for _ in range(2):
        outputs.append(compiled(*BATCH))
        outputs[-1].square().sum().backward()
    assert not torch.equal(*outputs)
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    torch.testing.assert_close(compiled.eval()(*BATCH), model.eval()(*BATCH))


@torch._inductor.config.patch(fallback_random=True)  # draw as eager calls do
def test_weights_are_dropped_in_a_compiled_model() -> None:
    """Inductor, and no noise but that on weights: what changes from call to call is theirs."""
    wrapped = WeightDrop(nn.LSTM(4, 6, bidirectional=True), 0.3)
    model = Tagger(wrapped)
    compiled = torch.compile(model)
    assert not torch.equal(compiled(*BATCH), compiled(*BATCH))
    for p in (0.1, 0.6):  # a schedule
        wrapped.p = p
        outputs = []
        for each in (compiled, model):
            torch.manual_seed(1)
            outputs.append(each(*BATCH))
        torch.testing.assert_close(*outputs)
    outputs[0].square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    wrapped.p = 0.0
    assert torch.equal(compiled(*BATCH), compiled(*BATCH))


@pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights")  # nn.LSTM's own
def test_torch_export_of_the_eval_model() -> None:
    model = Tagger(stack(**ALL)).eval()
    exported = torch.export.export(model, BATCH)
    torch.testing.assert_close(exported.module()(*BATCH), model(*BATCH))
    assert not any("rand" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.filterwarnings("ignore")
def test_a_stack_of_lstms_is_exported_to_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    model, x = NoisyLSTM(4, 6, 2, bidirectional=True, layer_noise=RotationOutSequence(0.3)).eval(), torch.randn(3, 2, 4)
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    graph = onnx.load(tmp_path / "model.onnx")
    found = ReferenceEvaluator(graph).run(None, {graph.graph.input[0].name: x.numpy()})
    output, states = model(x)
    for ours, theirs in zip((output, *states), found, strict=True):
        # States come out with an axis too many, as they do of torch's own LSTM (2.11).
        torch.testing.assert_close(torch.from_numpy(theirs).reshape(ours.shape), ours, rtol=1e-4, atol=1e-5)
