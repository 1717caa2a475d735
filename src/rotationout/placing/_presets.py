"""The placements of the paper's experiments, for residual networks whose stages are called layer1, layer2 and so on.

ResNets of torchvision and timm have these names, and most that are written by hand. Noise goes before the convolutions
of the residual branches, after the ReLU (the paper's "Dropout-b", section 3.2), never on the shortcut.
"""

from __future__ import annotations

import re

from torch import nn

from .. import strength
from ..nn import RotationOut, RotationOut2d
from ._insert import Noises, place, plan
from ._report import Report
from ._select import Predicate, candidates, check_model, near

__all__ = ["insert_blocks", "insert_in_stages"]

_SHORTCUTS = ("downsample", "shortcut", "skip", "residual", "identity", "proj")


def insert_in_stages(model: nn.Module, noise: Noises, *, last: int = 1) -> Report:
    """Place a copy of ``noise`` before every convolution that a block of the last stages of a ResNet holds itself.

    The paper's placement on CIFAR100: the last stage of ResNet110, the last two of WideResNet28-10. Convolutions inside
    other modules of a block are left out.

    Args:
        model: a ResNet or WideResNet of torchvision or timm, or one with stages of the same names, changed in place.
        noise: a noise for maps, e.g. ``RotationOut2d(0.5)``, or a function of (name, module) that makes one.
        last: how many stages, counted from the end.

    Returns:
        A report of what was placed where; `rotationout.remove` undoes it.

    >>> import rotationout as ro
    >>> block = lambda: nn.ModuleDict({"conv1": nn.Conv2d(8, 8, 3), "shortcut": nn.Conv2d(8, 8, 1)})
    >>> model = nn.ModuleDict({"layer1": nn.Sequential(block()), "layer2": nn.Sequential(block(), block())})
    >>> [change.name for change in insert_in_stages(model, ro.RotationOut2d(0.2)).changed]
    ['layer2.0.conv1', 'layer2.1.conv1']
    """
    return place(plan(model, noise, before=nn.Conv2d, where=_in_branches(model, _stages(model, last))))


def insert_blocks(
    model: nn.Module,
    p: float = 0.2,
    *,
    block_sizes: tuple[int, ...] = (7, 3),
    coverage: float | None = None,
    linear: bool = True,
) -> Report:
    """Turn features inside random blocks, before the convolutions of the last stages of a ResNet.

    The paper's placement on ImageNet: blocks of 7 × 7 in Res3 and 3 × 3 in Res4, and a rotation before the last linear
    layer, all with λ = 1/4.

    Args:
        model: as in `insert_in_stages`.
        p: drop probability of the Dropout that is as strong as the rotations inside the blocks.
        block_sizes: a size for each of the last stages, in their order.
        coverage: the probability with which a position lies in a block, 0.1 if not given (the paper does not say).
        linear: a `RotationOut` before the last linear layer too.

    Returns:
        A report of what was placed where; `rotationout.remove` undoes it.

    >>> block = lambda: nn.Sequential(nn.ModuleDict({"conv1": nn.Conv2d(8, 8, 3)}))
    >>> model = nn.ModuleDict({"layer3": block(), "layer4": block(), "fc": nn.Linear(8, 2)})
    >>> [(change.name, getattr(change.noise, "block_size", None)) for change in insert_blocks(model).changed]
    [('layer3.0.conv1', 7), ('layer4.0.conv1', 3), ('fc', None)]
    """
    if isinstance(p, nn.Module):
        raise TypeError(
            f"insert_blocks makes rotations of strength p, a number, got {p!r}; insert_in_stages takes a noise"
        )
    if not isinstance(block_sizes, tuple | list):
        raise TypeError(f"block_sizes must be a size for each of the last stages, e.g. (7, 3), got {block_sizes!r}")
    stages = _stages(model, len(block_sizes))
    plans = []
    for stage, size in zip(stages, block_sizes, strict=True):
        noise = RotationOut2d(p, block_size=size, coverage=coverage)
        plans.append(plan(model, noise, before=nn.Conv2d, where=_in_branches(model, [stage])))
    if linear:
        plans.append(plan(model, RotationOut(p), before=_last_linear(model)))
    return place(([slot for slots, _ in plans for slot in slots], [one for _, left in plans for one in left]))


def _stages(model: nn.Module, last: int) -> list[str]:
    """The names of the last stages, in their order."""
    check_model(model)
    last = strength.check_integer("last, the number of stages,", last, 1)
    names = [candidate.name for candidate in candidates(model)]
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        stage = re.fullmatch(r"((?:.*\.)?layer)(\d+)", name)
        if stage:
            numbered.setdefault(stage[1], []).append((int(stage[2]), name))
    if len(numbered) != 1:
        found = f"{len(numbered)} series of such names" if numbered else near("layer4", names)
        raise ValueError(
            f"the stages of one ResNet are called layer1, layer2, …, but here: {found}; "
            "say where with rotationout.insert(model, noise, before=nn.Conv2d, within=…)"
        )
    stages = [name for _, name in sorted(next(iter(numbered.values())))]
    if last > len(stages):
        raise ValueError(f"asked for the last {last} stages, but the model has {len(stages)}: {', '.join(stages)}")
    return stages[-last:]


def _in_branches(model: nn.Module, stages: list[str]) -> Predicate:
    """Whether a module is a direct child of a block of these stages, and not its shortcut.

    Convolutions further down, e.g. those of squeeze-and-excitation, do not count; an error if there are no others.
    """
    block = "|".join(map(re.escape, stages))

    def belongs(name: str, module: nn.Module) -> bool:
        child = re.fullmatch(rf"(?:{block})\.\d+\.([^.]+)", name)
        return child is not None and not any(word in child[1] for word in _SHORTCUTS)

    if not any(belongs(one.name, one.module) for one in candidates(model) if isinstance(one.module, nn.Conv2d)):
        raise ValueError(
            f"no block of {' and '.join(stages)} holds a convolution itself, as {stages[0]}.0.conv1 would be; choose "
            f"them, without those of shortcuts: rotationout.insert(model, noise, before=nn.Conv2d, "
            f"within={stages[0]!r}, where=…)"
        )
    return belongs


def _last_linear(model: nn.Module) -> str:
    linear = [one for one in candidates(model) if isinstance(one.module, nn.Linear)]
    if not linear or not linear[-1].name:
        raise ValueError("the model has no linear layer to place noise before; linear=False leaves it out")
    last, size = linear[-1].name, linear[-1].module.in_features
    owner = last.rpartition(".")[0]
    if isinstance(model.get_submodule(owner), nn.Sequential):
        return last
    beside = [
        one.name
        for one in linear[:-1]
        if one.name.rpartition(".")[0] == owner and one.module.in_features == size != one.module.out_features
    ]
    if beside:  # heads side by side: their inputs are of one size, which is the size of no output
        raise ValueError(
            f"the model has several heads, {', '.join([*beside, last])}: linear=False leaves them out, and "
            "rotationout.insert places noise before those that you name"
        )
    return last
