"""Checks of what a noise is given (features, a mask, a mean), and the mean of every feature over a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import rotation, strength
from ..kernels.autograd import feature_sum

__all__ = [
    "broadcasts_to",
    "check_batch",
    "check_center",
    "check_dense",
    "check_device",
    "check_features",
    "check_local",
    "check_mean",
    "check_pairs",
    "feature_mean",
    "kind_of",
    "mask_weight",
    "not_floating",
    "processes",
]


def check_features(x: Tensor, dim: int) -> int:
    """Check that ``x`` is a dense floating-point tensor; return its feature axis, counted from the front."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a Tensor, got {kind_of(x)}")
    check_dense(x)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"x must be {not_floating(x)}")
    if x.ndim == 0:
        raise ValueError("x must have a feature axis, got a tensor without dimensions")
    return rotation.resolve_axis("dim", dim, x.ndim)


def check_pairs(x: Tensor, dim: int) -> int:
    """`check_features` for a noise that mixes features, of which there must be two."""
    axis = check_features(x, dim)
    rotation.check_pairs(x.size(axis), dim)
    return axis


def not_floating(x: Tensor) -> str:
    """What a tensor must be instead of one of other numbers, for an error message."""
    way = "torch.view_as_real(x).flatten(-2)" if x.dtype.is_complex else "x.float()"
    return f"a floating-point tensor (16 to 64 bits), got {x.dtype}; convert it first, e.g. {way}"


def kind_of(x: object) -> str:
    """The type of an object that is not a tensor, for an error message, with advice for some types."""
    kind = type(x).__name__
    advice = {
        "Proxy": "; torch.fx can record noise as a layer, such as RotationOut, but not as a function",
        "PackedSequence": "; RotationOutSequence takes packed sequences, as nn.LockedDropout of rotationout does",
        "tuple": "; pass one tensor of it, such as the output in the (output, state) of nn.LSTM and nn.GRU",
        "list": "; pass one tensor, e.g. torch.stack(…)",
        "ndarray": "; convert it first, torch.from_numpy(x)",
    }
    return kind + advice.get(kind, "")


def check_dense(x: Tensor) -> None:
    """Raise a TypeError if ``x`` is nested or sparse."""
    if x.is_nested:
        raise TypeError("x must be a dense tensor, got a nested one; pad it, x.to_padded_tensor(0.0), and give a mask")
    if x.layout is not torch.strided:
        raise TypeError(f"x must be a dense tensor, got {x.layout}; convert it first, e.g. x.to_dense()")


def check_local(x: Tensor) -> None:
    """Raise a TypeError if ``x`` is spread over processes: torch does not mix it with draws, as they are plain."""
    if type(x) is not Tensor and hasattr(x, "to_local"):
        raise TypeError(
            "x must be a plain tensor, got a DTensor; rotate the part that this process has, x.to_local(), or all of "
            "it, x.full_tensor()"
        )


def check_center(center: str | Tensor | None, x: Tensor, axis: int) -> None:
    """Check that ``center`` is None, ``"batch"`` or a mean that fits ``x``."""
    if isinstance(center, Tensor):
        check_mean("center", center, x, axis)
    elif center is not None:
        strength.check_choice("center", center, ("batch",), also="None or a tensor with the mean")


def check_mean(name: str, mean: Tensor, x: Tensor, axis: int) -> None:
    """Check that ``mean`` has a value for every feature of ``x``, on its own last axis."""
    if not isinstance(mean, Tensor) or not mean.is_floating_point():
        kind = mean.dtype if isinstance(mean, Tensor) else type(mean).__name__
        raise TypeError(f"{name} must be a real floating-point tensor, got {kind}")
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], x.size(axis))
    if not broadcasts_to(mean.shape, shape) or mean.shape[-1:] != (x.size(axis),):
        raise ValueError(f"{name} must have shape ({x.size(axis)},) or broadcast to {shape}, got {tuple(mean.shape)}")
    check_device(name, mean, x)


def check_device(name: str, tensor: Tensor, x: Tensor) -> None:
    """Check that ``tensor`` is on the device of ``x``."""
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device} and x on {x.device}; move it with {name}.to({str(x.device)!r})")


def check_batch(x: Tensor, weight: Tensor | None, axis: int, dim: int) -> None:
    """Check that a batch mean is over at least two values: with one, x − m is zero. With a mask nothing is checked."""
    if weight is None and x.numel() == x.size(axis):
        raise ValueError(
            f"center='batch' needs more than one value per feature, got shape {tuple(x.shape)} with the features on "
            f"dim = {dim}: about a mean over one value there would be no noise; use center=None or a running mean"
        )


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of shape ``shape`` can be expanded to ``target``."""
    missing = len(target) - len(shape)
    # Not `n in (1, m)`, which fails under torch.compile where one size is symbolic and the other is not.
    return missing >= 0 and all(n == 1 or n == m for n, m in zip(shape, target[missing:], strict=True))


def mask_weight(mask: Tensor, x: Tensor, axis: int) -> Tensor:
    """A mask as fp32 weights of the rows of ``x``: 1 where there are features, 0 at padding."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor, True where there are features, got {kind}")
    leading = x.shape[:axis] + x.shape[axis + 1 :]
    if not broadcasts_to(mask.shape, leading):
        raise ValueError(
            f"mask must broadcast to {tuple(leading)}, the shape of x without its feature axis, got {tuple(mask.shape)}"
        )
    check_device("mask", mask, x)
    return mask.to(torch.float32).expand(leading)


def processes() -> int:
    """How many data-parallel processes there are."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def feature_mean(x: Tensor, weight: Tensor | None, axis: int, *, sync: bool) -> tuple[Tensor, Tensor | int]:
    """The mean of every feature over all other axes, rows weighted by ``weight`` (leading shape), and how many rows.

    With ``sync`` it is taken over all data-parallel processes, and its gradient is summed over them too.
    """
    total = feature_sum(x, weight, axis)
    together = sync and processes() > 1
    count = x.numel() // x.size(axis)
    if weight is None and not together:
        return total / max(count, 1), count
    rows = torch.full((1,), count, device=x.device) if weight is None else weight.sum().view(1)
    if together:
        from torch.distributed.nn.functional import all_reduce

        reduced = all_reduce(torch.cat([total, rows.to(total.dtype)]))
        total, rows = reduced[:-1], reduced[-1:]
    return total / rows.clamp(min=1), rows
