"""What a process can say of itself: replaced functions, changed settings, shared outputs.

All of it is a claim: a candidate that owns its process can forge it, so it is read only where it
hurts the claimant. What the supervisor can see from outside is measured there
(sandbox/machine/tree.py).
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from sandbox.machine import channel, memory, trees
from sandbox.worker import lone, reserve

Owners = tuple[tuple[str, Callable[[], object]], ...]
OWNERS: Owners = (
    ("time", lambda: time),
    ("gc", lambda: gc),
    ("torch.Tensor", lambda: torch.Tensor),
    ("torch.cuda.Event", lambda: torch.cuda.Event),
    ("torch.cuda.Stream", lambda: torch.cuda.Stream),
    ("sandbox.machine.channel", lambda: channel),
    ("sandbox.machine.channel.Channel", lambda: channel.Channel),
    ("sandbox.machine.trees", lambda: trees),
    ("sandbox.machine.memory", lambda: memory),
    ("sandbox.worker.session.Session", lambda: sys.modules[f"{__package__}.session"].Session),
    ("sandbox.worker.lone", lambda: lone),
    ("sandbox.worker.reserve", lambda: reserve),
    ("sandbox.worker.main", lambda: sys.modules.get(f"{__package__}.main")),
)
"""Everything callable on these, by name."""
SINGLE = {
    "torch": ("equal", "allclose", "is_tensor", "empty_like"),
    "torch.cuda": ("synchronize", "current_stream", "init", "empty_cache", "set_stream"),
    "builtins": ("isinstance", "type", "len", "getattr", "setattr", "id", "open", "range"),
    "json": ("dumps", "loads"),
}
SETTINGS: Mapping[str, Callable[[], object]] = {
    "cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "cuda.matmul.allow_bf16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "cuda.matmul.allow_fp16_accumulation": lambda: (
        torch.backends.cuda.matmul.allow_fp16_accumulation
    ),
    "cudnn.enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "flash_sdp": torch.backends.cuda.flash_sdp_enabled,
    "mem_efficient_sdp": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math_sdp": torch.backends.cuda.math_sdp_enabled,
    "grad": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"),
    "default_dtype": torch.get_default_dtype,
    "default_device": torch.get_default_device,
    "num_threads": torch.get_num_threads,
    "num_interop_threads": torch.get_num_interop_threads,
}
"""Global state of torch that changes what operators compute, or how fast."""


class Watch:
    """A process's functions and settings as they were before foreign code came in."""

    def __init__(self, owners: Owners = OWNERS) -> None:
        self._owners = owners
        self._functions = dict(functions(owners))
        self._settings = settings()

    def changes(self) -> dict[str, list[str]]:
        """`patched` functions and `flags` whose values differ now."""
        now = dict(functions(self._owners))
        patched = [
            name for name, known in self._functions.items() if not same(known, now.get(name))
        ]
        patched += [name for name in now if name not in self._functions and shadows(name)]
        current = settings()
        flags = [
            f"{name}: {before} -> {current[name]}"
            for name, before in self._settings.items()
            if current[name] != before
        ]
        return {"patched": patched + listeners(), "flags": flags}


def same(known: tuple[Any, ...], now: tuple[Any, ...] | None) -> bool:
    """By identity: a replacement may claim to be equal to anything."""
    return now is not None and all(a is b for a, b in zip(known, now, strict=True))


def functions(owners: Owners) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(dotted name, what it is: the object and, of a Python function, its code)."""
    for owner, find in owners:
        for name, found in list(vars(find()).items()):
            if callable(found) or isinstance(found, property | staticmethod | classmethod):
                yield f"{owner}.{name}", identity(found)
    for owner, names in SINGLE.items():
        for name in names:
            yield f"{owner}.{name}", identity(getattr(sys.modules[owner], name, None))


def shadows(name: str) -> bool:
    """Whether a new attribute of an owner hides one that it inherits."""
    path, _, last = name.rpartition(".")
    owner = dict(OWNERS)[path]() if path in dict(OWNERS) else None
    return isinstance(owner, type) and any(hasattr(base, last) for base in owner.__mro__[1:])


def identity(found: object) -> tuple[Any, ...]:
    inner = found
    while not isinstance(inner, FunctionType) and hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = inner.__code__ if isinstance(inner, FunctionType) else None
    return found, code


def settings() -> dict[str, str]:
    """Every setting as text."""
    return {name: _told(read) for name, read in SETTINGS.items()}


def _told(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except (RuntimeError, AttributeError):  # mixed old and new precision settings, or too old torch
        return "unknown"


def listeners() -> list[str]:
    """What watches every call, function mode or collection of the process."""
    found = []
    if sys.gettrace() is not None or threading.gettrace() is not None:
        found.append("sys.settrace")
    if sys.getprofile() is not None:
        found.append("sys.setprofile")
    modes = torch.overrides._get_current_function_mode_stack()
    found += [
        f"torch function mode {type(mode).__name__}"
        for mode in modes
        if type(mode).__module__ != "torch.utils._device"  # what set_default_device leaves behind
    ]
    if torch._C._len_torch_dispatch_stack():
        found.append("a torch dispatch mode")
    return found


def sharing(
    outputs: Sequence[Sequence[torch.Tensor]],
    inputs: Iterable[torch.Tensor],
    state: Iterable[torch.Tensor | None],
) -> list[str]:
    """How the outputs of several calls share memory with each other, inputs or parameters."""
    found: dict[str, None] = {}
    owners: dict[int, str] = {}
    for tensor in inputs:
        owners.setdefault(storage(tensor), "an input")
    for held in state:
        if held is not None:
            owners.setdefault(storage(held), "a parameter or buffer")
    for call in outputs:
        mine: dict[int, str] = {}
        for leaf, tensor in enumerate(call):
            if not tensor.numel():
                continue
            place = storage(tensor)
            if place in mine:
                found[f"outputs {mine[place]} and {leaf} of one call share memory"] = None
            elif place in owners:
                found[f"output {leaf} shares memory with {owners[place]}"] = None
            mine.setdefault(place, str(leaf))
        owners |= dict.fromkeys(mine, "an earlier call's output")
    return list(found)


def storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
