"""Which parameters, buffers and forwards modules have, and which of the tensors are one.

A graph reads the tensors that its module had, one for all that were tied, and runs the code that
was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


class Structure:
    """As it is when this is made."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        """The first of the modules is called by the forward it is told for, whatever that is."""
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._absent: list[tuple[dict[str, Any], str]] = []
        """What was registered as None."""
        self._tied: list[tuple[dict[str, Any], str, dict[str, Any], str]] = []
        """Each further place of a tensor, and its first one."""
        self._forwards = [(module, vars(module), forward_of(module)) for module in modules[1:]]
        first: dict[int, tuple[dict[str, Any], str]] = {}
        seen: list[torch.Tensor] = []  # alive, for their ids
        for module in modules:
            for home in (module._parameters, module._buffers):
                self._sizes.append((home, len(home)))
                for name, tensor in home.items():
                    if tensor is None:
                        self._absent.append((home, name))
                    elif id(tensor) in first:
                        self._tied.append((home, name, *first[id(tensor)]))
                    else:
                        first[id(tensor)] = home, name
                        seen.append(tensor)

    def holds(self) -> bool:
        """Whether it is still the same."""
        for home, size in self._sizes:
            if len(home) != size:
                return False
        for home, name in self._absent:
            if home.get(name) is not None:
                return False
        for home, name, other, first in self._tied:
            if home.get(name) is not other.get(first):
                return False
        for module, kept, forward in self._forwards:
            if kept.get("forward") is not forward and forward_of(module) is not forward:
                return False
            if torch.compiler.is_compiling():
                _ = module.forward  # Dynamo guards what is looked up, not what is in a dictionary.
        return True


def forwards(module: torch.nn.Module) -> Iterator[Any]:
    """What it has beside its class's forward, and what that stands for, the outermost first."""
    found = vars(module).get("forward")
    while found is not None:
        yield found
        found = getattr(found, "stands_for", None)


def forward_of(module: torch.nn.Module) -> Any:
    """The one that it has beside its class's, or None; what stands in for it left aside."""
    found = module.__dict__.get("forward")
    while hasattr(found, "stands_for"):
        found = found.stands_for
    return found
