"""A launch's arguments, laid out as cupy lays them out: a Python int is 64 bits, a float a double,
a numpy scalar its own bytes.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

CODES: dict[type, str] = {int: "q", float: "d", bool: "?7x"}
"""Of `struct`."""
SCALARS = {
    "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q", "uint8": "B7x", "uint16": "H6x",
    "uint32": "I4x", "uint64": "Q", "float16": "e6x", "float32": "f4x", "float64": "d",
    "bool": "?7x", "bool_": "?7x",
}  # fmt: skip
"""Of numpy's by name: a kernel brings numpy, this module does not."""


class Packed(threading.local):
    """A thread's memory for arguments; the driver has read it when a launch returns."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, ...], tuple[Callable[..., None], Any, int, Any]] = {}
        self._held: Any = None

    def addresses(self, args: Sequence[Any]) -> int:
        """Where the addresses of these arguments are, until the thread's next launch. Raises
        TypeError for what is no number.
        """
        kinds = tuple(map(type, args))
        found = self._known.get(kinds)
        if found is None:
            codes = [code_of(kind) for kind in kinds]
            if None in codes:
                return self._boxed(args)
            found = self._known.setdefault(kinds, _room("".join(filter(None, codes)), len(kinds)))
        try:
            found[0](found[1], 0, *args)
        except struct.error:  # over 63 bits
            return self._boxed(args)
        return found[2]

    def _boxed(self, args: Sequence[Any]) -> int:
        boxes = [boxed(argument) for argument in args]
        pointers = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
        self._held = boxes, pointers
        return ctypes.addressof(pointers)


def code_of(kind: type) -> str | None:
    """Of an argument's type, eight bytes; None where it has to be boxed."""
    return SCALARS.get(kind.__name__) if kind.__module__ == "numpy" else CODES.get(kind)


def _room(codes: str, count: int) -> tuple[Callable[..., None], Any, int, Any]:
    """What packs such arguments, eight bytes each, where to, and where their addresses are."""
    packer = struct.Struct("=" + codes)
    buffer = ctypes.create_string_buffer(max(8, packer.size))
    first = ctypes.addressof(buffer)
    pointers = (ctypes.c_void_p * count)(*(first + 8 * i for i in range(count)))
    return packer.pack_into, buffer, ctypes.addressof(pointers), pointers


def boxed(argument: Any) -> Any:
    """A ctypes object with the argument's bytes; raises TypeError for what is no number."""
    if isinstance(argument, bool):
        return ctypes.c_bool(argument)
    if isinstance(argument, int):
        return ctypes.c_uint64(argument)  # wraps negative numbers: their bits
    if isinstance(argument, float):
        return ctypes.c_double(argument)
    data = memoryview(argument).tobytes()
    return ctypes.create_string_buffer(data, len(data))
