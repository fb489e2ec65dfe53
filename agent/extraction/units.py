"""The parts of a model that torch.export can trace: the model itself, or else its children.

A child is traced once for each kind of inputs (shapes, strides, dtypes, numbers) that it is called
with; how often that is in one forward pass is counted, and the values of further calls are kept for
their statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from agent.export.runtime.graphs import Traced, Untraceable, trace

KEPT_CALLS = 8
"""Of one child and kind of inputs: their tensors are held until the tasks are written."""


@dataclass(frozen=True)
class Unit:
    """A traced module with the values that its graph's placeholders had."""

    name: str
    """Dotted; empty for the model itself."""
    traced: Traced
    values: tuple[Any, ...]
    calls: int
    more: tuple[tuple[Any, ...], ...] = ()
    """The same of further calls, at most KEPT_CALLS."""


@dataclass
class Found:
    units: list[Unit] = field(default_factory=list)
    untraceable: dict[str, str] = field(default_factory=dict)
    """Modules without a graph, and why; parts of them may be among the units."""


@dataclass
class _Call:
    name: str
    module: torch.nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    calls: int
    more: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)


def units(model: torch.nn.Module, inputs: Sequence[Any]) -> Found:
    """In the order they are called first."""
    found = Found()
    _visit(_Call("", model, tuple(inputs), {}, 1), found)
    return found


def _visit(call: _Call, found: Found) -> None:
    try:
        traced = trace(call.module, call.arguments, call.named)
    except Untraceable as error:
        found.untraceable[call.name] = str(error)
        for inner in _calls_of_children(call):
            _visit(inner, found)
        return
    state = [
        part if isinstance(part, torch.Tensor) else _attribute(call.module, part)
        for part in traced.state
    ]
    values, *more = [
        (*state, *tree_leaves(given, is_leaf=lambda v: v is None))
        for given in ((call.arguments, call.named), *call.more)
    ]
    found.units.append(Unit(call.name, traced, values, call.calls, tuple(more)))


def _attribute(module: torch.nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(path), last)
    return found.detach()


def _calls_of_children(call: _Call) -> list[_Call]:
    """What the module's children are called with, from one run for each of its calls kept."""
    weight = call.calls - len(call.more)
    seen: dict[tuple[int, str], _Call] = {}

    def noting(name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def note(
            module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
        ) -> None:
            key = id(module), _kind(arguments, named)
            if key not in seen:
                seen[key] = _Call(name, module, arguments, named, weight)
                return
            seen[key].calls += weight
            if len(seen[key].more) < KEPT_CALLS:
                seen[key].more.append((arguments, named))

        return note

    hooks = [
        child.register_forward_pre_hook(noting(name), with_kwargs=True)
        for name, child in _children(call.module, call.name)
    ]
    try:
        with torch.no_grad():
            for arguments, named in ((call.arguments, call.named), *call.more):
                call.module(*arguments, **named)
                weight = 1
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen.values())


def _kind(arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """What a graph of the module depends on."""
    values, spec = tree_flatten((arguments, named))
    return repr((str(spec), *map(_word, values)))


def _word(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        layout = value.stride() if value.layout is torch.strided else value.layout
        return type(value), value.dtype, tuple(value.shape), layout
    plain = isinstance(value, bool | int | float | str) or value is None
    return (type(value), value) if plain else type(value)


def _children(module: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Through containers, which are indexed and not called."""
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _children(child, path)
        else:
            yield path, child
