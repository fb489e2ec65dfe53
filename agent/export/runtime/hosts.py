"""Operators under a user's own modules: Hugging Face `kernels` puts a layer's forward in theirs.

A module is taken for the reference's only if it has the reference's parameters, submodules and
plain attributes as they were measured. Any other keeps the forward of its own class.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from agent.export.runtime.operators import Custom

logger = logging.getLogger(__name__)

PLAIN = (bool, int, str, type(None))
Fact = tuple[tuple[str, ...], str, Any]
"""(path of a submodule, attribute, value); for its class the attribute is `class`, for the names of
all that it holds it is HOLDS."""
HOLDS = "*"


class Incomparable(Exception):
    """The reference keeps something that cannot be compared; the message says what."""


class Host:
    """Calls the operator with a user's module as the owner of the parameters."""

    def __init__(self, custom: Custom, known: Sequence[Fact]) -> None:
        self._custom, self._call, self._init = custom, custom.call, custom.operator.init
        self._state = tuple(tuple(name.split(".")) for name in custom.operator.state)
        self._facts = known
        self._told: set[type] = set()

    def __call__(self, module: torch.nn.Module, *inputs: Any) -> Any:
        if not self._fits(module):
            return self._foreign(module, *inputs)
        state = [_found(module, path) for path in self._state]
        return self._call(*inputs, *state, self._init)

    def _fits(self, module: torch.nn.Module) -> bool:
        for path, name, value in self._facts:
            owner = _found(module, path)
            if owner is None:
                return False
            if _has(owner, name) != value:
                return False
        return all(isinstance(_found(module, path), torch.Tensor) for path in self._state)

    def _foreign(self, module: torch.nn.Module, *inputs: Any) -> Any:
        kind = type(module)
        if not torch.compiler.is_compiling() and kind not in self._told:
            self._told.add(kind)
            logger.warning(
                "%s: %s is not the module that was measured; its own forward is used",
                *(self._custom.qualified, kind.__name__),
            )
        if not torch.compiler.is_compiling():
            self._custom.dispatch.counts.add("another module")
        return kind.forward(module, *inputs)


def facts(model: torch.nn.Module) -> Iterator[Fact]:
    """What makes two modules with the same parameters compute the same."""
    for path, owner in model.named_modules():
        parts = tuple(path.split(".")) if path else ()
        yield parts, HOLDS, _held(owner)
        if parts:
            yield parts, "class", type(owner).__name__
        for name, value in vars(owner).items():
            if name.startswith("_") or name == "training":
                continue
            if not _plain(value):
                raise Incomparable(f"{'.'.join((*parts, name))} is a {type(value).__name__}")
            yield parts, name, tuple(value) if isinstance(value, torch.Size) else value


def _has(owner: torch.nn.Module, name: str) -> Any:
    if name == HOLDS:
        return _held(owner)
    return type(owner).__name__ if name == "class" else getattr(owner, name, Incomparable)


def _held(owner: torch.nn.Module) -> tuple[str, ...]:
    """Names of its tensors, modules and attributes, but for methods, which `kernelize` gives it."""
    names = [n for n, v in vars(owner).items() if n[0] != "_" and not callable(v)]
    names.remove("training")
    for home in (owner._parameters, owner._buffers, owner._modules):
        names += [n for n, v in home.items() if v is not None]
    return tuple(sorted(names))


def _plain(value: Any) -> bool:
    """Whether its `repr` is a literal that stands for it."""
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, PLAIN)


def _found(module: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        module = getattr(module, name, None)
    return module
