"""The operator's derivatives, once for every implementation.

The operator is linear in x: y = x + K(x − m) with K = tan θ · A. A is skew-symmetric and tan θ is constant along the
features, so the adjoint of I + K is I − K: the same operator with −θ. Backward needs the draw, but not x. Small tensors
on a CPU take `small` instead, an expression that autograd differentiates by itself.

There are three classes for each operator, which share one backward. `_Rotate` is traced under torch.compile;
`_RotateTransformed` adds forward-mode AD and vmap; `_RotateEager`, for everyday use, sets its context in forward, which
torch calls three times faster.

A kernel may return a view. Autograd would refuse to change it in place, as a following ``nn.ReLU(inplace=True)`` does,
so none of the classes returns one: ``.data`` is the same memory, but no view.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from . import opaque, reference, small
from .dispatch import implementation, is_recorded

__all__ = [
    "feature_sum",
    "follow_mean",
    "in_plain_torch",
    "is_tracked",
    "is_transformed",
    "mean_parts",
    "rotate",
    "rotate_centred",
]


def rotate(
    x: Tensor,
    mean: Tensor | None,
    tan: Tensor,
    index: Tensor,
    seed: Tensor | None,
    dim: int,
    *,
    adjoint: bool = False,
    backend: str | None = None,
) -> Tensor:
    """The operator x + tan θ · A(x − m), differentiable in ``x`` and ``mean``; see `reference.rotate`."""
    if in_plain_torch(tan, backend, x, mean):
        return reference.rotate(x, mean, tan, index, seed, dim, adjoint)
    transformed = is_transformed()
    if not transformed:
        kernels = implementation(x, backend)
        if kernels is small or not is_tracked(x, mean):
            return cast(Tensor, kernels.rotate(x, mean, tan, index, seed, dim, adjoint))
    function = _Rotate if torch.compiler.is_compiling() else _RotateTransformed if transformed else _RotateEager
    return function.apply(x, mean, tan, index, seed, dim, adjoint, backend)  # type: ignore[no-any-return, no-untyped-call]


def rotate_centred(
    x: Tensor,
    weight: Tensor | None,
    tan: Tensor,
    index: Tensor,
    seed: Tensor | None,
    dim: int,
    *,
    adjoint: bool = False,
    backend: str | None = None,
) -> Tensor:
    """`rotate` about the mean of ``x`` over every axis but ``dim`` (label eq13), with gradients through that mean.

    With M the averaging projector the operator is I + K(I − M), and its adjoint I − (I − M)K.
    """
    if in_plain_torch(tan, backend, x):
        return reference.rotate_centred(x, weight, tan, index, seed, dim, adjoint)
    transformed = is_transformed()
    if not transformed:
        kernels = implementation(x, backend)
        if kernels is small or not is_tracked(x):
            return cast(Tensor, kernels.rotate_centred(x, weight, tan, index, seed, dim, adjoint))
    eager = _RotateCentredTransformed if transformed else _RotateCentredEager
    function = _RotateCentred if torch.compiler.is_compiling() else eager
    return function.apply(x, weight, tan, index, seed, dim, adjoint, backend)  # type: ignore[no-any-return, no-untyped-call]


def feature_sum(x: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """See `reference.feature_sum`; that one runs if the sum needs a gradient."""
    kernels = reference if is_tracked(x, weight) else _untracked(x)
    return cast(Tensor, kernels.feature_sum(x, weight, dim))


def mean_parts(x: Tensor, dim: int) -> Tensor:
    """See `reference.mean_parts`; without a gradient."""
    return cast(Tensor, _untracked(x).mean_parts(x.detach(), dim))


def follow_mean(running: Tensor, parts: Tensor, momentum: float | Tensor) -> None:
    """See `reference.follow_mean`."""
    _untracked(parts).follow_mean(running, parts, momentum)


def _untracked(x: Tensor) -> ModuleType:
    """The implementation for results that need no gradient."""
    return reference if is_transformed() and not torch.compiler.is_compiling() else implementation(x, None)


def in_plain_torch(tan: Tensor, backend: str | None, *features: Tensor | None) -> bool:
    """Whether every step must be torch's own: for a learned angle, which autograd follows, and for torch.jit.trace."""
    return tan.requires_grad or backend == "reference" or is_recorded() or any(map(_is_batched, features))


def is_transformed() -> bool:
    """Whether torch.compile traces this, or vmap, another of torch.func's transforms or forward-mode AD is at work."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _is_batched(x: Tensor | None) -> bool:
    """Whether x is a batch of gradients, as in ``torch.autograd.grad(…, is_grads_batched=True)``."""
    if x is None or torch.compiler.is_compiling():
        return False
    return bool(torch._C._functorch.is_legacy_batchedtensor(x))


def is_tracked(*tensors: Tensor | None) -> bool:
    """Whether autograd records operations on these tensors; it does not in an ordinary backward pass."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _refuse_tangent(tan: Tensor | None) -> None:
    if tan is not None:
        raise NotImplementedError("forward-mode AD in the angle of a rotation needs backend='reference'")


class _Rotate(Function):
    @staticmethod
    def forward(
        x: Tensor,
        mean: Tensor | None,
        tan: Tensor,
        index: Tensor,
        seed: Tensor | None,
        dim: int,
        adjoint: bool,
        backend: str | None,
    ) -> Tensor:
        kernels = implementation(x, backend)
        output = kernels.rotate(x, mean, tan, index, seed, dim, adjoint)
        return cast(Tensor, output if kernels is opaque else output.clone())  # a compiler fuses the clone

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, mean, tan, index, seed, ctx.dim, ctx.adjoint, ctx.backend = inputs
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.mean_shape, ctx.mean_dtype = (None, None) if mean is None else (mean.shape, mean.dtype)
        ctx.save_for_backward(tan, index, seed)
        ctx.save_for_forward(tan, index, seed)
        ctx.set_materialize_grads(False)  # a missing tangent is None, not zeros

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * 8
        tan, index, seed = ctx.saved_tensors
        wide = grad.to(torch.promote_types(grad.dtype, torch.float32)) if ctx.needs_input_grad[1] else grad
        grad_x = rotate(wide, None, tan, index, seed, ctx.dim, adjoint=not ctx.adjoint, backend=ctx.backend)
        grad_mean = None
        if ctx.needs_input_grad[1]:  # y depends on m through −K m, which is small: rounded numbers would lose it
            grad_mean = (wide - grad_x).movedim(ctx.dim, -1).sum_to_size(ctx.mean_shape).to(ctx.mean_dtype)
        return grad_x.to(grad.dtype), grad_mean, None, None, None, None, None, None


class _RotateTransformed(_Rotate):
    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, mean: Tensor | None, *others: Any) -> Tensor:
        tan, index, seed = ctx.saved_tensors
        _refuse_tangent(others[0])
        if x is None:  # only the mean moves
            x = tan.new_zeros(ctx.shape, dtype=ctx.dtype)
        return rotate(x, mean, tan, index, seed, ctx.dim, adjoint=ctx.adjoint, backend=ctx.backend)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        *operands, _backend = args
        return torch.vmap(reference.rotate, in_dims=in_dims[:-1])(*operands), 0


class _RotateEager(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, mean, tan, index, seed, ctx.dim, ctx.adjoint, ctx.backend = inputs
        ctx.mean_shape, ctx.mean_dtype = (None, None) if mean is None else (mean.shape, mean.dtype)
        ctx.save_for_backward(tan, index, seed)
        ctx.set_materialize_grads(False)
        return cast(Tensor, implementation(x, ctx.backend).rotate(x, mean, tan, index, seed, ctx.dim, ctx.adjoint).data)

    backward = _Rotate.backward


class _RotateCentred(Function):
    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor | None,
        tan: Tensor,
        index: Tensor,
        seed: Tensor | None,
        dim: int,
        adjoint: bool,
        backend: str | None,
    ) -> Tensor:
        kernels = implementation(x, backend)
        output = kernels.rotate_centred(x, weight, tan, index, seed, dim, adjoint)
        return cast(Tensor, output if kernels is opaque else output.clone())  # a compiler fuses the clone

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _x, weight, tan, index, seed, ctx.dim, ctx.adjoint, ctx.backend = inputs
        ctx.save_for_backward(weight, tan, index, seed)
        ctx.save_for_forward(weight, tan, index, seed)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return (None,) * 8
        weight, tan, index, seed = ctx.saved_tensors
        grad_x = rotate_centred(grad, weight, tan, index, seed, ctx.dim, adjoint=not ctx.adjoint, backend=ctx.backend)
        return grad_x, None, None, None, None, None, None, None


class _RotateCentredTransformed(_RotateCentred):
    @staticmethod
    def jvp(ctx: Any, x: Tensor, weight_: None, tan_: Tensor | None, *others: Any) -> Tensor:
        weight, tan, index, seed = ctx.saved_tensors
        _refuse_tangent(tan_)
        return rotate_centred(x, weight, tan, index, seed, ctx.dim, adjoint=ctx.adjoint, backend=ctx.backend)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        *operands, _backend = args
        return torch.vmap(reference.rotate_centred, in_dims=in_dims[:-1])(*operands), 0


class _RotateCentredEager(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, weight, tan, index, seed, ctx.dim, ctx.adjoint, ctx.backend = inputs
        ctx.save_for_backward(weight, tan, index, seed)
        ctx.set_materialize_grads(False)
        return cast(
            Tensor,
            implementation(x, ctx.backend).rotate_centred(x, weight, tan, index, seed, ctx.dim, ctx.adjoint).data,
        )

    backward = _RotateCentred.backward
