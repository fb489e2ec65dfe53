"""A module around an operator, with the reference's parameters."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from agent.export.runtime import models
from agent.export.runtime.operators import Custom, placed
from agent.export.runtime.records import LibraryError

HELD = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Where a module keeps its tensors and those of its parts."""


class Layer(torch.nn.Module):  # type: ignore[misc]
    """The reference's module, parameters and all, whose forward is the operator: a checkpoint of
    the one loads into the other.
    """

    def __init__(self, custom: Custom, *init: Any) -> None:
        super().__init__()
        self._init = models.init_text(init) if init else custom.operator.init
        built = custom.reference(*models.init_values(self._init))
        self._call, self._whose = custom.call, (custom.package, custom.operator.name)
        self._inputs = tuple(name for name, _ in custom.operator.inputs)
        held = vars(built.to(getattr(torch, custom.operator.dtype)))
        self.__dict__.update({name: held[name] for name in HELD})
        self._names = [name.split(".") for name in models.state_names(built)]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if named:
            inputs = placed(self._whose[1], self._inputs, inputs, named)
        state = [_found(self, path) for path in self._names]
        return self._call(*inputs, *state, self._init)

    def __prepare_scriptable__(self) -> torch.nn.Module:
        raise LibraryError(
            f"torch.jit.script takes no layer of a library: script the reference's module in the "
            f"place of {self._whose[1]}, or trace it with torch.jit.trace"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and torch.save: the library is imported, and with it the reference's class,
        before the rest is read.
        """
        kept = {name: value for name, value in vars(self).items() if name != "_call"}
        return _layer, self._whose, kept


def _layer(package: str, name: str) -> Layer:
    """A layer that waits for what it holds."""
    custom = importlib.import_module(package).operator(name)
    found = Layer.__new__(Layer)
    torch.nn.Module.__init__(found)
    _ = custom.reference
    found._call = custom.call
    found._inputs = tuple(name for name, _ in custom.operator.inputs)
    return found


def _found(module: Any, path: Sequence[str]) -> Any:
    for name in path:
        module = getattr(module, name)
    return module
