"""Which cores of a GPU's host do what: the launches of timed calls get one core to themselves.

A call of a few microseconds is bound by the thread that launches it. Left to the scheduler, the two
sides of a pair sat on cores of unequal speed for the whole pair: sixteen-microsecond calls of equal
code differed by up to 2.3 times (H200, 16 virtual cores). Both sides' launching threads take turns
on one core, and no other worker runs there.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

LEAST_CORES = 4
"""Fewer are all needed for work."""


def launching_core(gpu: str) -> int | None:
    """The core for one GPU, given as CUDA_VISIBLE_DEVICES names it; None where cores are few."""
    cores, gpus = sorted(os.sched_getaffinity(0)), _gpus()
    if len(cores) < max(LEAST_CORES, 2 * gpus):
        return None
    number = int(gpu) if gpu.isdigit() else zlib.crc32(gpu.encode())
    return cores[-1 - number % gpus]


def common_cores() -> set[int]:
    """For all other work: every core but those on which some GPU's calls are launched."""
    cores, gpus = sorted(os.sched_getaffinity(0)), _gpus()
    return set(cores) if len(cores) < max(LEAST_CORES, 2 * gpus) else set(cores[:-gpus])


def _gpus() -> int:
    """GPUs of the host, visible or not: other processes serve the others."""
    return max(1, len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))
