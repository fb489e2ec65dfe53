"""The few calls of the CUDA driver that a kernel needs, through ctypes: load, look up, launch.

Only tests with a GPU run it; what is above it is tested with a double of `Devices`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

NO_CONTEXT = 201
CURRENT: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""Of the current device, without asking whether CUDA has begun: every call asks."""
MAX_DYNAMIC_SHARED, CARVEOUT = 8, 9
"""CUfunction_attribute."""


class DriverError(Exception):
    """A call of the driver failed; the message names the error."""


class Launch(NamedTuple):
    """Of a kernel: everything but its arguments."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    cooperative: bool = False
    """All blocks at once, so that they may wait for each other."""


class Devices(Protocol):
    """What kernels ask of the driver."""

    def device(self) -> int:
        """The current one."""

    def arch(self, device: int) -> tuple[int, int]:
        """Its compute capability."""

    def load(self, cubin: bytes) -> int:
        """A module on the current device; modules stay loaded until the process ends."""

    def function(self, module: int, symbol: str) -> int: ...

    def configure(self, function: int, attribute: int, value: int) -> None: ...

    def launch(self, function: int, addresses: int, at: Launch) -> None:
        """`addresses` is where the addresses of the kernel's parameters are, laid out as those."""


class Driver:
    """`libcuda.so.1`; raises DriverError where there is none."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"no CUDA driver ({error})") from error
        number, pointer = ctypes.c_uint, ctypes.c_void_p
        given: list[Any] = [pointer, *[number] * 7, *[pointer] * 2]
        self._alone = self._cuda.cuLaunchKernel
        self._alone.argtypes = [*given, pointer]
        self._cuda.cuLaunchCooperativeKernel.argtypes = given

    def device(self) -> int:
        return CURRENT()

    def arch(self, device: int) -> tuple[int, int]:
        major, minor = torch.cuda.get_device_capability(device)
        return int(major), int(minor)

    def load(self, cubin: bytes) -> int:
        torch.cuda.init()
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        return int(module.value or 0)

    def function(self, module: int, symbol: str) -> int:
        found = ctypes.c_void_p()
        where = ctypes.c_void_p(module)
        self._call("cuModuleGetFunction", ctypes.byref(found), where, symbol.encode())
        return int(found.value or 0)

    def configure(self, function: int, attribute: int, value: int) -> None:
        where = ctypes.c_void_p(function)
        self._call("cuFuncSetAttribute", where, ctypes.c_int(attribute), ctypes.c_int(value))

    def launch(self, function: int, addresses: int, at: Launch) -> None:
        (x, y, z), (u, v, w), shared_bytes, stream, together = at
        if together:
            given = (function, x, y, z, u, v, w, shared_bytes, stream, addresses)
            self._call("cuLaunchCooperativeKernel", *given)
        # Every call comes here: no more than it takes.
        elif self._alone(function, x, y, z, u, v, w, shared_bytes, stream, addresses, None):
            given = (function, x, y, z, u, v, w, shared_bytes, stream, addresses)
            self._call("cuLaunchKernel", *given, None)  # again, in a context, or with its error

    def _call(self, name: str, *arguments: Any) -> None:
        call = getattr(self._cuda, name)
        status = call(*arguments)
        if status == NO_CONTEXT:
            # A thread that has not called CUDA's runtime yet.
            self._enter()
            status = call(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or str(status).encode()).decode()}")

    def _enter(self) -> None:
        """Make the device's primary context, which torch uses, this thread's."""
        context, number = ctypes.c_void_p(), ctypes.c_int()
        self._cuda.cuDeviceGet(ctypes.byref(number), self.device())
        self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
        self._cuda.cuCtxSetCurrent(context)
