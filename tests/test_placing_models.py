"""Models of torchvision, timm and transformers: noise goes where it acts, and nothing else changes. Random weights."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rotationout as ro

MAPS, VECTORS = ro.RotationOut2d(0.3, center=None), ro.RotationOut(0.3)
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
TOKENS = {"input_ids": torch.arange(12).view(2, 6)}


def need(package: str) -> Any:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return importlib.import_module(package)


def vision(name: str, **options: Any) -> nn.Module:
    return getattr(need("torchvision").models, name)(**options)


def from_timm(name: str, **options: Any) -> nn.Module:
    return need("timm").create_model(name, **options)


def bert(**options: Any) -> nn.Module:
    hf = need("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=20, **sizes, **options))


def gpt2() -> nn.Module:
    hf = need("transformers")
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=16, **ends))


def answer(model: nn.Module, x: Any) -> Tensor:
    output = model(**x) if isinstance(x, dict) else model(x)
    return output if isinstance(output, Tensor) else output.logits


CASES: dict[str, tuple[Callable[[], nn.Module], Any, nn.Module, dict[str, Any], int, int]] = {
    "torchvision resnet": (lambda: vision("resnet18"), IMAGES, MAPS, {"before": nn.Conv2d}, 20, 0),
    "torchvision wide resnet": (
        lambda: vision("wide_resnet50_2"),
        IMAGES,
        MAPS,
        {"after": nn.BatchNorm2d, "within": ["layer3", "layer4"]},
        29,
        0,
    ),
    "torchvision convnext, maps": (lambda: vision("convnext_tiny"), IMAGES, MAPS, {"before": nn.Conv2d}, 22, 0),
    "torchvision convnext, tokens": (lambda: vision("convnext_tiny"), IMAGES, VECTORS, {"before": nn.Linear}, 37, 0),
    "torchvision efficientnet": (lambda: vision("efficientnet_b0"), IMAGES, MAPS, {"before": nn.Conv2d}, 81, 0),
    "torchvision vit": (
        lambda: vision("vit_b_16", image_size=64),
        IMAGES,
        VECTORS,
        {"before": nn.Linear},
        25,
        12,  # MultiheadAttention.out_proj
    ),
    "torchvision swin": (lambda: vision("swin_t"), IMAGES, VECTORS, {"before": nn.Linear}, 28, 24),
    "timm resnet": (lambda: from_timm("resnet18"), IMAGES, MAPS, {"before": nn.Conv2d}, 20, 0),
    "timm convnext": (
        lambda: from_timm("convnext_atto"),
        IMAGES,
        MAPS,
        {"before": nn.Conv2d, "within": "stages"},
        39,
        0,
    ),
    "timm efficientnet": (lambda: from_timm("efficientnet_b0"), IMAGES, MAPS, {"before": nn.Conv2d}, 81, 0),
    "timm vit": (
        lambda: from_timm("vit_tiny_patch16_224", img_size=64),
        IMAGES,
        VECTORS,
        {"before": nn.Linear, "within": "blocks"},
        48,
        0,
    ),
    "timm eva": (
        lambda: from_timm("eva02_tiny_patch14_224", img_size=56),
        IMAGES[..., :56, :56],
        VECTORS,
        {"before": nn.Linear, "within": "blocks.0", "example_inputs": IMAGES[..., :56, :56]},
        3,
        1,  # qkv, whose weights are read
    ),
    "bert": (bert, TOKENS, VECTORS, {"before": nn.Linear}, 14, 0),
    "bert layers": (bert, TOKENS, VECTORS, {"after": "bert.encoder.layer.?", "dim": -1}, 2, 0),
    "gpt-2": (gpt2, TOKENS, VECTORS, {"before": ["*.c_attn", "*.c_proj", "*.c_fc"]}, 8, 0),
    "gpt-2 blocks": (gpt2, TOKENS, VECTORS, {"before": "transformer.h.?", "dim": -1}, 2, 0),
}


@pytest.mark.filterwarnings("ignore:The parameter 'pretrained'")
@pytest.mark.parametrize("name", CASES)
def test_noise_acts_everywhere_it_was_placed_and_nothing_else_changes(name: str) -> None:
    make, x, noise, places, count, left = CASES[name]
    model = make().eval()
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():  # a head that starts at zero would hide everything
            nn.init.normal_(weight, std=0.05)
    keys = list(model.state_dict())
    with torch.no_grad():
        still = answer(model, x)
        report = ro.insert(model, noise, **places)
        assert (len(report), len(report.left)) == (count, left)
        assert list(model.state_dict()) == keys
        assert torch.equal(answer(model, x), still)
        acted: set[nn.Module] = set()
        for placed in report.noises:
            placed.register_forward_hook(lambda module, args, output: acted.add(module))
        with ro.sampling(model):
            assert not torch.equal(answer(model, x), still)
        assert acted == set(report.noises), "noise that never acts is worse than none"
        assert len(ro.remove(model)) == count
        assert torch.equal(answer(model, x), still)


SWAPS: dict[str, tuple[Callable[[], nn.Module], Any, int, int]] = {
    "alexnet": (lambda: vision("alexnet"), None, 2, 0),
    "googlenet": (lambda: vision("googlenet", aux_logits=False, init_weights=False), IMAGES, 1, 0),
    "torchvision vit": (lambda: vision("vit_b_16", image_size=64, dropout=0.1, attention_dropout=0.1), None, 37, 12),
    "timm vit": (
        lambda: from_timm("vit_tiny_patch16_224", img_size=64, proj_drop_rate=0.1, attn_drop_rate=0.1),
        None,
        36,
        14,
    ),
    "timm vit, seen": (
        lambda: from_timm(
            "vit_tiny_patch16_224", img_size=64, proj_drop_rate=0.1, attn_drop_rate=0.1, pos_drop_rate=0.1
        ),
        IMAGES,
        37,
        13,
    ),
    "bert": (bert, None, 6, 2),
    "bert, seen": (bert, TOKENS, 6, 2),
    "bert, eager attention, seen": (lambda: bert(attn_implementation="eager"), TOKENS, 6, 2),
    "gpt-2": (gpt2, None, 5, 2),
    "gpt-2, seen": (gpt2, TOKENS, 5, 2),
}


@pytest.mark.parametrize("name", SWAPS)
def test_swap_takes_hidden_states_and_leaves_attention_weights(name: str) -> None:
    make, x, count, left = SWAPS[name]
    model = make()
    report = ro.swap(model, example_inputs=x)
    assert (len(report), len(report.left)) == (count, left)
    assert all(type(noise) is ro.RotationOut for noise in report.noises)
    for owner, module in model.named_modules():
        if owner.endswith(("self.dropout", "attn_dropout", "attn_drop")):
            assert type(module) is nn.Dropout, owner
    if x is not None:
        answer(model.train(), x).sum().backward()


def test_swap_of_drop_block() -> None:
    model = from_timm("resnet18", drop_block_rate=0.1)
    report = ro.swap(model)
    assert {(noise.block_size, round(noise.coverage, 4)) for noise in report.noises} == {(5, 0.025), (3, 0.1)}
    model(IMAGES).sum().backward()  # an in-place ReLU follows
    block = need("torchvision").ops.DropBlock2d(0.2, 7)
    (noise,) = ro.swap(nn.Sequential(block)).noises
    assert (noise.block_size, noise.coverage) == (7, 0.2)


@pytest.mark.parametrize("make", [lambda: vision("resnet50"), lambda: from_timm("resnet50")])
def test_the_papers_placements(make: Callable[[], nn.Module]) -> None:
    model = make()
    report = ro.insert_in_stages(model, ro.RotationOut2d(0.5), last=2)
    assert len(report) == 3 * (6 + 3)
    assert not any("downsample" in change.name for change in report.changed)
    ro.remove(model)
    report = ro.insert_blocks(model)
    sizes = {change.name: getattr(change.noise, "block_size", None) for change in report.changed}
    assert sizes["layer3.0.conv1"] == 7
    assert sizes["layer4.2.conv3"] == 3
    assert list(sizes)[-1] == "fc"
    assert {noise.p for noise in report.noises} == {0.2}, "λ = 1/4"
    model(IMAGES).sum().backward()


def test_a_resnet152_takes_less_than_a_second() -> None:
    with torch.device("meta"):
        model = vision("resnet152")
    start = time.process_time()  # whatever else the machine does
    assert len(ro.insert(model, MAPS, before=nn.Conv2d)) == 155
    assert time.process_time() - start < 1.0


def test_a_model_with_rotations_in_its_code_is_loaded_with_their_strength(tmp_path: Path) -> None:
    """transformers builds on meta, and fills buffers that are in no file with whatever is in memory."""
    hf = need("transformers")

    class Classifier(hf.BertPreTrainedModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.bert, self.drop = hf.BertModel(config), ro.RotationOut(0.1)
            self.post_init()

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    Classifier(hf.BertConfig(vocab_size=20, **sizes)).save_pretrained(tmp_path)
    loaded, x = Classifier.from_pretrained(tmp_path).train(), torch.randn(10, 16)
    outputs = []
    for layer in (loaded.drop, ro.RotationOut(0.1)):
        torch.manual_seed(0)
        outputs.append(layer(x))
    assert torch.equal(*outputs)
