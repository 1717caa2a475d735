"""lint: every rule speaks and is silent where it should, see `lint_cases.py`; and whole models."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.core.lint_cases import ALL, CASES, IMAGES, TOKENS, VECTORS, Case
from torch import Tensor, nn
from torch.nn import functional as F

import rotationout as ro
from rotationout.analysis import RULES, lint


def of_rule(findings: list[Any], rule: str) -> list[Any]:
    return [finding for finding in findings if finding.rule == rule]


@pytest.mark.parametrize(("rule", "case"), ALL)
def test_a_rule_speaks_where_it_should_and_only_there(rule: str, case: Case) -> None:
    found = of_rule(lint(case.bad(), case.example), rule)
    assert [finding.layer for finding in found] == [case.layer]
    assert re.search(case.message, str(found[0]))
    assert of_rule(lint(case.good(), case.example), rule) == []


@pytest.mark.parametrize(("rule", "case"), ALL)
def test_a_rule_knows_from_the_code_what_it_can_know(rule: str, case: Case) -> None:
    assert [finding.layer for finding in of_rule(lint(case.bad()), rule)] == [case.layer] * case.code
    assert of_rule(lint(case.good()), rule) == []


class FastAttention(nn.Module):
    """Reads the p of its Dropout, as timm and transformers do, and has one that is off."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.attn_drop, self.off = nn.Dropout(p), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.attn_drop.p if self.training else 0.0)


@pytest.mark.parametrize("p", [0.0, 0.1])
def test_attention_that_reads_the_rate_of_its_dropout_is_sound(p: float) -> None:
    model = nn.Sequential(nn.Linear(8, 8), FastAttention(p), nn.Linear(8, 8))
    assert lint(model, torch.randn(2, 5, 8)) == []


class AttentionPool(nn.Module):
    """Called attention, with a Dropout that does nothing, and one in a function that is on hidden features."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.drop = nn.Linear(8, 1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.score(x).softmax(1)
        return F.dropout((weights * x).sum(1), 0.1, self.training)


@pytest.mark.parametrize(("given", "place"), [(TOKENS, "0"), (None, "")])
def test_the_name_of_a_module_excuses_nothing(given: Tensor | None, place: str) -> None:
    found = lint(nn.Sequential(AttentionPool(), nn.Linear(8, 2)), given)
    rules = {finding.rule: finding.layer for finding in found}
    assert rules == {"noise-without-module": place} | ({} if given is None else {"never-called": "0.drop"})


class Heads(nn.Module):
    """Attention whose rate is a number, and the Dropout of another way to compute it."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.slow, self.rate, self.fused = nn.Dropout(0.1), 0.1, fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=self.rate if self.training else 0.0)
        weights = (x @ x.mT).softmax(-1)
        return F.dropout(weights, self.rate, self.training) @ x


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_of_attention_weights_in_a_function_is_right(fused: bool) -> None:
    model = nn.Sequential(Heads(fused), nn.Linear(8, 8))
    assert [(finding.rule, finding.layer) for finding in lint(model, TOKENS)] == [("never-called", "0.slow")]
    assert lint(model) == []


def test_every_rule_is_explained_and_has_a_case() -> None:
    assert set(CASES) == set(RULES)
    assert all((rule.__doc__ or "").strip() for rule in RULES.values())


def test_a_sound_model_has_no_findings() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), ro.RotationOut2d(0.2, block_size=3), nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), ro.RotationOut(0.2), nn.Linear(8, 2),
    )  # fmt: skip
    assert lint(model) == lint(model, IMAGES) == []
    assert str(lint(model, IMAGES)) == "nothing found"
    assert str(lint(model)).startswith("nothing found; shapes and axes were not checked")


def test_a_recurrent_layer_between_two_noises_is_something_between_them() -> None:
    """Also where the noise on its weights is off."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = ro.nn.NoisyLSTM(8, 6, num_layers=2, layer_noise=ro.RotationOutSequence(0.2))
            self.noise = ro.RotationOut(0.2)

        def forward(self, x: Tensor) -> Tensor:
            return self.noise(self.lstm(x)[0])

    assert lint(Net(), TOKENS) == []


class Unknown(nn.Module):
    """A noise that is none of the registry."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if self.training else x


@pytest.mark.parametrize("given", [VECTORS, None])
def test_what_was_inserted_counts_as_one_noise(given: Tensor | None) -> None:
    for noise, name in ((Unknown(), "noise"), (nn.Sequential(nn.Dropout(0.5)), "noise.0")):
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        ro.insert(model, noise, before=nn.BatchNorm1d)
        (finding,) = lint(model, given)
        assert finding.rule == "noise-before-normalisation"
        assert finding.layer.endswith(f".{name}")


@pytest.mark.parametrize("given", [IMAGES, None])
def test_p_of_cutout_is_an_area(given: Tensor | None) -> None:
    assert lint(nn.Sequential(ro.nn.Cutout(0.8), nn.Conv2d(3, 4, 1)), given) == []


def test_noise_on_weights_is_not_directly_before_what_follows() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.norm = ro.nn.WeightDrop(nn.LSTM(8, 8), 0.2), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.lstm(x)[0])

    assert lint(Net(), TOKENS) == []


def test_sparse_tensors_may_be_in_between() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(8)
            self.register_buffer("edges", torch.eye(len(VECTORS)).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(torch.sparse.mm(self.edges, self.noise(x)))

    assert lint(Graph(), VECTORS) == []


def test_layers_with_the_same_finding_share_a_line() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 4), nn.Dropout(1.0))
    assert len(lint(model)) == 2
    assert str(lint(model)) == "1, 3: p = 1 drops everything; use a smaller p [too-strong]"


def test_noise_in_recurrent_and_attention_layers_is_as_it_should_be() -> None:
    noises = {"layer_noise": ro.noise("rotation-sequence", 0.2), "weight_drop": 0.1}
    assert lint(ro.nn.NoisyLSTM(8, 8, num_layers=2, **noises), TOKENS) == []
    assert lint(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), TOKENS) == []


def test_what_could_not_be_looked_at_is_said() -> None:
    class Branching(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.mean() < 1e9 else x

    model = Branching(nn.Dropout(0.5), nn.BatchNorm1d(8))
    (finding,) = lint(model)
    assert finding.rule == "not-checked"
    assert "give example_inputs" in str(finding)
    assert [finding.rule for finding in lint(model, VECTORS)] == ["noise-before-normalisation"]
    one = lint(nn.Sequential(ro.nn.CentredDropout(0.2)), VECTORS[:1])
    assert [finding.rule for finding in one] == ["mean-of-one-example", "not-checked"]
    assert "ValueError: center='batch' needs more than one value" in str(one)


@pytest.mark.parametrize(
    ("noise", "given", "message"),
    [
        (ro.RotationOut2d(0.2), VECTORS, "RotationOut2d takes (N, C, H, W) or (C, H, W), got 2 dimensions"),
        (ro.RotationOutSequence(0.2), IMAGES, "sequences are (T, N, C), (T, C) or packed, got 4 dimensions"),
        (ro.nn.CentredDropout(0.2, dim=3), VECTORS, "dim = 3 does not exist in a tensor with 2 dimensions"),
        (ro.RotationOut(0.2), VECTORS[:, :1], "has size 1, but a rotation needs at least 2 features"),
    ],
)
def test_what_a_noise_refuses_is_a_finding(noise: nn.Module, given: Tensor, message: str) -> None:
    (finding,) = lint(nn.Sequential(nn.Identity(), noise), given)
    assert finding.rule == "not-checked"
    assert message in finding.message


def test_a_model_that_fails_in_eval_mode_alone_is_told_once() -> None:
    class Untested(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                raise ValueError("no eval mode yet")
            return super().forward(x)

    (finding,) = lint(nn.Sequential(nn.Dropout(0.5), Untested(8, 8)), VECTORS)
    assert finding.message == "the model failed on example_inputs with ValueError: no eval mode yet"


def test_packed_sequences_are_one_input() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(5, 8), torch.randn(3, 8)])
    lstm = ro.nn.NoisyLSTM(8, 8, num_layers=2, layer_noise=ro.RotationOutSequence(0.2, center="batch"))
    assert [finding.rule for finding in lint(lstm, packed)] == ["mean-sees-later-steps"]


def test_findings_read_as_lines() -> None:
    found = lint(nn.Sequential(nn.Dropout(1.0), nn.BatchNorm1d(8, momentum=None)), VECTORS)
    lines = str(found).splitlines()
    assert len(lines) == len(found) == 3
    assert lines[1] == "0: p = 1 drops everything; use a smaller p [too-strong]"


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), ro.RotationOut(0.2)).eval()
    model[1].train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    for given in (VECTORS, VECTORS[:, :3], None):  # the second is an error inside
        lint(model, given)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert [m.training for m in model] == [False, True, False, False]
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("causal", [True, False])
def test_a_transformer_is_causal_by_how_it_is_called(causal: bool) -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.noise = nn.Embedding(10, 8), ro.RotationOut(0.2, center="batch")
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1)) if causal else None
            return self.layer(self.noise(self.words(x)), src_mask=mask, is_causal=causal)

    found = [f for f in lint(Language(), torch.randint(10, (2, 5))) if "later ones included" in f.message]
    assert [finding.layer for finding in found] == (["noise"] if causal else [])


@pytest.mark.parametrize(
    "layer", [nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), nn.GRUCell(8, 8)], ids=["decoder", "cell"]
)
def test_decoders_and_cells_are_causal(layer: nn.Module) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise, self.layer = ro.RotationOut(0.2, center="batch"), layer

        def forward(self, x: Tensor) -> Tensor:
            y = self.noise(x)
            return self.layer(y, y) if isinstance(layer, nn.TransformerDecoderLayer) else self.layer(y[:, 0])

    (finding,) = lint(Steps(), TOKENS)
    assert (finding.layer, finding.rule) == ("noise", "mean-sees-later-steps")
    assert "but layer is causal" in finding.message


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mark", ["is_causal", "causal", "is_decoder"])
def test_a_module_may_say_that_it_is_causal(mark: str, causal: bool) -> None:
    model = nn.Sequential(ro.RotationOut(0.2, center="batch"), nn.Linear(8, 8))
    marked = model[1] if mark != "is_decoder" else SimpleNamespace()
    setattr(marked, mark, causal)
    model[1].config = marked if mark == "is_decoder" else None
    assert [finding.rule for finding in lint(model, TOKENS)] == ["mean-sees-later-steps"] * causal


def test_batchnorm_without_running_statistics_records_nothing() -> None:
    """So there is nothing to recalibrate: it divides by what it is given, as LayerNorm does."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8, track_running_stats=False))
    (finding,) = (one for one in lint(model, VECTORS) if one.rule == "noise-before-normalisation")
    assert "features come out smaller in training" in str(finding)
    assert "recalibrate" not in str(finding)
