"""The `Flow` of a model without a run: from the graph that torch.fx traces.

That graph has no shapes, so operations between a noise and a layer are known by name only, and only some layouts are
certain. Inserted noises are hooks, which do not show in the graph; they are read from their slots.
"""

from __future__ import annotations

from typing import Any, cast

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..nn.base import CentredNoise
from ..placing._layout import dims_of_module, dims_of_noise, takes_axis
from ..placing._slot import After, Before, Slot
from ._flow import ON_WEIGHTS, Flow, Link, Paths, acts, disturbed, is_norm, noises_of, passed

__all__ = ["UntraceableError", "trace"]


_RANDOM = ("dropout", "bernoulli", "rand_like", "randn_like", "normal", "uniform", "rrelu")
"""Parts of the names of functions and methods that draw random numbers; ``normalize`` does not."""


class UntraceableError(ValueError):
    """torch.fx cannot trace a model; a run on example inputs is needed instead."""


def trace(model: nn.Module) -> Flow:
    """The `Flow` of a model in its current mode, read off its code; call this inside `_passes.untouched`."""
    noises = noises_of(model)
    tracer = _Tracer(set(noises.values()))
    try:
        graph = tracer.trace(model)
    except Exception as error:  # the code of a model may do anything with a proxy
        raise UntraceableError(
            f"torch.fx cannot follow the code of {type(model).__name__} ({type(error).__name__}: {error}); give "
            "example_inputs (--data on the command line), and the model is run instead"
        ) from error
    return _Reader(model, noises).read(graph)


class _Tracer(fx.Tracer):
    """Traces the code down to noises, normalisation and the layers of torch."""

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
        order = {node: place for place, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            changed = self._changed(node)
            if changed is not None and any(order[user] > order[node] for user in changed.users):
                raise UntraceableError(
                    f"{node.target} changes a tensor in place that is used again later; give example_inputs "
                    "(--data on the command line), and the model is run instead"
                )
            paths = self._merged([carried[given] for given in node.all_input_nodes])
            carried[node] = self._module(node, paths) if node.op == "call_module" else self._function(node, paths)
        return self.flow

    def _changed(self, node: fx.Node) -> fx.Node | None:
        """The input that a node changes, if any: ``out``, or its first one."""
        if isinstance(out := node.kwargs.get("out"), fx.Node):
            return out
        first = next(iter(node.all_input_nodes), None)
        if node.op == "call_module":
            inplace = getattr(self.model.get_submodule(cast(str, node.target)), "inplace", False)
            return first if inplace else None
        if node.op not in ("call_function", "call_method"):
            return None
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        trailing = name.endswith("_") and not name.endswith("__")
        return first if trailing or node.kwargs.get("inplace") else None

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
            paths = {**passed([paths], type(module).__name__), **self._inside(module)}
        return self._slot(module, After.key, paths)

    def _inside(self, module: nn.Module) -> Paths:
        """The noises inside a layer of torch whose code is not read, such as that of a transformer."""
        found: Paths = {}
        for part in module.modules():
            name = self.names[part]
            if name in self.noises and acts(part):
                found[name] = (type(module).__name__,)
            elif part.training and _drops(part):
                found[f"dropout in {name}"] = (type(module).__name__,)
                self.flow.draws.append(("dropout", name))
        return found

    def _function(self, node: fx.Node, paths: Paths) -> Paths:
        if node.op not in ("call_function", "call_method"):
            return paths
        operation = _name(node)
        paths = passed([paths], operation.strip("_"))
        if _draws(operation, node):
            given = node.all_input_nodes
            operation = ON_WEIGHTS if given and "softmax" in _name(given[0]) else operation
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
        return disturbed(name, noise, paths)

    def _reach(self, name: str, module: nn.Module, paths: Paths) -> None:
        for source, path in paths.items():
            noise = self.noises.get(source)
            aligned = None if noise is None or path else _aligned(noise, module, self.moved.get(source))
            self.flow.add(Link(source, noise, name, module, path, aligned))

    def _merged(self, given: list[Paths]) -> Paths:
        return {source: path for paths in given for source, path in paths.items()}


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _draws(operation: str, node: fx.Node) -> bool:
    """Whether a function or method draws random numbers; Dropout does not in testing mode, nor with p = 0."""
    if operation == "scaled_dot_product_attention":
        return bool(node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
    off = not node.kwargs.get("training", True) or node.kwargs.get("p", 1.0) == 0
    return operation != "normalize" and any(name in operation for name in _RANDOM) and not off


def _drops(module: nn.Module) -> bool:
    """Whether a layer of torch has an argument ``dropout`` that acts; in recurrent ones it does between layers."""
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _aligned(noise: nn.Module, layer: nn.Module, moved: int | None) -> bool | None:
    """Whether the features of a noise are the channels of the BatchNorm layer after it; None if the types do not tell.

    ``moved`` is the axis that the slot of the noise moves to its feature axis, if any.
    """
    if not isinstance(noise, CentredNoise) or not isinstance(layer, _BatchNorm):
        return None
    if moved == 1 or (takes_axis(noise) and cast(Any, noise).dim == 1):
        return True
    dims = -1 - cast(Any, noise).dim if takes_axis(noise) else dims_of_noise(noise)
    here = 1 if isinstance(layer, nn.BatchNorm1d) and dims == 1 else dims_of_module(layer)
    return None if here is None else dims == here
