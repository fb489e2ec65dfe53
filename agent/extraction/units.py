"""The parts of a model that torch.export can trace: the model itself, or else its children.

A child is traced with the inputs of its first call; how often it is called in one forward pass is
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from agent.export.runtime.graphs import Traced, Untraceable, trace


@dataclass(frozen=True)
class Unit:
    """A traced module with the values that its graph's placeholders had."""

    name: str
    """Dotted; empty for the model itself."""
    traced: Traced
    values: tuple[Any, ...]
    calls: int


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
    values = (*state, *tree_leaves((call.arguments, call.named), is_leaf=lambda v: v is None))
    found.units.append(Unit(call.name, traced, values, call.calls))


def _attribute(module: torch.nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(path), last)
    return found.detach()


def _calls_of_children(call: _Call) -> list[_Call]:
    """What the module's children are called with, from one run of it."""
    seen: dict[int, _Call] = {}

    def noting(name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def note(
            module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
        ) -> None:
            if id(module) in seen:
                seen[id(module)].calls += call.calls
            else:
                seen[id(module)] = _Call(name, module, arguments, named, call.calls)

        return note

    hooks = [
        child.register_forward_pre_hook(noting(name), with_kwargs=True)
        for name, child in _children(call.module, call.name)
    ]
    try:
        with torch.no_grad():
            call.module(*call.arguments, **call.named)
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen.values())


def _children(module: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Through containers, which are indexed and not called."""
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _children(child, path)
        else:
            yield path, child
