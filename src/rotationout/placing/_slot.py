"""A place for a noise before or after a module: a submodule of it under a reserved name, and a forward hook.

A wrapper or a subclass would not keep all of this: the parameters, the keys of a state_dict and the attributes of the
module stay what they are; the noise follows ``train()``, ``eval()`` and ``to()`` and is found by ``modules()``; copies
and pickles take it along, for the hook is a function of this file that looks the noise up; compilers trace hooks; and a
module that is called often or from many places has it everywhere.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.hooks import RemovableHandle

from ..nn.stack_noise import disturb

__all__ = ["After", "Before", "Slot", "attach", "detach", "slots"]


class Slot(nn.Module):
    """Holds a noise for a module.

    Args:
        noise: the noise.
        place: the name of the module, for messages.
        dim: the feature axis, if the noise is to be handed tensors with that axis moved to where it looks for it.
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

    def disturb(self, value: Any) -> Any:
        """The noise on features: a tensor, a packed sequence, or the first entry of a tuple, as LSTMs return them."""
        if isinstance(value, Tensor):
            return self.noise(value) if self.dim is None else self._along(value, self.dim)
        if isinstance(value, PackedSequence):
            return disturb(self.noise, value)
        if not isinstance(value, tuple) or not value:
            raise TypeError(
                f"the noise {self.key.rpartition('_')[2]} {self.place!r} takes a tensor, or a tuple whose first entry "
                f"is one, got {type(value).__name__}; remove it and place it at a module inside"
            )
        first, rest = self.disturb(value[0]), value[1:]
        return type(value)(first, *rest) if hasattr(value, "_fields") else (first, *rest)

    def _along(self, x: Tensor, dim: int) -> Tensor:
        if self.dims and x.ndim != self.dims + 2:
            raise ValueError(
                f"{type(self.noise).__name__} at {self.place!r} takes maps of {self.dims + 2} dimensions, "
                f"got {x.ndim}, {tuple(x.shape)}"
            )
        if not -x.ndim <= dim < x.ndim:
            raise ValueError(f"dim = {dim} at {self.place!r} is out of range for {tuple(x.shape)}")
        home = 1 if self.dims else -1
        return cast(Tensor, self.noise(x.movedim(dim, home)).movedim(home, dim))

    def extra_repr(self) -> str:
        """What the slot says of itself."""
        return "" if self.dim is None else f"dim={self.dim}"


class Before(Slot):
    """A noise on the first argument of a module."""

    key = "rotationout_before"


class After(Slot):
    """A noise on what a module returns."""

    key = "rotationout_after"


def _on_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    slot = cast(Slot, getattr(module, Before.key))
    if not slot.noise.training:
        return None  # nothing changes
    if args:
        return (slot.disturb(args[0]), *args[1:]), kwargs
    if slot.argument not in kwargs:
        raise TypeError(f"the noise before {slot.place!r} finds no argument {slot.argument!r} to disturb")
    return args, {**kwargs, slot.argument: slot.disturb(kwargs[slot.argument])}


def _on_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    slot = cast(Slot, getattr(module, After.key))
    return slot.disturb(output) if slot.noise.training else None


def attach(module: nn.Module, slot: Slot) -> None:
    """Put a slot at a module; nothing has changed if that fails."""
    module.add_module(slot.key, slot)
    try:
        if isinstance(slot, Before):
            slot.handle = module.register_forward_pre_hook(_on_input, with_kwargs=True)
        else:
            slot.handle = module.register_forward_hook(_on_output)
    except BaseException:
        delattr(module, slot.key)
        raise


def detach(module: nn.Module, slot: Slot) -> None:
    """Take a slot away from a module, which is then as it was."""
    slot.handle.remove()
    delattr(module, slot.key)


def slots(module: nn.Module) -> list[Slot]:
    """The slots at a module itself."""
    found = (module._modules.get(kind.key) for kind in (Before, After))
    return [slot for slot in found if isinstance(slot, Slot)]
