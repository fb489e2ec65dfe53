"""Arenas: dedicated allocations shared with exactly one worker, never torch's caching pool.

On the CPU an arena is a memfd; on a GPU a `cuMemAlloc` of whole 2 MiB pages, because an IPC handle
exposes the whole underlying allocation. The CUDA driver is called through ctypes: torch offers no
IPC for memory it does not pool.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sandbox.errors import DeviceError
from sandbox.machine import pages
from sandbox.machine.pages import Kept, Pages
from sandbox.machine.trees import Layout, Leaf, stride_class

FREED_WITHIN_S = 3.0
STEADY_S, STEADY_LOOKS = 0.3, 6
"""How long free memory stays the same before it is believed, and in how many looks."""
CUDA_ERROR_OUT_OF_MEMORY = 2
"""cuda.h, cudaError_enum."""
PAGE = 2 << 20
"""CUDA's allocation granularity; smaller requests share a page and so an IPC handle."""


class OutOfMemoryError(DeviceError):
    """The device has no room. By this name a worker's own says the same."""


class Arena(Protocol):
    """Bytes that the supervisor and one worker share."""

    bytes: torch.Tensor
    """(size,) uint8 view of the whole arena."""
    room: int
    """Bytes that it may be made to `fit`."""

    def ticket(self) -> dict[str, Any]:
        """JSON the worker needs to open it; a host arena's descriptor travels beside it."""
        ...

    @property
    def fds(self) -> list[int]: ...

    def fit(self, size: int) -> bool:
        """Be an arena of so many bytes, for the same worker; False where there is no room."""
        ...

    def close(self, *, unshared: bool = False) -> None:
        """`unshared`: the worker has ended, and none of its processes is left."""
        ...


class HostArena:
    """Anonymous shared memory (sandbox/machine/pages.py)."""

    def __init__(self, size: int, kept: Kept = pages.trusted, *, fresh: bool = False) -> None:
        """`kept`: where its pages come from and go to. `fresh` ones do neither: a figure has new
        ones every time, so that what it leaves would only fill the store.
        """
        self._kept = None if fresh else kept
        self._pages = Pages(size) if fresh else kept.take(size)
        self.room = self._pages.size
        if fresh:
            try:
                self._pages.touch()
            except OSError as error:
                self._pages.close()
                raise OutOfMemoryError(f"{size >> 20} MiB of host memory: {error}") from None
        self.fit(size)

    def ticket(self) -> dict[str, Any]:
        return {"kind": "host", "size": self.bytes.numel(), "room": self._pages.size}

    @property
    def fds(self) -> list[int]:
        return [self._pages.fd]

    def fit(self, size: int) -> bool:
        if size > self._pages.size:
            return False
        self.bytes = torch.frombuffer(self._pages.map, dtype=torch.uint8, count=size)
        return True

    def close(self, *, unshared: bool = False) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if unshared and self._kept is not None:
            self._kept.give(self._pages)
        else:
            self._pages.close()


class DeviceArena:
    """One `cuMemAlloc` in the current context, shareable by CUDA IPC."""

    def __init__(self, size: int) -> None:
        self.room = size = _whole_pages(size)
        _bind()
        pointer = ctypes.c_uint64()
        try:
            driver().call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        except OutOfMemoryError:  # torch may hold freed memory that the driver lacks
            torch.cuda.empty_cache()
            driver().call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self._pointer = pointer
        _sizes[pointer.value or 0] = size
        self._context = ctypes.c_void_p()
        driver().call("cuCtxGetCurrent", ctypes.byref(self._context))
        self.bytes = _view(pointer.value, size)

    def ticket(self) -> dict[str, Any]:
        handle = (ctypes.c_char * 64)()
        driver().call("cuIpcGetMemHandle", ctypes.byref(handle), self._pointer)
        return {"kind": "cuda", "size": self.bytes.numel(), "handle": handle.raw.hex()}

    @property
    def fds(self) -> list[int]:
        return []

    def fit(self, size: int) -> bool:
        size = _whole_pages(size)
        if size > self.room:
            return False
        self.bytes = _view(self._pointer.value, size)
        return True

    def close(self, *, unshared: bool = False) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        driver().call("cuCtxSetCurrent", self._context)  # the closing thread may be another
        driver().call("cuMemFree_v2", self._pointer)
        _sizes.pop(self._pointer.value or 0, None)


def _bind() -> None:
    """Torch's primary context to this thread: by the driver, without a kernel, which would take a
    turn on a GPU where another process is timed.
    """
    context, device = ctypes.c_void_p(), torch.cuda.current_device()
    if device not in _contexts:
        driver().call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
        _contexts[device] = context
    driver().call("cuCtxSetCurrent", _contexts[device])


_contexts: dict[int, ctypes.c_void_p] = {}
"""Of this process, by device."""


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


_sizes: dict[int, int] = {}
"""Bytes of every device arena that is not closed, by address."""


@contextlib.contextmanager
def pinned(shared: torch.Tensor) -> Iterator[None]:
    """Meanwhile the GPU copies from this host memory directly, where the driver agrees."""
    place = ctypes.c_void_p(shared.data_ptr())
    try:
        driver().call(
            "cuMemHostRegister_v2", place, ctypes.c_size_t(shared.numel()), ctypes.c_uint(0)
        )
    except DeviceError:
        yield
        return
    try:
        yield
    finally:
        driver().call("cuMemHostUnregister", place)


def allocate(size: int, device: str, *, trusted: bool = True, fresh: bool = False) -> Arena:
    """An arena of `size` bytes, on a GPU of at least so many; `trusted`: for a reference's worker;
    `fresh`: in memory that no worker had before. Raises OutOfMemoryError where there is no room.
    """
    if device == "cuda":
        return DeviceArena(max(size, 1))
    kept = pages.trusted if trusted else pages.untrusted
    return HostArena(max(size, 1), kept, fresh=fresh)


def device_free_bytes() -> int:
    """What the driver has left on the current GPU."""
    return int(torch.cuda.mem_get_info()[0])


def others_free_bytes() -> int:
    """What the driver has left, and what our own arenas take of it: unlike the former alone, this
    does not fall when the next pair has its arenas.
    """
    return device_free_bytes() + arena_bytes()


def arena_bytes() -> int:
    """Of every device arena that is not closed."""
    return sum(list(_sizes.values()))


def wait_for_device(
    wanted_bytes: int,
    left: Callable[[], int] = device_free_bytes,
    patience_s: float = FREED_WITHIN_S,
) -> None:
    """Return when so many bytes are left, or when they have not grown for a while: others may have
    taken them.
    """
    most, grown_at = left(), time.monotonic()
    now = most
    while now < wanted_bytes and time.monotonic() < grown_at + patience_s:
        time.sleep(0.01)
        now = left()
        if now > most:
            most, grown_at = now, time.monotonic()


def steady_free_bytes() -> int:
    """What the driver has left once it stands still, or after a few seconds: it gives an ended
    process's memory back little by little.
    """
    deadline = time.monotonic() + FREED_WITHIN_S
    free, same = device_free_bytes(), 0
    while same < STEADY_LOOKS and time.monotonic() < deadline:
        time.sleep(STEADY_S / STEADY_LOOKS)
        now = device_free_bytes()
        free, same = now, same + 1 if now == free else 0
    return free


class OpenedArena:
    """In a worker: an arena as its ticket describes it."""

    def __init__(self, ticket: dict[str, Any], fd: int | None) -> None:
        self._pointer: ctypes.c_uint64 | None = None
        self._map = mmap.mmap(-1, 1)
        if ticket["kind"] == "host":
            assert fd is not None
            self._map = mmap.mmap(fd, ticket["room"])
            os.close(fd)
            self.fit(ticket["size"])
            return
        torch.zeros(1, device="cuda")
        handle = _IpcHandle.from_buffer_copy(bytes.fromhex(ticket["handle"]))
        self._pointer = ctypes.c_uint64()
        # 1 = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is (cuIpcOpenMemHandle).
        driver().call(
            "cuIpcOpenMemHandle_v2", ctypes.byref(self._pointer), handle, ctypes.c_uint(1)
        )
        self.fit(ticket["size"])

    def fit(self, size: int) -> None:
        """Be of another size, as the supervisor's end is now."""
        if self._pointer is not None:
            self.bytes = _view(self._pointer.value, size)
        else:
            self.bytes = torch.frombuffer(self._map, dtype=torch.uint8, count=size)

    def close(self) -> None:
        """Unmap: the supervisor's free takes effect only when no process maps the memory."""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if self._pointer is not None:
            torch.cuda.synchronize()
            driver().call("cuIpcCloseMemHandle", self._pointer)


def leaf_view(arena: torch.Tensor, layout: Layout, index: int, leaf: int) -> torch.Tensor:
    """Leaf number `leaf` of set number `index` as a tensor over the arena's bytes."""
    spec = layout.leaves[leaf]
    start = index * layout.stride + layout.offsets[leaf]
    flat = arena[start : start + spec.bytes].view(dtype_of(spec))
    return flat.as_strided(spec.shape, spec.stride)


def stacked_view(arena: torch.Tensor, layout: Layout, leaf: int) -> torch.Tensor:
    """(sets, *shape): one leaf of every set, without a copy."""
    spec = layout.leaves[leaf]
    flat = arena[layout.offsets[leaf] :]
    flat = flat[: flat.numel() // spec.itemsize * spec.itemsize].view(dtype_of(spec))
    stride = (layout.stride // spec.itemsize, *spec.stride)
    return flat.as_strided((layout.sets, *spec.shape), stride)


def dtype_of(leaf: Leaf) -> torch.dtype:
    dtype = getattr(torch, leaf.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def describe(tensor: torch.Tensor) -> Leaf:
    """The Leaf that stores a tensor of this shape; expanded or gapped strides become dense."""
    leaf = Leaf(
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.stride()),
        tensor.element_size(),
    )
    dense = stride_class(leaf.shape, leaf.stride) in ("contiguous", "permuted")
    return leaf if dense else leaf.dense()


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


@dataclass
class _Pointer:
    """What torch.as_tensor needs to see foreign device memory (CUDA array interface, version 3)."""

    pointer: int
    size: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "version": 3,
        }


def _view(pointer: int, size: int) -> torch.Tensor:
    return torch.as_tensor(_Pointer(pointer, size), device="cuda")


class _Driver:
    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DeviceError(
                "no NVIDIA driver (libcuda.so.1): install one, or use device cpu"
            ) from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a driver function; raises DeviceError with the driver's own words."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            kind = OutOfMemoryError if code == CUDA_ERROR_OUT_OF_MEMORY else DeviceError
            raise kind(f"{name}: {(text.value or b'?').decode()} (error {code})")


_loaded: list[_Driver] = []


def driver() -> _Driver:
    """The CUDA driver, opened at first use."""
    if not _loaded:
        _loaded.append(_Driver())
    return _loaded[0]
