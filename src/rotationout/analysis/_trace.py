"""The same as `_flow` without a run: from the graph that torch.fx reads off the code of a model.

It knows no shapes, so what is between a noise and a layer may only be named, and only some layouts are certain. Noises
that hooks place do not show in such a graph; they are taken from their slots.
"""

from __future__ import annotations

from typing import Any, cast

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..nn.base import CentredNoise
from ..placing._layout import dims_of_module, dims_of_noise, takes_axis
from ..placing._slot import After, Before, Slot
from ._flow import Flow, Link, Paths, acts, disturbed, is_norm, noises_of, passed

__all__ = ["UntraceableError", "trace"]


_RANDOM = ("dropout", "bernoulli", "rand_like", "randn_like", "normal", "uniform", "rrelu")
"""Parts of the names of functions and methods that draw random numbers."""


class UntraceableError(ValueError):
    """The code of a model depends on its input: only a run tells what it does."""


def trace(model: nn.Module) -> Flow:
    """What reaches what by the code of a model, in whatever mode it is; inside `_passes.untouched`."""
    noises = noises_of(model)
    tracer = _Tracer(set(noises.values()))
    try:
        graph = tracer.trace(model)
    except Exception as error:  # whatever the code of a model does with what is no tensor
        raise UntraceableError(
            f"torch.fx cannot follow the code of {type(model).__name__} ({type(error).__name__}: {error}); give "
            "example_inputs, for a run of the model"
        ) from error
    return _Reader(model, noises).read(graph)


class _Tracer(fx.Tracer):
    """Follows the code down to noises, normalisation and the layers of torch."""

    def __init__(self, noises: set[nn.Module]) -> None:
        super().__init__()
        self.noises = noises

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.noises or is_norm(m) or super().is_leaf_module(m, module_qualified_name)


class _Reader:
    def __init__(self, model: nn.Module, noises: dict[str, nn.Module]) -> None:
        self.model = model
        self.noises = noises
        self.names = {module: name for name, module in model.named_modules()}
        self.moved: dict[str, int] = {}
        self.flow = Flow()

    def read(self, graph: fx.Graph) -> Flow:
        carried: dict[fx.Node, Paths] = {}
        for node in graph.nodes:
            paths = self._merged([carried[given] for given in node.all_input_nodes])
            carried[node] = self._module(node, paths) if node.op == "call_module" else self._function(node, paths)
        return self.flow

    def _module(self, node: fx.Node, paths: Paths) -> Paths:
        module = self.model.get_submodule(cast(str, node.target))
        name = self.names[module]
        paths = self._slot(module, Before.key, paths)
        if module in self.noises.values():
            paths = self._noise(name, module, paths)
        elif is_norm(module):
            self._reach(name, module, paths)
            self.flow.calls[name] += 1
            paths = {} if isinstance(module, _BatchNorm) else passed([paths], type(module).__name__)
        elif not isinstance(module, nn.Identity):
            paths = passed([paths], type(module).__name__)
        return self._slot(module, After.key, paths)

    def _function(self, node: fx.Node, paths: Paths) -> Paths:
        if node.op not in ("call_function", "call_method"):
            return paths
        operation = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        paths = passed([paths], operation.strip("_"))
        if any(name in operation for name in _RANDOM) and node.kwargs.get("training", True):
            paths[f"{operation} in the model"] = ()
            self.flow.draws.append((operation, ""))
        return paths

    def _slot(self, module: nn.Module, key: str, paths: Paths) -> Paths:
        slot = module._modules.get(key)
        if not isinstance(slot, Slot):
            return paths
        for noise in slot.noise if isinstance(slot.noise, nn.Sequential) else [slot.noise]:
            if slot.dim is not None:
                self.moved[self.names[noise]] = slot.dim
            paths = self._noise(self.names[noise], noise, paths)
        return paths

    def _noise(self, name: str, noise: nn.Module, paths: Paths) -> Paths:
        self._reach(name, noise, paths)
        self.flow.calls[name] += 1
        return disturbed(name, noise, paths) if acts(noise) else paths

    def _reach(self, name: str, module: nn.Module, paths: Paths) -> None:
        for source, path in paths.items():
            noise = self.noises.get(source)
            aligned = None if noise is None or path else _aligned(noise, module, self.moved.get(source))
            self.flow.add(Link(source, noise, name, module, path, aligned))

    def _merged(self, given: list[Paths]) -> Paths:
        return {source: path for paths in given for source, path in paths.items()}


def _aligned(noise: nn.Module, layer: nn.Module, moved: int | None) -> bool | None:
    """Whether a noise straight before a BatchNorm layer has its features there, if the types of the two tell.

    ``moved`` is the axis that a slot hands to the noise as that of features, if it does.
    """
    if not isinstance(noise, CentredNoise) or not isinstance(layer, _BatchNorm):
        return None
    if moved == 1 or (takes_axis(noise) and cast(Any, noise).dim == 1):
        return True
    dims = -1 - cast(Any, noise).dim if takes_axis(noise) else dims_of_noise(noise)
    here = 1 if isinstance(layer, nn.BatchNorm1d) and dims == 1 else dims_of_module(layer)
    return None if here is None else dims == here
