"""A module to be traced in the place of a user's: of the same parameters, in dictionaries of its
own.

`torch.export` puts fake tensors where the parameters are while it traces: in a twin no other thread
meets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

DICTIONARIES = ("_parameters", "_buffers", "_modules")


def twin(module: torch.nn.Module) -> torch.nn.Module | None:
    """None where a module inside has a forward of its own beside its class's, bound to the
    original.
    """
    made: dict[int, torch.nn.Module] = {}
    for each in module.modules():
        if "forward" in vars(each) or isinstance(each, torch.jit.ScriptModule):
            return None
        one: torch.nn.Module = object.__new__(type(each))
        kept = dict(vars(each))
        kept |= {name: dict(kept[name]) for name in DICTIONARIES}
        object.__setattr__(one, "__dict__", kept)
        made[id(each)] = one
    for one in made.values():
        children = one._modules
        for name, child in children.items():
            children[name] = None if child is None else made[id(child)]
    return made[id(module)]


@contextmanager
def unhooked(module: torch.nn.Module) -> Iterator[None]:
    """Without hooks of its own, which run around its forward, whatever that is."""
    kept = {name: hooks for name, hooks in vars(module).items() if name.endswith("_hooks")}
    vars(module).update({name: {} for name in kept})
    try:
        yield
    finally:
        vars(module).update(kept)


def shared(state: Iterable[Any], module: torch.nn.Module) -> bool:
    """Whether a constant of a twin's graph is what the module itself holds: it was found by a way
    that leads to the original, and would not follow it.
    """
    own = [*module.parameters(), *module.buffers()]
    constants = [s for s in state if isinstance(s, torch.Tensor)]
    return any(torch._C._is_alias_of(c, o) for c in constants for o in own)
