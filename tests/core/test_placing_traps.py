"""What models do that could make a placed noise silent, or wrong."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro
from rotationout.placing import _layout


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_noises_in_a_sequential_are_checked_and_sampled() -> None:
    model = perceptron().eval()
    ro.insert(model, nn.Sequential(ro.nn.GaussianDropout(0.3), ro.RotationOut(0.3)), before="2")
    assert (ro.predict_samples(model, torch.randn(5, 8), 10).std > 0).any()
    maps = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    with pytest.raises(ValueError, match="use RotationOut2d there"):
        ro.insert(maps, nn.Sequential(nn.Dropout(0.1), ro.RotationOut(0.3)), after=nn.Conv2d)
    with pytest.raises(ValueError, match="different axes: insert them one by one"):
        ro.insert(maps, nn.Sequential(ro.RotationOut(0.3), ro.RotationOut2d(0.3)), after=nn.Conv2d)
    both = nn.Sequential(ro.RotationOut(0.3), ro.nn.GaussianDropout(0.3, center="batch"))
    with pytest.raises(ValueError, match="dim cannot serve all noises"):
        ro.insert(maps, both, after=nn.Conv2d, dim=1)
    ro.insert(maps, nn.Sequential(nn.Dropout(0.1), ro.nn.GaussianDropout(0.3)), after=nn.Conv2d)  # on any axis
    turning = nn.Sequential(nn.Dropout(0.0), ro.RotationOut(0.5, angle_per="batch"))
    ro.insert(maps, turning, after=nn.ReLU, dim=1)
    x = torch.randn(2, 3, 5, 5)
    maps[0].eval()
    still = maps[1].eval()(maps[0](x))
    scale = maps[1].train()(maps[0](x)).norm(dim=1) / still.norm(dim=1)
    torch.testing.assert_close(scale, scale[0, 0, 0].expand_as(scale), msg="every feature vector turns by one angle")


def test_noise_on_the_side_of_a_module_where_it_makes_sense() -> None:
    cell = nn.LSTMCell(4, 6)
    ro.insert(cell, ro.RotationOut(0.5), before=nn.LSTMCell)
    x = torch.randn(3, 4)
    assert not torch.equal(cell(x)[0], cell.eval()(x)[0])
    table = nn.Embedding(5, 4)
    ro.insert(table, ro.RotationOut(0.5), after=nn.Embedding)
    assert not torch.equal(table(torch.arange(5)), table.weight)


class Doubling(nn.Module):
    """A noise of one's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.randint(1, 3, x.shape) if self.training else x


def test_a_noise_of_ones_own_is_sampled() -> None:
    model = perceptron().eval()
    ro.insert(model, Doubling(), before="2")
    assert (ro.predict_samples(model, torch.randn(5, 8), 10).std > 0).any()
    assert not any(module.training for module in model.modules())


class Loop(nn.Module):
    """Calls all its children, as blocks of timm do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_module_that_calls_all_its_children(side: str) -> None:
    model, x = nn.Sequential(Loop(), nn.ReLU()), torch.randn(3, 8)
    expected = model(x)
    ro.insert(model, ro.RotationOut(0.5), **{side: Loop}, dim=-1)
    assert not torch.equal(model(x), expected)
    assert torch.equal(model.eval()(x), expected)


class Begun(Loop):
    """Reads the weights of its children where it is made, and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.eye_(self.one.weight)

    def reset_parameters(self) -> None:
        nn.init.eye_(self.two.weight)

    def tie_weights(self) -> None:
        self.two.weight = self.one.weight


def test_weights_that_are_read_only_where_they_are_set() -> None:
    assert len(ro.insert(nn.Sequential(Begun()), ro.RotationOut(0.5), before=nn.Linear)) == 2


class Fused(nn.Sequential):
    """Calls its steps, and reads their weights elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("linear", nn.Linear(8, 8))

    def fuse(self) -> Tensor:
        return self.linear.weight * 2


class Either(nn.Module):
    """Calls its layer or hands its weights on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(8, 8), None

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn import functional as F

        return self.layer(x) if self.bias is None else F.linear(x, self.layer.weight, self.bias)


def test_weights_that_are_read_where_the_module_is_called_too() -> None:
    assert len(ro.insert(nn.Sequential(Fused()), ro.RotationOut(0.2), before=nn.Linear)) == 1
    with pytest.raises(ValueError, match=r"may never call it.*example_inputs to find out"):
        ro.insert(nn.Sequential(Either()), ro.RotationOut(0.2), before=nn.Linear)
    report = ro.insert(nn.Sequential(Either()), ro.RotationOut(0.2), before=nn.Linear, example_inputs=torch.randn(2, 8))
    assert len(report) == 1


class ChannelsFirst(nn.LayerNorm):
    """As in ConvNeXt of transformers."""

    data_format = "channels_first"


def test_a_layer_norm_of_channels_has_maps() -> None:
    assert _layout.dims_of_module(ChannelsFirst(8)) == 2
    assert _layout.dims_of_module(nn.LayerNorm(8)) == 0


def test_a_conversion_that_loses_the_hooks_is_noticed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    ro.insert(model, ro.RotationOut2d(0.5), after=nn.BatchNorm2d)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    with pytest.raises(RuntimeError, match="the noise at '1' no longer acts"), ro.sampling(model):
        pass
    with pytest.raises(RuntimeError, match="convert the model first, then insert"):
        ro.Schedule.ramp(model, steps=5)


def test_sampling_inside_sampling_leaves_running_means_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), ro.RotationOut(0.5, center="running", num_features=8))
    x = torch.randn(6, 8)
    with ro.sampling(model):
        ro.predict_samples(model, x, 3)
        model(x)
    assert torch.equal(model[1].running_mean, torch.zeros(8))
    model[1].tracking = False
    with ro.sampling(model):
        pass
    assert model[1].tracking is False


def test_query_key_and_value_stay_one() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    seen: list[tuple[Tensor, ...]] = []
    ro.insert(nn.Sequential(attention), ro.RotationOut(0.5), before=nn.MultiheadAttention)
    attention.register_forward_pre_hook(lambda module, args: seen.append(args))
    x = torch.randn(2, 5, 8)
    attention(x, x, x)
    (query, key, value) = seen[0]
    assert query is key is value
    assert not torch.equal(query, x)
    other = torch.randn(2, 5, 8)
    attention(x, other, other)
    assert seen[1][1] is other


class Pooling(nn.Module):
    """Attention over time, its weights (N, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.dropout = nn.Linear(8, 1), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.dropout(self.score(x).squeeze(-1).softmax(-1))
        return (weight.unsqueeze(-1) * x).sum(1)


def test_swap_leaves_weights_hooks_and_inserted_noises_alone() -> None:
    pooling = nn.Sequential(Pooling())
    report = ro.swap(pooling, example_inputs=torch.randn(3, 6, 8))
    assert len(report) == 0
    assert "attention weights" in str(report)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 4))
    for side in ("before", "after"):
        ro.insert(model, ro.nn.GaussianDropout(0.3), **{side: "1"})
        report = ro.swap(model)
        assert len(report) == 0
        assert "it has hooks" in str(report)
        assert len(ro.remove(model)) == 1
    with pytest.raises(TypeError, match="swap has no choice block_size"):
        ro.swap(model, block_size=5)


@pytest.mark.parametrize("batch_first", [False, True])
def test_sequence_noises_take_the_order_of_the_module(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    for model, where in (
        (nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)), nn.TransformerEncoder),
        (nn.Sequential(layer), nn.TransformerEncoderLayer),
        (nn.Sequential(ro.nn.NoisyLSTM(8, 8, batch_first=batch_first)), ro.nn.NoisyLSTM),
    ):
        dim = -1 if where is ro.nn.NoisyLSTM else None
        (noise,) = ro.insert(model, ro.nn.LockedDropout(0.3), after=where, dim=dim).noises
        assert noise.batch_first is batch_first


def test_a_width_is_checked_where_the_axis_is_the_modules() -> None:
    noise = ro.RotationOut(0.2, center="running", num_features=5)
    model = nn.Sequential(nn.Linear(8, 16))
    with pytest.raises(ValueError, match="num_features = 5"):
        ro.insert(model, noise, after="0")
    ro.insert(model, noise, after="0", dim=1)
    assert model(torch.randn(3, 5, 8)).shape == (3, 5, 16)


def test_a_schedule_sets_all_strengths_or_none() -> None:
    noises = [ro.RotationOut(0.2), ro.nn.ShakeShake(0.2)]
    schedule = ro.Schedule(noises, lambda step: 1.0 + step)
    with pytest.raises(ValueError, match=r"at most 0\.25 for Shake-Shake"):
        schedule.step()
    assert [noise.p for noise in noises] == [0.2, 0.2]
    assert schedule.last_step == 0
    report = ro.insert(perceptron(), ro.RotationOut(0.4), before=nn.Linear)
    ro.Schedule.ramp(report, steps=4)
    assert {noise.p for noise in report.noises} == {0.1}


def test_block_sizes_are_one_for_each_stage() -> None:
    with pytest.raises(TypeError, match=r"e\.g\. \(7, 3\), got 7"):
        ro.insert_blocks(perceptron(), block_sizes=7)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:Please use quant_min")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, .* are deprecated")
@pytest.mark.parametrize("place", [{"before": "2"}, {"after": "0"}])
def test_noise_is_lost_if_a_module_is_quantized_but_models_run(place: dict[str, str]) -> None:
    """Torch builds new modules, and hands them the hooks, but not the noise: in training there is a warning."""
    from torch.ao import quantization

    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(4, 8)
    ro.insert(model, ro.RotationOut(0.2), **place)
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    prepared = quantization.prepare_qat(model.train())
    where = "before '2'" if "before" in place else "after '0'"
    with pytest.warns(UserWarning, match=f"the noise that was inserted {where} is lost: .* was rebuilt as Linear"):
        prepared(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        prepared(x)  # once is enough
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    ro.insert(model, ro.RotationOut(0.2), **place)
    assert quantization.quantize_dynamic(model.eval(), {nn.Linear})(x).shape == (4, 2)
