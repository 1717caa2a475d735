"""`torch.nn.LSTM` and `torch.nn.GRU` with noises: on inputs, between layers, on outputs and on recurrent weights."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from .. import strength
from ..functional.sequences import Sequences
from .arguments import checked
from .base import recorded
from .stack_noise import disturb, noise_for
from .weight_drop import WeightDrop, check_stored

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NoisyGRU", "NoisyLSTM"]

NO_DROPOUT = {"dropout": "instead of torch's dropout=p give the keyword layer_noise=nn.Dropout(p), or another noise"}


class _NoisyStack(nn.Module):
    """The base of both: a one-layer module for every layer, which cuDNN runs, and the noises around them."""

    _module: ClassVar[Callable[..., nn.RNNBase]]
    _states: ClassVar[tuple[str, ...]]

    @checked(NO_DROPOUT)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        *,
        bidirectional: bool = False,
        proj_size: int = 0,
        input_noise: nn.Module | None = None,
        layer_noise: nn.Module | None = None,
        output_noise: nn.Module | None = None,
        weight_drop: float = 0.0,
        variational: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size = strength.check_integer("input_size", input_size, 1)
        self.hidden_size = hidden_size = strength.check_integer("hidden_size", hidden_size, 1)
        self.num_layers = num_layers = strength.check_integer("num_layers", num_layers, 1)
        self.bias = bias
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        self.proj_size = proj_size = strength.check_integer("proj_size", proj_size, 0)
        self.input_noise = noise_for("input_noise", input_noise, batch_first)
        self.layers = nn.ModuleList()
        self.layer_noises = nn.ModuleList()
        self.output_noise = noise_for("output_noise", output_noise, batch_first)
        between = noise_for("layer_noise", layer_noise, batch_first)
        if layer_noise is not None and num_layers == 1:  # torch warns of its dropout likewise
            warnings.warn(
                "layer_noise is between layers, but num_layers is 1: it will never act; see input_noise, output_noise",
                stacklevel=3,  # past the decorator that checks the arguments
            )
        for k in range(num_layers):
            size = input_size if k == 0 else (1 + bidirectional) * (proj_size or hidden_size)
            layer = self._module(size, hidden_size, **self._options(), device=device, dtype=dtype)
            self.layers.append(WeightDrop(layer, weight_drop, variational=variational))
            if k > 0:
                self.layer_noises.append(copy.deepcopy(between))
        if device is not None:  # the noises may be on another device
            self.to(device)

    def _options(self) -> dict[str, Any]:
        """What the layers have in common, as keyword arguments of `torch.nn.LSTM` or `torch.nn.GRU`."""
        options = {"bias": self.bias, "batch_first": self.batch_first, "bidirectional": self.bidirectional}
        return {**options, "proj_size": self.proj_size} if self.proj_size else options

    def _modules_within(self) -> Iterator[nn.RNNBase]:
        return (cast(WeightDrop, layer).module for layer in self.layers)

    @classmethod
    def from_module(cls, module: nn.RNNBase, **noises: Any) -> Self:
        """The network ``module`` with noises: of the same sizes and options, with copies of its weights.

        Args:
            module: a `torch.nn.LSTM` for a `NoisyLSTM`, a `torch.nn.GRU` for a `NoisyGRU`. Its ``dropout``, if any,
                becomes the noise between layers unless another one is given.
            noises: ``input_noise``, ``layer_noise``, ``output_noise``, ``weight_drop`` and ``variational``.
        """
        kind = cast(type[nn.RNNBase], cls._module)
        if not isinstance(module, kind):
            raise TypeError(f"{cls.__name__} is made from a nn.{kind.__name__}, got {type(module).__name__}")
        check_stored(module, f"{cls.__name__}.from_module copies parameters")
        if any(name.startswith("rotationout_") for name in module._modules):  # the slots of `rotationout.insert`
            raise ValueError(
                f"{cls.__name__}.from_module does not copy the noise inserted at this {type(module).__name__}: take it "
                "away (rotationout.remove), and give the noises as input_noise and output_noise"
            )
        if module.dropout > 0 and module.num_layers > 1:
            noises.setdefault("layer_noise", nn.Dropout(module.dropout))
        weight = next(module.parameters())
        stack = cls(
            module.input_size,
            module.hidden_size,
            module.num_layers,
            module.bias,
            module.batch_first,
            bidirectional=module.bidirectional,
            proj_size=module.proj_size,
            device=weight.device,
            dtype=weight.dtype,
            **noises,
        )
        for name, parameter in module.named_parameters():
            _copy(parameter, stack.get_parameter(_name_within(name)))
        return stack.train(module.training)

    def to_module(self) -> nn.RNNBase:
        """The network without its noises: one `torch.nn.LSTM` or `torch.nn.GRU` with copies of the weights."""
        for layer in self._modules_within():
            check_stored(layer, f"{type(self).__name__}.to_module copies parameters")
        weight = next(self.layers.parameters())
        sizes = self.input_size, self.hidden_size, self.num_layers
        module = self._module(*sizes, **self._options(), device="meta", dtype=weight.dtype)  # draws no weights
        module.to_empty(device=weight.device)
        for name, parameter in module.named_parameters():
            _copy(self.get_parameter(_name_within(name)), parameter)
        return module.train(self.training)

    def flatten_parameters(self) -> None:
        """Call ``flatten_parameters()`` of every layer; wanted after a deep copy on CUDA."""
        for module in self._modules_within():
            module.flatten_parameters()

    def forward(self, input: Sequences, hx: Any = None) -> tuple[Sequences, Any]:
        """As `torch.nn.LSTM` or `torch.nn.GRU`: sequences and initial states in, sequences and final states out."""
        if isinstance(input, Proxy):
            return cast(tuple[Sequences, Any], recorded(self, input, hx))
        initial = self._split(hx, input)
        x = disturb(self.input_noise, input)
        final = []
        for k, layer in enumerate(self.layers):
            if k > 0:
                x = disturb(self.layer_noises[k - 1], x)
            x, state = layer(x, initial[k])
            final.append(state)
        return disturb(self.output_noise, x), self._join(final)

    def _split(self, hx: Any, input: Tensor | PackedSequence) -> list[Any]:
        """Split ``hx``, the initial states of all layers, into those of each layer."""
        if hx is None:
            return [None] * self.num_layers
        states = hx if len(self._states) > 1 else (hx,)
        if not isinstance(states, tuple | list) or len(states) != len(self._states):
            raise TypeError(f"hx must be a tuple ({', '.join(self._states)}), got {type(hx).__name__}")
        rows, batch = self.num_layers * (1 + self.bidirectional), self._batch_shape(input)
        for name, state in zip(self._states, states, strict=True):
            size = self.proj_size or self.hidden_size if name == "h_0" else self.hidden_size
            if not isinstance(state, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(state).__name__}")
            if state.shape != (rows, *batch, size):
                layout = "(layers × directions, N, size)" if batch else "(layers × directions, size)"
                raise RuntimeError(f"{name} must be {layout} = {(rows, *batch, size)}, got {tuple(state.shape)}")
        pieces = [state.chunk(self.num_layers) for state in states]
        return list(zip(*pieces, strict=True)) if len(pieces) > 1 else list(pieces[0])

    def _batch_shape(self, input: Tensor | PackedSequence) -> tuple[int, ...]:
        """The batch size as a shape: (N,), or () for a single sequence."""
        if isinstance(input, PackedSequence):
            return (int(input.batch_sizes[0]),)
        return (input.size(0 if self.batch_first else 1),) if input.ndim == 3 else ()

    def _join(self, final: list[Any]) -> Any:
        """The final states of all layers as `torch.nn.LSTM` or `torch.nn.GRU` orders them."""
        if len(self._states) == 1:
            return torch.cat(final)
        # torch (2.11) cannot export a torch.cat of what its LSTMs return to ONNX, unless it is reshaped.
        return tuple(torch.cat([s.reshape(-1, *s.shape[1:]) for s in states]) for states in zip(*final, strict=True))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[prefix + _name_within(key.removeprefix(prefix))] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


class NoisyLSTM(_NoisyStack):
    """A `torch.nn.LSTM` with noises on its inputs, between its layers, on its outputs and on its recurrent weights.

    It is called like a `torch.nn.LSTM` and returns the same; without noise, and in eval mode, it equals one with the
    same weights. Its state_dict has keys of its own, which do not depend on the noises, but it also loads the
    state_dict of a `torch.nn.LSTM`. `from_module` and `to_module` convert between the two.

    A noise is any module that takes the tensors at its place, and every place gets a copy of its own. Noises with an
    attribute ``batch_first`` are given that of the stack, and packed sequences as they are; others must take features
    on the last axis, and get the rows of a packed sequence. Noises in a `torch.nn.Sequential` act one after the other.

    Args:
        input_size: features of the input.
        hidden_size: features of the hidden state.
        num_layers: how many layers.
        bias: give the layers biases.
        batch_first: tensors are (N, T, C) instead of (T, N, C).
        bidirectional: run every layer in both directions.
        proj_size: features to which the hidden state is projected; 0 for no projection.
        input_noise: the noise on the input.
        layer_noise: the noise between layers.
        output_noise: the noise on the output; the final states are left alone.
        weight_drop: drop probability of the recurrent weights, see `WeightDrop`.
        variational: drop rows of the recurrent weights instead of single ones.
        device: the device of the network.
        dtype: the dtype of its weights.

    >>> from rotationout.nn import RotationOutSequence
    >>> lstm = NoisyLSTM(40, 64, num_layers=2, layer_noise=RotationOutSequence(0.2), weight_drop=0.1)
    >>> output, (h_n, c_n) = lstm(torch.randn(7, 3, 40))
    >>> output.shape, h_n.shape
    (torch.Size([7, 3, 64]), torch.Size([2, 3, 64]))
    """

    _module = nn.LSTM
    _states = ("h_0", "c_0")


class NoisyGRU(_NoisyStack):
    """A `torch.nn.GRU` with noises; see `NoisyLSTM`. There are no projections.

    >>> from rotationout.nn import LockedDropout
    >>> gru = NoisyGRU(40, 64, num_layers=2, input_noise=LockedDropout(0.2))
    >>> output, h_n = gru(torch.randn(7, 3, 40))
    >>> output.shape, h_n.shape
    (torch.Size([7, 3, 64]), torch.Size([2, 3, 64]))
    """

    _module = nn.GRU
    _states = ("h_0",)


def _name_within(name: str) -> str:
    """The name in a stack of a parameter of a multi-layer `torch.nn.LSTM`; any other name stays as it is.

    >>> _name_within("weight_hh_l2_reverse")
    'layers.2.module.weight_hh_l0_reverse'
    """
    return re.sub(r"^((?:weight|bias)_\w\w_l)(\d+)(_reverse)?$", r"layers.\2.module.\g<1>0\3", name)


@torch.no_grad()
def _copy(source: nn.Parameter, target: nn.Parameter) -> None:
    target.copy_(source).requires_grad_(source.requires_grad)
