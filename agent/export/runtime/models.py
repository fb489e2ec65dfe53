"""Constructing the reference and the kernels from their sources, and giving them their state.

Instances belong to one thread and one set of parameter tensors: a kernel that keeps a parameter's
address stays right, because the tensors are held as long as the instance is.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from agent.export.runtime import locks

KEPT_INSTANCES = 16
"""Of one operator and thread: layers that share an operator each have their own."""
LOADING = locks.rlock()
"""Importing a kernel compiles it, and changes the process's environment while it does."""


def import_source(
    text: str,
    path: Path,
    name: str,
    build: Path | None = None,
    names: dict[str, Any] | None = None,
) -> types.ModuleType:
    """Execute a checked source as a module; what it compiles with torch lands in `build`.

    `names` are in its builtins instead of Python's own.
    """
    module = types.ModuleType(name)
    if names is not None:
        module.__dict__["__builtins__"] = names
    module.__file__ = str(path)
    with LOADING, _environment("TORCH_EXTENSIONS_DIR", build):
        sys.modules[name] = module
        try:
            exec(compile(text, str(path), "exec"), module.__dict__)
        except BaseException:  # SystemExit included: a module half made must not be found again.
            del sys.modules[name]
            raise
    return module


def construct(kind: Any, init: str, device: torch.device, dtype: str) -> torch.nn.Module:
    """An instance in train mode, as it was judged; the caller's random numbers are not drawn, and
    its modes and transforms do not see it.
    """
    alone = temporarily_clear_interpreter_stack()
    with LOADING, alone, _disable_current_modes(), torch.random.fork_rng(devices=[]):
        model: torch.nn.Module = kind(*init_values(init))
        return model.to(device=device, dtype=getattr(torch, dtype))


def init_text(values: Sequence[Any]) -> str:
    """Constructor arguments as JSON, tuples told from lists; raises TypeError for other types."""
    return json.dumps([_packed(value) for value in values])


def init_values(text: str) -> list[Any]:
    """What `init_text` wrote down."""
    return [_unpacked(value) for value in json.loads(text)]


def _packed(value: Any) -> Any:
    if isinstance(value, tuple):
        return {"tuple": [_packed(v) for v in value]}
    return [_packed(v) for v in value] if isinstance(value, list) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"tuple"}:
        return tuple(_unpacked(v) for v in value["tuple"])
    return [_unpacked(v) for v in value] if isinstance(value, list) else value


def state_names(model: torch.nn.Module) -> list[str]:
    """Parameters, then buffers, in registration order."""
    return [n for n, _ in model.named_parameters()] + [n for n, _ in model.named_buffers()]


def matched(match: str, reference: Sequence[str], own: Sequence[str]) -> list[str | None]:
    """The model's name for each of the reference's tensors; None where it has none."""
    if match == "order":
        return list(own)
    return [name if name in own else None for name in reference]


class Instance:
    """A kernel's model, and the tensors that were given to it: their memory stays theirs, unless
    somebody frees a storage that is in use.
    """

    def __init__(self, model: torch.nn.Module, state: Sequence[torch.Tensor]) -> None:
        self.model, self.state = model, [tensor.detach() for tensor in state]


Kept = TypeVar("Kept")


class Instances(threading.local, Generic[Kept]):
    """A thread's instances, the least recently used dropped."""

    def __init__(self) -> None:
        self.known: OrderedDict[object, Kept] = OrderedDict()

    def find(self, key: object) -> Kept | None:
        found = self.known.get(key)
        if found is not None:
            self.known.move_to_end(key)
        return found

    def keep(self, key: object, model: Kept) -> Kept:
        self.known[key] = model
        while len(self.known) > KEPT_INSTANCES:
            self.known.popitem(last=False)
        return model


class Stateless:
    """A module that is called with its parameters and buffers, for one thread at a time.

    It holds them during the call alone. `torch.func.functional_call` does the same at ten times the
    cost.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str]) -> None:
        """`names` of the tensors that a call brings, in their order; tied ones are one."""
        self._model = model
        known = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        tensors = dict(known)
        self._homes = [
            (*home_of(model, name), place)
            for name, tensor in known
            for place, wanted in enumerate(names)
            if tensor is tensors[wanted]
        ]
        self._own = [home[last] for home, last, _ in self._homes]

    def __call__(self, inputs: Sequence[Any], state: Sequence[torch.Tensor]) -> Any:
        for home, last, place in self._homes:
            home[last] = state[place]
        try:
            return self._model(*inputs)
        finally:
            for (home, last, _), own in zip(self._homes, self._own, strict=True):
                home[last] = own


def home_of(model: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Where a module keeps the tensor."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    return (owner._parameters if last in owner._parameters else owner._buffers), last


def place(state: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Tells parameter tensors of one signature and device apart while somebody holds them."""
    return tuple([tensor.data_ptr() for tensor in state])


def give_state(
    model: torch.nn.Module, names: Sequence[str | None], tensors: Sequence[torch.Tensor]
) -> None:
    """Put the tensors themselves where the model has its own."""
    for name, tensor in zip(names, tensors, strict=True):
        if name is None:
            continue
        home, last = home_of(model, name)
        value = tensor.detach()
        # A parameter stays one: code may ask for its type.
        parameter = isinstance(home[last], torch.nn.Parameter)
        home[last] = torch.nn.Parameter(value, requires_grad=False) if parameter else value


@contextmanager
def _environment(name: str, value: Path | None) -> Iterator[None]:
    if value is None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = str(value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
