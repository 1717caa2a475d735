"""Base classes of the layers: `Noise` has a strength that may be changed at any time, `CentredNoise` a mean too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy, Tracer
from torch.nn.modules.dropout import _DropoutNd

from .. import strength
from ..functional.inputs import check_features, feature_mean, kind_of, mask_weight, not_floating, processes
from ..kernels.autograd import follow_mean, is_transformed, mean_parts
from ..kernels.dispatch import is_recorded
from ..rotation import resolve_axis
from .arguments import NEVER_IN_PLACE, checked

__all__ = ["CentredNoise", "Noise", "recorded"]

_LARGEST_RATE = 1 - 2**-24
"""The largest fp32 number below 1: a rate rounded to 1 would drop everything and divide by zero."""


def recorded(layer: nn.Module, *inputs: object) -> Any:
    """A call as torch.fx records it where an input is its Proxy: the layer as a whole, as with layers of torch.

    >>> class Absolute(nn.Module):  # its code depends on values, which torch.fx cannot follow
    ...     def forward(self, x):
    ...         if isinstance(x, Proxy):
    ...             return recorded(self, x)
    ...         return x if x.sum() > 0 else -x
    >>> torch.fx.symbolic_trace(nn.Sequential(Absolute()))(-torch.ones(2))
    tensor([1., 1.])
    """
    tracer = next(value.tracer for value in inputs if isinstance(value, Proxy))
    path = cast(Tracer, tracer).path_of_module(layer)
    return tracer.create_proxy("call_module", path, tuple(value for value in inputs if value is not None), {})


class Noise(_DropoutNd):
    """A noise layer with a strength p. It derives from torch's dropout layers, so tools that look for those find it.

    ``_scale``, a scalar tensor on the device, is the noise's own parameter (`rotationout.strength` lists them);
    ``_active`` is False at p = 0, when there is nothing to do. ``_scale`` is no buffer: what loads, averages or
    broadcasts the buffers of a model would leave it with a strength that is not that of p.

    Args:
        p: drop probability of the equally strong Dropout.
        kind: the kind of noise, one of `rotationout.strength.KINDS`; ``_scale`` is its parameter.

    >>> class Jitter(Noise):  # multiplies whole vectors by 1 + σ·N(0, 1)
    ...     def forward(self, input: Tensor) -> Tensor:
    ...         if not self.training or not self._active:
    ...             return input
    ...         return input * (1 + self._scale_for(input) * torch.randn_like(input[..., :1]))
    >>> layer = Jitter(0.2, "gaussian")
    >>> layer(torch.ones(3, 4)).unique(dim=1).shape, layer.p
    (torch.Size([3, 1]), 0.2)
    """

    _scale: Tensor
    _traced: ClassVar[str] = "records the noise in training mode and leaves it out in eval mode"
    """What torch.jit.trace does with it."""

    def __init__(self, p: float, kind: str) -> None:
        rate = strength.check_rate(p)  # here, as nn.Module would register a Parameter and not call the setter of p
        nn.Module.__init__(self)  # not _DropoutNd's, which would set p before there is a `_scale`
        self.inplace = False
        self._kind = kind
        self._p, self._active = rate, rate > 0.0
        self._put_scale(torch.get_default_device())

    @property
    def p(self) -> float:
        """The drop probability of the equally strong Dropout.

        Setting it changes a tensor on the device, not the graph: a compiled or captured model follows a schedule
        without recompiling, except once when p becomes zero or stops being zero. As with Dropout, p is no part of a
        module's state: `torch.func.functional_call` uses the p of the module that it is given.
        """
        return self._p

    @p.setter
    def p(self, value: float) -> None:
        rate = strength.check_rate(value)
        scale = self._parameter(rate)
        self._p, self._active = rate, rate > 0.0
        self._scale.fill_(scale)

    def _new_scale(self, device: torch.device) -> Tensor:
        """A scalar with the noise's own parameter."""
        with torch.inference_mode(False):  # it is changed in place, also if the layer was made in inference mode
            return torch.full((), self._parameter(self._p), dtype=torch.float32, device=device)

    def _put_scale(self, device: torch.device) -> None:
        """Make ``_scale`` anew, on this device; on the CPU instead of meta, so that it always has a value."""
        self._scale = self._new_scale(torch.device("cpu") if device.type == "meta" else device)

    def _scale_for(self, x: object) -> Tensor:
        """``_scale`` on the device of a tensor ``x``: parts of a model may have been loaded to several devices.

        It then stays there, unless the call is one that must leave nothing behind: compiled, transformed, or of tensors
        without values. A trace and an exported program have the p that they were made with.
        """
        if not isinstance(x, Tensor):
            return self._scale
        if is_recorded() or torch.compiler._is_exporting_flag:  # is_exporting() is always True in torch.compile
            return self._new_scale(x.device)
        if x.device == self._scale.device:
            return self._scale
        if x.is_meta or is_transformed():
            return self._scale.to(x.device)
        moved = self._new_scale(x.device)
        if type(moved) is Tensor:  # not one without values, of torch's FakeTensorMode
            self._scale = moved
        return moved

    def _parameter(self, rate: float) -> float:
        """The noise's own parameter at p = ``rate``."""
        own = strength.convert(rate, "dropout", self._kind)
        return min(own, _LARGEST_RATE) if self._kind == "dropout" else own

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(self._scale).device  # it stays fp32, whatever the model is cast to
        if device not in (self._scale.device, torch.device("meta")):  # else the same tensor: a CUDA graph may read it
            self._put_scale(device)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has a ``_scale`` of its own: setting p changes it in place, and processes may share its memory."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._put_scale(self._scale.device)

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by torch.jit.script, whose own message would be about some line of Python."""
        raise TypeError(
            f"torch.jit.script does not support {type(self).__name__}; use torch.export, or torch.jit.trace, which "
            f"{self._traced}"
        )

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"p={self.p:g}"


class CentredNoise(Noise):
    """A noise that may disturb x − m, the features about a mean (section 2.3), instead of the features themselves.

    Subclasses say where the features are (`_axes`) and what the noise does (`_disturb`); this class chooses the mean
    and keeps a running one.

    Args:
        p: drop probability of the equally strong Dropout.
        kind: one of `rotationout.strength.KINDS`.
        center: None, ``"batch"`` or ``"running"``.
        num_features: the size of the feature axis, for ``center="running"``.
        momentum: the weight of a new batch in the running mean.
        sync: take means over all data-parallel processes.

    >>> class Shrink(CentredNoise):  # replaces features by their mean
    ...     def _axes(self, x: Tensor) -> tuple[int, int | None]:
    ...         return x.ndim - 1, 0
    ...     def _disturb(self, x, center, mask, dim, batch_dim):
    ...         return x if center is None else torch.zeros_like(x) + center
    >>> layer = Shrink(0.5, "dropout", center="running", num_features=2, momentum=1.0)
    >>> [layer(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() for _ in range(2)]
    [[[0.0, 0.0], [0.0, 0.0]], [[2.0, 3.0], [2.0, 3.0]]]
    """

    _mixes: ClassVar[bool] = False
    """Whether a feature gets noise from the others, of which there must be one."""
    _keeps_center = True
    """Whether autograd may save the centre: `_disturb` then gets a copy of the running mean, which changes in place."""
    running_mean: Tensor | None
    tracking = True
    """Whether calls in training update the running mean, if there is one."""

    def __init__(
        self,
        p: float,
        kind: str,
        *,
        center: str | None = None,
        num_features: int | None = None,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__(p, kind)
        if center is not None:
            strength.check_choice("center", center, ("batch", "running"), also="None")
        self.center = center
        self.sync = sync
        if sync and center is None:
            raise ValueError("sync=True takes means over processes, but center=None takes no mean")
        if num_features is not None and center != "running":
            raise ValueError(f"num_features is for center='running', got it with center={center!r}")
        self.momentum = strength.check_number("momentum", momentum)
        if not 0.0 < self.momentum <= 1.0:
            raise ValueError(f"momentum must be in (0, 1], got {self.momentum!r}")
        if center != "running":
            self.running_mean = None
            return
        if num_features is None:
            raise ValueError("center='running' needs num_features, the size of the feature axis, got None")
        size = strength.check_integer("num_features", num_features, 2 if self._mixes else 1)
        with torch.inference_mode(False):
            self.register_buffer("running_mean", torch.zeros(size))

    def reset_running_stats(self) -> None:
        """Set the running mean to zero, if there is one, as for a new layer."""
        if self.running_mean is not None:
            self.running_mean.zero_()

    def reset_parameters(self) -> None:
        """`reset_running_stats`, under the name that is called on all modules of a model after ``to_empty``."""
        self.reset_running_stats()

    def _axes(self, x: Tensor) -> tuple[int, int | None]:
        """The feature axis and the batch axis of an input, or an error if it has the wrong number of dimensions."""
        raise NotImplementedError

    def _disturb(
        self, x: Tensor, center: str | Tensor | None, mask: Tensor | None, dim: int, batch_dim: int | None
    ) -> Tensor:
        """Apply the noise about ``center``: a tensor, ``"batch"`` for the mean of ``x``, or None for the origin."""
        raise NotImplementedError

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """Disturb ``input`` while training; padding, where ``mask`` is False, is left alone."""
        if isinstance(input, Proxy):
            return cast(Tensor, recorded(self, input, mask))
        if not self.training:
            return input
        if not isinstance(input, Tensor) or input.ndim == 0:
            got = "one without dimensions" if isinstance(input, Tensor) else kind_of(input)
            raise TypeError(f"{type(self).__name__} takes a tensor with a feature axis, got {got}")
        if not input.dtype.is_floating_point:
            raise TypeError(f"{type(self).__name__} takes {not_floating(input)}")
        dim, batch_dim = self._axes(input)
        center = self._center(input, dim)
        seen = self._seen(input, mask, dim)
        output = self._disturb(input, center, mask, dim, batch_dim)
        self._track_mean(seen)
        return output

    def _center(self, x: Tensor, dim: int) -> str | Tensor | None:
        """The point to disturb features about, as `_disturb` takes it."""
        if self.running_mean is None:
            return self.center
        if x.size(dim) != self.running_mean.numel():
            raise ValueError(
                f"num_features is {self.running_mean.numel()}, but the input has {x.size(dim)} features on axis {dim}: "
                f"{tuple(x.shape)}"
            )
        if not self._active:
            return None
        # The mean as it was before this batch, so that no example sees another.
        return self.running_mean.clone() if self._keeps_center else self.running_mean

    def _seen(self, x: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, float | Tensor] | None:
        """The mean of a batch, in parts, and its weight, for `_track_mean`; None if no running mean is to be updated.

        It is taken before the features are disturbed; the running mean is updated afterwards.
        """
        if self.running_mean is None or not self.tracking:
            return None
        check_features(x, dim)
        if mask is None and not (self.sync and processes() > 1):
            return (mean_parts(x, dim), self.momentum) if x.numel() > 0 else None
        weight = None if mask is None else mask_weight(mask, x, dim)
        mean, rows = feature_mean(x.detach(), weight, dim, sync=self.sync)
        counted = cast(Tensor, rows) > 0  # a batch without rows has no weight
        return mean.unsqueeze(0), self.momentum * counted.to(self.running_mean.dtype)

    def _track_mean(self, seen: tuple[Tensor, float | Tensor] | None) -> None:
        """Update the running mean with what `_seen` returned."""
        if self.running_mean is not None and seen is not None:
            follow_mean(self.running_mean, *seen)


class _AxisNoise(CentredNoise):
    """The base of noises whose features may be on any axis, ``dim``."""

    _strength: ClassVar[str]
    """The kind of noise, one of `rotationout.strength.KINDS`."""
    _noise: ClassVar[Callable[..., Tensor]]
    """What disturbs features, given the parameter of that kind."""

    @checked(NEVER_IN_PLACE)
    def __init__(
        self,
        p: float = 0.5,
        *,
        center: str | None = None,
        dim: int = -1,
        num_features: int | None = None,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__(p, self._strength, center=center, num_features=num_features, momentum=momentum, sync=sync)
        self.dim = strength.check_integer("dim", dim)

    def _axes(self, x: Tensor) -> tuple[int, int | None]:
        return resolve_axis("dim", self.dim, x.ndim), None

    def _disturb(
        self, x: Tensor, center: str | Tensor | None, mask: Tensor | None, dim: int, batch_dim: int | None
    ) -> Tensor:
        scale = self._scale_for(x)
        return self._noise(x, scale, self._active, dim=dim, center=center, mask=mask, sync=self.sync, generator=None)

    def extra_repr(self) -> str:
        about = "" if self.center is None else f", center={self.center}"
        where = f", dim={self.dim}" if about or self._mixes else ""
        return super().extra_repr() + about + where
