"""What kernels find under the name cupy: RawModule, RawKernel and streams, on the driver's API;
and under cupy_backends the call that launches.

A kernel's binary is the shipped one of this architecture; where that is missing, damaged or refused
by the driver, NVRTC compiles the source, with one warning.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import logging
import threading
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent.export.runtime import nvrtc, records
from agent.export.runtime.arguments import Packed
from agent.export.runtime.driver import CARVEOUT, MAX_DYNAMIC_SHARED, Devices, DriverError, Launch

logger = logging.getLogger(__name__)

BACKENDS = "cupy_backends"
PLACES = 1024
"""Launches of a kernel, by grid, block, shared memory and stream, that are remembered."""
Compiler = Callable[[str, Sequence[str], str, Sequence[str]], tuple[bytes, dict[str, str]]]
"""`nvrtc.compile_cubin`."""


def source_key(code: str, options: Sequence[str], expressions: Sequence[str]) -> str:
    """What a binary was made from."""
    text = json.dumps([code, list(options), list(expressions)])
    return hashlib.sha256(text.encode()).hexdigest()


def fits(binary: str, major: int, minor: int) -> bool:
    """Whether a cubin for `sm_86`, `sm_90a`... runs on a device of that capability."""
    number = binary.removeprefix("sm_")
    if not number.isdigit():  # sm_90a, sm_100f: that device alone
        return number.rstrip("abcdefghijklmnopqrstuvwxyz") == f"{major}{minor}"
    return int(number[:-1]) == major and int(number[-1]) <= minor


class Cupy:
    """Stands for the module cupy in one kernel's source."""

    def __init__(
        self,
        folder: Path,
        binaries: Sequence[records.Binary],
        driver: Devices,
        compiler: Compiler = nvrtc.compile_cubin,
    ) -> None:
        self.folder, self.binaries = folder, binaries
        self.driver, self.compiler = driver, compiler
        self.streams, self.packed = Streams(), Packed()
        self.handles: dict[int, Kernel] = {}
        """Kernels by the handles that were asked for, of any device."""
        self.cuda = types.SimpleNamespace(
            ExternalStream=partial(ExternalStream, self.streams, driver)
        )
        self.backends = types.SimpleNamespace(cuda=types.SimpleNamespace(
            api=types.SimpleNamespace(driver=types.SimpleNamespace(launchKernel=self._launched))
        ))  # fmt: skip

    def RawModule(
        self,
        *,
        code: str,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
    ) -> RawModule:
        return RawModule(self, code, options, name_expressions or (), enable_cooperative_groups)

    def RawKernel(
        self,
        code: str,
        name: str,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        *,
        enable_cooperative_groups: bool = False,
    ) -> Kernel:
        made = self.RawModule(
            code=code, options=options, enable_cooperative_groups=enable_cooperative_groups
        )
        return made.get_function(name)

    def _launched(self, function: int, *rest: int) -> None:
        """`launchKernel`: a grid, a block, bytes of shared memory, a stream, the address of the
        arguments' addresses, and nothing else.
        """
        *numbers, shared_bytes, stream, addresses, _ = rest
        x, y, z, *block = numbers
        kernel = self.handles.get(function)
        if kernel is not None:  # on another device its handle is another
            function = kernel.function()
        at = Launch((x, y, z), (block[0], block[1], block[2]), shared_bytes, stream)
        self.driver.launch(function, addresses, at)

    def importing(self) -> dict[str, Any]:
        """`__builtins__` of the source's module: its imports of cupy find this object."""

        def find(
            name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
        ) -> Any:
            package, _, inner = name.partition(".")
            if level or package not in ("cupy", BACKENDS):
                return builtins.__import__(name, globals, locals, fromlist, level)
            found: Any = self if package == "cupy" else self.backends
            for part in inner.split(".") if fromlist and inner else ():
                found = getattr(found, part, None)
                if found is None:
                    raise ImportError(f"an exported library has no {name}")
            return found

        return {**vars(builtins), "__import__": find}


class RawModule:
    """The kernels of one source, loaded on each device at its first launch."""

    def __init__(
        self,
        cupy: Cupy,
        code: str,
        options: Sequence[str],
        expressions: Sequence[str],
        cooperative: bool = False,
    ) -> None:
        self.driver, self.cupy, self.cooperative = cupy.driver, cupy, cooperative
        self._code = code
        self._options, self._expressions = tuple(options), tuple(expressions)
        key = source_key(code, self._options, self._expressions)
        self._binaries = [b for b in cupy.binaries if b.source == key]
        self._loaded: dict[int, tuple[int, dict[str, str]]] = {}
        self._lock = threading.Lock()

    def get_function(self, name: str) -> Kernel:
        return Kernel(self, name)

    def compile(self, log_stream: Any = None) -> None:
        """It is compiled where it is loaded."""

    def find(self, name: str, device: int) -> int:
        """The function on the current device; raises where neither way gives one."""
        with self._lock:
            if device not in self._loaded:
                self._loaded[device] = self._load(device)
            module, symbols = self._loaded[device]
        return self.driver.function(module, symbols.get(name, name))

    def _load(self, device: int) -> tuple[int, dict[str, str]]:
        major, minor = self.driver.arch(device)
        for binary in self._binaries:
            if not fits(binary.arch, major, minor):
                continue
            try:
                cubin = records.checked_bytes(self.cupy.folder, binary.file, binary.sha256)
                return self.driver.load(cubin), dict(binary.symbols)
            except (records.LibraryError, DriverError) as error:
                logger.warning("%s is not used (%s); NVRTC compiles its source", binary.file, error)
        arch = f"sm_{major}{minor}"
        cubin, symbols = self.cupy.compiler(self._code, self._options, arch, self._expressions)
        return self.driver.load(cubin), symbols


class Kernel:
    """One kernel, launched as cupy launches it."""

    def __init__(self, module: RawModule, name: str) -> None:
        self._module, self._name = module, name
        self._functions: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._places: dict[tuple[Any, ...], Launch] = {}

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        cupy = self._module.cupy
        device = cupy.driver.device()
        pointer = cupy.streams.current.get(device, 0) if stream is None else stream.ptr
        try:
            at = self._places[grid, block, shared_mem, pointer]
        except (KeyError, TypeError):  # a new one, or a list, which has no hash
            at = self._place(tuple(grid), tuple(block), shared_mem, pointer)
        function = self._functions.get(device) or self.function()
        cupy.driver.launch(function, cupy.packed.addresses(args), at)

    def _place(
        self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int, pointer: int
    ) -> Launch:
        at = Launch(sizes(grid), sizes(block), shared_mem, pointer, self._module.cooperative)
        if len(self._places) >= PLACES:
            self._places.clear()
        return self._places.setdefault((grid, block, shared_mem, pointer), at)

    def function(self) -> int:
        """Its handle on the current device."""
        device = self._module.driver.device()
        return self._functions.get(device) or self._prepared(device)

    @property
    def kernel(self) -> Kernel:
        """What cupy has loaded of it, here launched alike; it is loaded on the current device."""
        self.function()
        return self

    @property
    def ptr(self) -> int:
        """As `function`: of what cupy has loaded."""
        return self.function()

    def _prepared(self, device: int) -> int:
        function = self._module.find(self._name, device)
        for attribute, value in self._wanted.items():
            self._module.driver.configure(function, attribute, value)
        self._functions[device] = function
        self._module.cupy.handles[function] = self
        return function

    def _want(self, attribute: int, value: int) -> None:
        self._wanted[attribute] = int(value)
        self._functions.clear()

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._wanted.get(MAX_DYNAMIC_SHARED, 48 << 10)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._want(MAX_DYNAMIC_SHARED, value)

    @property
    def preferred_shared_memory_carveout(self) -> int:
        return self._wanted.get(CARVEOUT, -1)

    @preferred_shared_memory_carveout.setter
    def preferred_shared_memory_carveout(self, value: int) -> None:
        self._want(CARVEOUT, value)


class Streams(threading.local):
    """A thread's streams for launches that name none, of one kernel's source: no other's launches
    see what it chose.
    """

    def __init__(self) -> None:
        self.current: dict[int, int] = {}
        """By device."""
        self.before: list[tuple[int, int]] = []
        """Of the blocks `with` that it is in."""


class ExternalStream:
    """Launches inside `with`, or after `use`, go to this stream."""

    def __init__(self, streams: Streams, driver: Devices, ptr: int, device_id: int = -1) -> None:
        self.ptr, self._streams, self._driver = ptr, streams, driver

    def use(self) -> ExternalStream:
        self._streams.current[self._driver.device()] = self.ptr
        return self

    def __enter__(self) -> ExternalStream:
        streams, device = self._streams, self._driver.device()
        streams.before.append((device, streams.current.get(device, 0)))
        streams.current[device] = self.ptr
        return self

    def __exit__(self, *error: object) -> None:
        device, before = self._streams.before.pop()
        self._streams.current[device] = before


def sizes(given: Sequence[int]) -> tuple[int, int, int]:
    """Three of them, none under 1, as cupy fills them up."""
    x, y, z = (*given, 1, 1)[:3]
    return max(1, x), max(1, y), max(1, z)
