"""A place for a noise before or after a module: a submodule of it under a reserved name, and a forward hook.

A wrapper or a subclass would lose some of the following. The parameters, the keys of a state_dict and the attributes of
the module do not change. The noise follows ``train()``, ``eval()`` and ``to()`` and is found by ``modules()``. Copies
and pickles include it, as the hook is a function of this file that looks the noise up. Compilers trace hooks. A module
that is called often, or from many places, has noise at every call.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, cast

from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from ..nn.stack_noise import disturb
from ._report import named

__all__ = ["After", "Before", "Slot", "attach", "check_attached", "detach", "slots"]


class Slot(nn.Module):
    """Holds a noise for a module.

    Args:
        noise: the noise.
        place: the name of the module, for messages.
        dim: the feature axis, if it must be moved to where the noise looks for features; None otherwise.
        dims: how many axes follow the features where the noise looks for them.
        argument: the name of the first argument of the module.
    """

    key: str
    handle: RemovableHandle

    def __init__(self, noise: nn.Module, *, place: str, dim: int | None, dims: int, argument: str) -> None:
        super().__init__()
        self.noise = noise
        self.place = place
        self.dim = dim
        self.dims = dims
        self.argument = argument

    def forward(self, input: Any, *_: Any, **__: Any) -> Any:
        """Return ``input``: some modules call all their children in turn, this one too. The hook applies the noise."""
        return input

    @property
    def attached(self) -> bool:
        """Whether the hook is still there. Tools that rebuild modules keep their children, but lose their hooks."""
        hooks = self.handle.hooks_dict_ref()
        return hooks is not None and self.handle.id in hooks

    def disturb(self, value: Any) -> Any:
        """Apply the noise to a tensor, a packed sequence, or the first entry of a tuple such as an LSTM returns.

        To torch.fx, which gives its Proxy instead of a tensor, the noise is a layer, also in eval mode.
        """
        if isinstance(value, Tensor | Proxy):
            return self.noise(value) if self.dim is None else self._along(value, self.dim)
        if isinstance(value, PackedSequence):
            return disturb(self.noise, value)
        if not isinstance(value, tuple) or not value:
            raise TypeError(
                f"the noise {self.key.rpartition('_')[2]} {named(self.place)} takes a tensor, or a tuple whose first "
                f"entry is one, got {type(value).__name__}; remove it and place it at a module inside"
            )
        first, rest = self.disturb(value[0]), value[1:]
        return type(value)(first, *rest) if hasattr(value, "_fields") else (first, *rest)

    def _along(self, x: Tensor | Proxy, dim: int) -> Tensor:
        home = 1 if self.dims else -1
        if isinstance(x, Proxy):  # its dimensions are not known yet
            return cast(Tensor, self.noise(x.movedim(dim, home)).movedim(home, dim))
        if self.dims and x.ndim != self.dims + 2:
            raise ValueError(
                f"{type(self.noise).__name__} at {named(self.place)} takes maps of {self.dims + 2} dimensions, "
                f"got {x.ndim}, {tuple(x.shape)}"
            )
        if not -x.ndim <= dim < x.ndim:
            raise ValueError(f"dim = {dim} at {named(self.place)} is out of range for {tuple(x.shape)}")
        return cast(Tensor, self.noise(x.movedim(dim, home)).movedim(home, dim))

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return "" if self.dim is None else f"dim={self.dim}"


class Before(Slot):
    """A noise on the first argument of a module."""

    key = "rotationout_before"


class After(Slot):
    """A noise on what a module returns."""

    key = "rotationout_after"


def _on_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, place: str) -> Any:
    slot = _slot_of(module, Before, place)
    if slot is None or kwargs is None:
        return None  # nothing changes
    given = args[0] if args else kwargs.get(slot.argument)
    if not slot.noise.training and not isinstance(given, Proxy):
        return None
    if not args and slot.argument not in kwargs:
        raise TypeError(f"the noise before {named(slot.place)} finds no argument {slot.argument!r} to disturb")
    disturbed = slot.disturb(given)
    # Query, key and value of self-attention are one tensor, and get the same noise.
    return (
        tuple(disturbed if value is given else value for value in args),
        {name: disturbed if value is given else value for name, value in kwargs.items()},
    )


def _on_output(module: nn.Module, args: tuple[Any, ...], output: Any, *, place: str) -> Any:
    slot = _slot_of(module, After, place)
    acts = slot is not None and (slot.noise.training or isinstance(output, Proxy))
    return cast(Slot, slot).disturb(output) if acts else None


def _slot_of(module: nn.Module, kind: type[Slot], place: str) -> Slot | None:
    """The slot of a module that has its hook; None if the module is another one, to which a tool has moved the hook.

    Quantization does that, and leaves the slot behind: the noise is lost, and the hook goes too, after a warning. Where
    there is nothing to train any more, it would not act anyway.
    """
    slot: Slot | None = getattr(module, kind.key, None)
    if slot is None and module.training and next(module.parameters(), None) is not None:
        warnings.warn(
            f"the noise that was inserted {kind.key.rpartition('_')[2]} {named(place)} is lost: the module was rebuilt "
            f"as {type(module).__name__}, as quantization does. Remove the noise before (rotationout.remove), or make "
            "it a layer of the model",
            stacklevel=2,
        )
        hooks = module._forward_pre_hooks if kind is Before else module._forward_hooks
        for number in [n for n, hook in hooks.items() if getattr(hook, "func", None) in (_on_input, _on_output)]:
            del hooks[number]
    return slot


def attach(module: nn.Module, slot: Slot) -> None:
    """Put a slot at a module; if that fails, the module is as it was."""
    module.add_module(slot.key, slot)
    try:
        if isinstance(slot, Before):
            slot.handle = module.register_forward_pre_hook(partial(_on_input, place=slot.place), with_kwargs=True)
        else:
            slot.handle = module.register_forward_hook(partial(_on_output, place=slot.place))
    except BaseException:
        delattr(module, slot.key)
        raise


def detach(module: nn.Module, slot: Slot) -> None:
    """Take a slot away from a module, which is then as it was."""
    slot.handle.remove()
    delattr(module, slot.key)


def check_attached(model: nn.Module) -> None:
    """Raise a RuntimeError if a noise that was inserted has lost its hook and no longer acts."""
    for module in model.modules():
        if isinstance(module, Slot) and not module.attached:
            raise RuntimeError(
                f"the noise at {named(module.place)} no longer acts: the module was rebuilt after noise was inserted, "
                "as by SyncBatchNorm.convert_sync_batchnorm. Remove the noise, convert the model first, then insert"
            )


def slots(module: nn.Module) -> list[Slot]:
    """The slots at this module, not at its children."""
    found = (module._modules.get(kind.key) for kind in (Before, After))
    return [slot for slot in found if isinstance(slot, Slot)]
