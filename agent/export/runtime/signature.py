"""What a kernel was measured on, as text: dtype, shape and strides of every tensor, every number.

Strides are part of it: a view that was not measured goes to the reference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

Argument = Any
"""A tensor, or an int, float or bool."""
Key = tuple[object, ...]
ALIGNMENT_BYTES = {"cpu": 64, "cuda": 256}
"""Where torch's allocators place tensors; a kernel with vector loads may rely on it."""


def key_of(device: str, arguments: Sequence[Argument], init: str) -> Key:
    """The dispatch key of a call; `arguments` are those of forward, then parameters, buffers."""
    return (device, init, *map(_part, arguments))


def signature_of(device: str, arguments: Sequence[Argument], init: str) -> str:
    """The key as JSON, as `library.json` holds it."""
    return json.dumps(key_of(device, arguments, init), default=str)


def parse(signature: str) -> Key:
    """The key that `signature_of` wrote down."""
    device, init, *parts = json.loads(signature)
    return (device, init, *map(_read, parts))


def readable(arguments: Sequence[Argument]) -> str:
    """`float32[128,64]`, strides only where they are not the contiguous ones."""
    return " ".join(_word(argument) for argument in arguments)


def misplaced(arguments: Sequence[Argument], device: torch.device) -> str | None:
    """Why no kernel may read these tensors' memory; None where every one lies on the device, as
    its allocator would have put it.
    """
    step = ALIGNMENT_BYTES.get(device.type, 1)
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if argument.device != device:
                return "on several devices"
            if argument.data_ptr() % step:
                return "not aligned"
            if argument.is_neg():
                return "negation pending"
    return None


def _part(argument: Argument) -> object:
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.shape, argument.stride()
    return type(argument).__name__, argument


def _read(part: list[Any]) -> object:
    kind, *rest = part
    if kind.startswith("torch."):
        return (getattr(torch, kind.removeprefix("torch.")), *map(tuple, rest))
    return kind, *rest


def _word(argument: Argument) -> str:
    if not isinstance(argument, torch.Tensor):
        return repr(argument)
    sizes = ",".join(map(str, argument.shape))
    strides = "" if argument.is_contiguous() else f" strides {tuple(argument.stride())}"
    return f"{str(argument.dtype).removeprefix('torch.')}[{sizes}]{strides}"
