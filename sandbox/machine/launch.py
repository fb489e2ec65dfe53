"""Launching kernels of our own through cupy, as candidates in language `cuda` do; its one owner."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch

from sandbox.errors import DeviceError, install
from sandbox.machine import memory


@functools.cache
def cupy() -> Any:
    """The package. Raises DeviceError where it is missing.

    What it compiles in this process stays in memory: its cache in the user's home is read
    unquestioned, and on some hosts a candidate can write there.
    """
    try:
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
        import cupy
    except (ImportError, OSError) as error:
        cuda = (torch.version.cuda or "13").partition(".")[0]
        raise DeviceError(f"cupy cannot be imported ({error}): {install(f'cuda{cuda}')}") from error
    return cupy


@functools.cache
def kernel(source: str, name: str) -> Any:
    """A `__global__` function, compiled when it is first launched on a device."""
    return cupy().RawKernel(source, name)


@contextlib.contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Launches go to torch's current stream of this device. Raises memory.OutOfMemoryError where
    the device has no room to load one, DeviceError where else it fails.
    """
    stream = torch.cuda.current_stream(device).cuda_stream
    try:
        with cupy().cuda.Device(device.index), cupy().cuda.ExternalStream(stream):
            yield
    except Exception as error:  # cupy's have no class in common
        kind = memory.OutOfMemoryError if "OUT_OF_MEMORY" in str(error) else DeviceError
        raise kind(f"a kernel of ours cannot be launched: {error}") from error
