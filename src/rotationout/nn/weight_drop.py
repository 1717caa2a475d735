"""Weight drop: dropout on the hidden-to-hidden weights of a recurrent network, drawn once per call."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.parametrize import is_parametrized

from ..functional.sequences import dropout_multiplier
from .base import Noise, recorded

__all__ = ["WeightDrop", "check_stored"]


class WeightDrop(Noise):
    """Drops hidden-to-hidden weights of a `torch.nn.LSTM`, `torch.nn.GRU` or `torch.nn.RNN`, all layers and directions.

    Every call in training draws once, so all time steps and all sequences of a batch share the draw, and runs the
    module with the disturbed weights; the module's own weights do not change, and get the gradients. In eval mode and
    at p = 0 the module is called as it is. Inputs and outputs are those of the module.

    *Weight drop* (DropConnect on recurrent weights; Wan et al. 2013, Merity et al. 2017) drops single weights. The
    *variational* form drops rows, as the option of that name in Merity et al.'s public code does: all that one unit of
    a gate receives from h_{t−1}. (Gal and Ghahramani 2016 drop columns: one unit of h_{t−1} for all gates, which is
    noise on the state.) Either way the rest is divided by 1 − p, so that E[W̃] = W; the variance of the multiplier is
    λ = p / (1 − p).

    Args:
        module: the recurrent module, kept as ``self.module``; state_dict keys are ``module.weight_hh_l0``, ….
        p: drop probability; it may be changed at any time.
        variational: drop rows instead of single weights.

    >>> lstm = WeightDrop(nn.LSTM(40, 64, num_layers=2, bidirectional=True), p=0.2)
    >>> output, (h_n, c_n) = lstm(torch.randn(7, 3, 40))
    >>> output.shape
    torch.Size([7, 3, 128])
    """

    module: nn.RNNBase
    _traced = "leaves the noise out in eval mode, and fails in training mode unless p is 0"

    def __init__(self, module: nn.RNNBase, p: float = 0.5, *, variational: bool = False) -> None:
        _check_recurrent(module)
        super().__init__(p, "dropout")
        self.module = module
        self.variational = variational
        self._put_scale(next(module.parameters()).device)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Call the module, in training with disturbed weights."""
        if isinstance(input, Proxy):
            return recorded(self, input, hx)
        if not self.training or not self._active:
            return self.module(input, hx)
        _check_own(self.module)
        names = self.module._flat_weights_names
        weights = self._weights()
        if weights[0].is_cuda and not _is_flat(weights):  # e.g. after a deep copy
            self.module.flatten_parameters()
        drawn = self.draw()
        if weights[0].is_cuda and _is_flat(weights):
            drawn = _laid_out_like(weights, drawn)
        with _kernels_given(self.module, drawn):
            replaced = dict(zip(names, drawn, strict=True))
            # Weights that are tied to each other have draws of their own too.
            return torch.func.functional_call(self.module, replaced, (input, hx), tie_weights=False)

    def draw(self) -> list[Tensor]:
        """The weights for one call, in the order of torch's kernels; in training the weight_hh are disturbed."""
        if not self.training or not self._active:
            return self._weights()
        named = zip(self.module._flat_weights_names, self._weights(), strict=True)
        return [self._drop(weight) if name.startswith("weight_hh") else weight for name, weight in named]

    def _weights(self) -> list[Tensor]:
        return [getattr(self.module, name) for name in self.module._flat_weights_names]

    def _drop(self, weight: Tensor) -> Tensor:
        shape = (weight.size(0), 1) if self.variational else weight.shape
        return weight * dropout_multiplier(shape, self._scale_for(weight), weight)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{super().extra_repr()}, variational={self.variational}"


def _check_recurrent(module: object) -> None:
    if isinstance(module, WeightDrop):
        raise TypeError("module is wrapped in a WeightDrop already; set the p of that instead of wrapping it twice")
    if isinstance(module, nn.RNNBase):
        check_stored(module, "WeightDrop replaces parameters")
        return
    hint = "wrap a nn.LSTM, nn.GRU or nn.RNN, which take whole sequences: every call has a draw of its own"
    if isinstance(module, nn.Module) and any(isinstance(part, nn.RNNBase) for part in module.modules()):
        hint = "wrap the nn.LSTM, nn.GRU or nn.RNN inside it"
    raise TypeError(f"WeightDrop takes a recurrent module, got {type(module).__name__}; {hint}")


def _check_own(module: nn.RNNBase) -> None:
    """Raise the error of `_check_recurrent` if the weights have become computed ones since the module was wrapped.

    What computes them undoes the noise before every call, or writes it into the parameters that they come from. Weights
    that are no parameters for the time of a call, as with FSDP, are no trouble.
    """
    own, others = module._parameters, module.__dict__
    parametrized = cast(nn.ModuleDict, module.parametrizations) if is_parametrized(module) else ()
    computed = [
        name
        for name in module._flat_weights_names
        if f"{name}_orig" in own  # of prune and spectral_norm
        or f"{name}_g" in own  # of weight_norm
        or (name in own and name in others)  # FSDP with use_orig_params=True: the attribute hides the parameter
        or name in parametrized
    ]
    _refuse(module, computed, "WeightDrop replaces parameters")


def check_stored(module: nn.RNNBase, needed: str) -> None:
    """Raise a TypeError if a weight is no parameter of a recurrent module; ``needed`` says what takes parameters."""
    _refuse(module, [name for name in module._flat_weights_names if name not in module._parameters], needed)


def _refuse(module: nn.RNNBase, computed: list[str], needed: str) -> None:
    if computed:
        raise TypeError(
            f"{needed}, but {', '.join(computed)} of this {type(module).__name__} are computed from others, as "
            "weight_norm does, or FSDP with use_orig_params=True; undo that first"
        )


@contextmanager
def _kernels_given(module: nn.RNNBase, weights: list[Tensor]) -> Iterator[None]:
    """Put ``weights`` into the list from which a recurrent module feeds its kernels, for the time of one call.

    `torch.func.functional_call` replaces parameters, and the module then notices that its list is out of date. On CUDA
    it would repair that by ``flatten_parameters()``, which copies all weights at every call and moves the module's own
    weights into the copy, although autograd may keep them for backward. The list would also keep this call's graph
    alive.
    """
    own = module._flat_weights, module._flat_weight_refs
    references: list[Any] = [weakref.ref(weight) for weight in weights]
    module._flat_weights, module._flat_weight_refs = list(weights), references
    try:
        yield
    finally:
        module._flat_weights, module._flat_weight_refs = own


def _is_flat(weights: list[Tensor]) -> bool:
    """Whether the weights are pieces of one buffer that is theirs alone, as ``flatten_parameters()`` leaves them."""
    total = sum(weight.numel() for weight in weights)
    return (
        len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
        and len({weight.storage_offset() for weight in weights}) == len(weights)
        and all(weight.is_contiguous() for weight in weights)
        and total <= _buffer_size(weights) < 2 * total + 4096  # cuDNN may leave gaps
    )


def _buffer_size(weights: list[Tensor]) -> int:
    return weights[0].untyped_storage().nbytes() // weights[0].element_size()


def _laid_out_like(weights: list[Tensor], drawn: list[Tensor]) -> list[Tensor]:
    """``drawn`` as pieces of one buffer, each where its original lies in the buffer of ``weights``; differentiable.

    cuDNN wants all weights of a module in one buffer, in an order of its own. If they are elsewhere, it gathers them at
    every call, with a warning.
    """
    starts = [int(weight.storage_offset()) for weight in weights]
    ends = [start + weight.numel() for start, weight in zip(starts, weights, strict=True)]
    order = sorted(range(len(weights)), key=starts.__getitem__)
    pieces: list[Tensor] = []
    filled = 0
    for i in order:
        pieces += [drawn[i].new_zeros(starts[i] - filled), drawn[i].flatten()]
        filled = ends[i]
    pieces.append(drawn[0].new_zeros(_buffer_size(weights) - filled))
    laid = torch.cat(pieces).split([piece.numel() for piece in pieces])
    return [laid[2 * order.index(i) + 1].view_as(weight) for i, weight in enumerate(weights)]
