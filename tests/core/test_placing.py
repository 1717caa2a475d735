"""Inserting noise into models and removing it: what stays as it was, and where it acts."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from tests.core.placed_networks import IMAGES, Block, Network, state
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import rotationout as ro


class Recording(nn.Module):
    """Not random, so that its effect is known: adds one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.training else x


def test_nothing_but_training_changes_and_remove_undoes_it() -> None:
    model = Network().eval()
    before, keys, weights = state(model), list(model.state_dict()), [id(w) for w in model.parameters()]
    still = model(IMAGES)
    report = ro.insert(model, ro.RotationOut2d(0.5), before=nn.Conv2d)
    assert [change.name for change in report.changed] == [
        "stem",
        *(f"layer1.{k}.conv{c}" for k in (0, 1) for c in (2, 1)),
        "layer2.0.conv2",
        "layer2.0.conv1",
    ]
    assert report.changed[1].also == ("layer2.1.conv2",), "a module of two names counts once"
    assert len({id(noise) for noise in report.noises}) == 7 == len(report)
    assert list(model.state_dict()) == keys
    assert [id(w) for w in model.parameters()] == weights
    assert torch.equal(model(IMAGES), still)
    assert not torch.equal(model.train()(IMAGES), model(IMAGES))
    assert all(any(noise is module for module in model.modules()) for noise in report.noises)
    assert len(ro.remove(model)) == 7
    assert state(model) == before
    model = Network().eval()  # the training pass above has moved the running statistics
    expected = model.train()(IMAGES)
    ro.insert(model, ro.RotationOut2d(0.5), before=nn.Conv2d)
    ro.remove(model)
    torch.testing.assert_close(model(IMAGES), expected)


def test_noise_is_where_it_was_asked_for() -> None:
    """x + 1 before a layer is f(x + 1), after it f(x) + 1, whatever the order of calls; at every call."""
    linear = nn.Linear(3, 3)
    x = torch.randn(4, 3)
    expected = linear(x + 1) + 1
    ro.insert(linear, Recording(), before=nn.Linear)
    ro.insert(linear, Recording(), after=nn.Linear)
    torch.testing.assert_close(linear(x), expected)
    torch.testing.assert_close(linear(input=x), expected)
    assert linear.weight.shape == (3, 3), "attributes of the module are still there"
    block = Block().eval()
    ro.insert(block, Recording(), after=nn.BatchNorm2d)
    block.norm.rotationout_after.train()
    images = torch.randn(2, 8, 4, 4)
    y = block.act(block.norm.forward(block.conv1(images)) + 1)
    torch.testing.assert_close(block(images), block.act(images + block.conv2(block.norm.forward(y) + 1)))


def test_a_sequential_has_noise_at_its_ends_and_no_step_more() -> None:
    model = Network()
    report = ro.insert(model, ro.RotationOut(0.5), after="head")
    assert [change.name for change in report.changed] == ["head.2"]
    assert len(model.head) == 3
    assert [change.name for change in ro.insert(model, ro.RotationOut(0.5), before="head").changed] == ["head.0"]


def test_selection() -> None:
    def names(**choice: Any) -> list[str]:
        model = Network()
        return [change.name for change in ro.insert(model, ro.nn.GaussianDropout(0.2), **choice).changed]

    assert names(before="layer?.0.conv1") == ["layer1.0.conv1", "layer2.0.conv1"]
    assert names(after=[nn.Linear, "stem"]) == ["stem", "head.0", "head.2"]
    assert names(before=nn.Conv2d, within="layer2") == [
        "layer1.0.conv2",
        "layer1.0.conv1",
        *names(before="layer2.0.c*"),
    ]
    assert names(before=nn.Conv2d, within=["layer2.0", "stem"]) == ["stem", "layer2.0.conv2", "layer2.0.conv1"]
    assert names(where=lambda name, module: name.endswith("act")) == ["layer1.0.act", "layer1.1.act", "layer2.0.act"]
    assert names(before=nn.Module, where=lambda name, module: name == "head") == ["head.0"]


def test_the_feature_axis_follows_from_the_type_or_is_given() -> None:
    for noise in (ro.nn.GaussianDropout(0.2, center="batch"), ro.nn.IsotropicNoise(0.2)):
        made = ro.insert(Network(), noise, after=(nn.Conv2d, nn.Linear))
        assert [noise.dim for noise in made.noises] == [-3] * 7 + [-1] * 2
    # Features moved to where the noise looks for them: x̃ differs from x by a turn of every feature vector.
    act = nn.Sequential(nn.ReLU())
    ro.insert(act, ro.RotationOut(0.5, angle_per="batch", pairing="permutation"), after=nn.ReLU, dim=1)
    x = torch.rand(2, 6, 5)
    scale = act(x).norm(dim=1) / x.norm(dim=1)
    torch.testing.assert_close(scale, scale[0, 0].expand(2, 5))
    act = nn.Sequential(nn.Identity())
    ro.insert(act, ro.RotationOut2d(0.5, angle_per="batch", center=None), after="0", dim=-1)
    x = torch.rand(2, 4, 4, 6)
    scale = act(x).norm(dim=-1) / x.norm(dim=-1)
    torch.testing.assert_close(scale, scale[0, 0, 0].expand(2, 4, 4))
    centred = ro.nn.GaussianDropout(0.2, center="batch")
    assert [noise.dim for noise in ro.insert(nn.Sequential(nn.ReLU()), centred, after=nn.ReLU, dim=1).noises] == [1]
    with pytest.raises(ValueError, match=r"RotationOut2d at '0' takes maps of 4 dimensions, got 3"):
        act(x[0])


@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_modules(batch_first: bool) -> None:
    """The sequence has noise, the states have none; packed or not; direction held over time."""
    lstm = nn.LSTM(4, 6, batch_first=batch_first)
    x = torch.randn(5, 5, 4)
    still, (h, c) = lstm(x)
    report = ro.insert(lstm, ro.nn.RotationOutSequence(0.5), after=nn.LSTM)
    assert report.noises[0].batch_first == batch_first
    y, (h_n, c_n) = lstm(x)
    assert torch.equal(h_n, h)
    assert torch.equal(c_n, c)
    assert not torch.equal(y, still)
    packed, _ = lstm(pack_padded_sequence(x, torch.tensor([5, 4, 3, 3, 1]), batch_first=batch_first))
    assert isinstance(packed, PackedSequence)
    torch.manual_seed(1)
    y, _ = lstm(x)
    torch.manual_seed(1)
    packed, _ = lstm(pack_padded_sequence(x, torch.full((5,), 5), batch_first=batch_first))
    torch.testing.assert_close(pad_packed_sequence(packed, batch_first=batch_first)[0], y)
    ro.remove(lstm)
    ro.insert(lstm, ro.RotationOut(0.5), before=nn.LSTM)
    assert not torch.equal(lstm(pack_padded_sequence(x, torch.full((5,), 5), batch_first=batch_first))[0].data, still)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torchs_transformer() -> None:
    """Attention's out_proj is never called, so it is left alone; the fused path of eval mode does not hide noise."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [2]])
    with torch.no_grad():
        still, padded = model(x), model(x, src_key_padding_mask=padding)
        report = ro.insert(model, ro.RotationOut(0.5), before=nn.Linear)
        assert [one.name for one in report.left] == [f"layers.{k}.self_attn.out_proj" for k in (0, 1)]
        assert "MultiheadAttention reads its weights" in report.left[0].why
        assert len(report) == 4
        torch.testing.assert_close(model(x), still)
        torch.testing.assert_close(model(x, src_key_padding_mask=padding), padded)
        with ro.sampling(model):
            assert not torch.allclose(model(x), still)
            assert model(x, src_key_padding_mask=padding).shape == padded.shape
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    ro.insert(attention, ro.nn.LockedDropout(0.5), after=nn.MultiheadAttention)
    assert attention.rotationout_after.noise.batch_first
    y, weights = attention(x, x, x)
    assert y.shape == x.shape
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 5))
    with pytest.raises(ValueError, match=r"nothing to place noise before: out_proj"):
        ro.insert(nn.MultiheadAttention(8, 2), ro.RotationOut(0.5), before="out_proj")


class Reader(nn.Module):
    """Reads the weights of one child, does not use another, and calls the third."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.idle, self.used = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(nn.functional.linear(x, self.read.weight.to(x.dtype)))


def test_modules_that_are_never_called_are_left_alone() -> None:
    report = ro.insert(Reader(), ro.RotationOut(0.5), before=nn.Linear)
    assert [change.name for change in report.changed] == ["idle", "used"], "code alone does not tell of all"
    assert [one.name for one in report.left] == ["read"]
    model = Reader()
    report = ro.insert(model, ro.RotationOut(0.5), before=nn.Linear, example_inputs=torch.randn(2, 4))
    assert [change.name for change in report.changed] == ["used"]
    assert [one.name for one in report.left] == ["read", "idle"]
    assert model.training


def test_running_means_are_the_exception_and_one_is_made_for_each_place() -> None:
    model = Network()
    keys = set(model.state_dict())
    ro.insert(
        model,
        lambda name, module: ro.RotationOut(0.5, center="running", num_features=module.in_features),
        before=nn.Linear,
    )
    new = set(model.state_dict()) - keys
    assert new == {f"head.{k}.rotationout_before.noise.running_mean" for k in (0, 2)}
    model.train()(IMAGES)
    assert model.head[2].rotationout_before.noise.running_mean.abs().sum() > 0


def test_copies_and_pickles_are_whole_and_independent() -> None:
    model = Network()
    ro.insert(model, ro.RotationOut2d(0.5), before=nn.Conv2d)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        torch.manual_seed(1)
        expected = copy.deepcopy(model)(IMAGES)
        torch.manual_seed(1)
        assert torch.equal(twin(IMAGES), expected)
        twin.stem.rotationout_before.noise.p = 0.1
        assert len(ro.remove(twin)) == 7
        assert not any(module._forward_pre_hooks for module in twin.modules())
        twin.stem.register_forward_pre_hook(lambda module, args: None)
    assert model.stem.rotationout_before.noise.p == 0.5
    assert len(ro.remove(model)) == 7


def test_noise_follows_mode_device_and_precision_of_its_place() -> None:
    model = Network().eval()
    model.head.train()
    report = ro.insert(model, ro.RotationOut(0.5), before=nn.Linear) + ro.insert(model, nn.Dropout2d(), after="stem")
    assert [noise.training for noise in report.noises] == [True, True, False]
    model.to("meta", torch.bfloat16)
    assert report.noises[0]._scale.dtype == torch.float32
    lazy, running = Network().to("meta"), ro.RotationOut(0.5, center="running", num_features=8)
    assert {noise.running_mean.device.type for noise in ro.insert(lazy, running, before="head.0").noises} == {"meta"}


def test_presets_leave_shortcuts_alone() -> None:
    model = Network()
    model.layer2[0].downsample = nn.Sequential(nn.Conv2d(8, 8, 1))
    model.layer2[0].shortcut_conv = nn.Conv2d(8, 8, 1)
    report = ro.insert_in_stages(model, ro.RotationOut2d(0.5))
    assert [change.name for change in report.changed] == ["layer2.0.conv2", "layer2.0.conv1"]
    ro.remove(model)
    report = ro.insert_blocks(model, 0.3, block_sizes=(5, 3), coverage=0.2)
    assert [change.noise.block_size for change in report.changed[:4]] == [5, 5, 5, 5]
    assert report.changed[-1].name == "head.2"
    assert {noise.p for noise in report.noises} == {0.3}
    assert {noise.coverage for noise in report.noises[:-1]} == {0.2}


def test_the_report_in_words() -> None:
    model = Network()
    assert str(ro.insert(model, nn.Dropout(0.5), after=nn.Linear)) == (
        "2 placed\n  Dropout(p=0.5, inplace=False) after Linear: head.0, head.2"
    )
    assert str(ro.insert(nn.ReLU(), nn.Dropout(0.5), after=nn.ReLU)).endswith("after ReLU: the model")
    assert "(also layer2.1.conv1)" in str(ro.insert(model, nn.Dropout(0.5), after=nn.Conv2d))


def test_a_star_that_also_matches_the_modules_inside_is_told() -> None:
    model = nn.Sequential(nn.ModuleDict({"a": nn.Linear(4, 4)}), nn.ModuleDict({"a": nn.Linear(4, 4)}))
    parts = nn.ModuleDict({"layers": nn.ModuleList([nn.TransformerEncoderLayer(8, 2) for _ in range(2)])})
    with pytest.warns(UserWarning, match=r"inside others .* e\.g\. at 'layers\.0\.self_attn': a \* stands for dots"):
        ro.insert(parts, ro.noise("dropout", 0.1), after="layers.*", dim=-1)
    ro.remove(parts)
    two = ("layers.0", "layers.0.linear1")
    with pytest.warns(
        UserWarning, match=r"='layers\.\*' places noise at 1 module inside others .* 'layers\.0\.linear1'"
    ):
        ro.insert(parts, nn.Dropout(0.1), after=["layers.1", "layers.*"], where=lambda name, _: name in two)
    ro.remove(parts)
    ro.insert(parts, ro.noise("dropout", 0.1), after=["layers.?", "*.linear1"])  # no star stands for these dots
    assert len(ro.insert(model, ro.RotationOut(0.1), before="*.a")) == 2, "none is inside another"


@pytest.mark.parametrize("sizes", [(8, 8), (16, 8), (8, 16)])
def test_linear_layers_that_follow_each_other_are_one_head(sizes: tuple[int, int]) -> None:
    width, inner = sizes
    stages = {name: nn.Sequential(nn.ModuleDict({"conv1": nn.Conv2d(4, 4, 3)})) for name in ("layer3", "layer4")}
    model = nn.ModuleDict({**stages, "fc1": nn.Linear(width, inner), "fc2": nn.Linear(inner, 3)})
    assert [change.name for change in ro.insert_blocks(model).changed][-1] == "fc2"


def test_the_steps_of_a_sequential_are_one_head() -> None:
    stages = {name: nn.Sequential(nn.ModuleDict({"conv1": nn.Conv2d(4, 4, 3)})) for name in ("layer3", "layer4")}
    head = nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    model = nn.ModuleDict({**stages, "fc": head})
    assert [change.name for change in ro.insert_blocks(model).changed][-1] == "fc.4"


def test_a_single_feature_has_no_other_to_be_paired_with() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 1, 3))
    report = ro.insert(model, ro.RotationOut2d(0.2), before=nn.Conv2d)
    assert ([change.name for change in report.changed], [left.name for left in report.left]) == (["2"], ["0"])
    assert "a single feature" in report.left[0].why
    model(torch.randn(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"nothing to place noise after: 2 \(Conv2d\): there is a single feature"):
        ro.insert(model, ro.RotationOut2d(0.2), after="2")
    assert len(ro.insert(model, ro.nn.GaussianDropout(0.2), after="2")) == 1, "other noises mix nothing"


def test_a_last_step_that_is_also_elsewhere_is_refused() -> None:
    act = nn.ReLU()
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), act), nn.Sequential(nn.Linear(8, 8), act))
    with pytest.raises(ValueError, match=r"the last step of '0' is also at '1\.1', where the noise would act too"):
        ro.insert(model, ro.RotationOut(0.2), after="0", dim=-1)
    assert len(ro.insert(model, ro.RotationOut(0.2), before="0")) == 1
