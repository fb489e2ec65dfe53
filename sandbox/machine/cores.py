"""Which cores of a GPU's host do what: the launches of timed calls get one core to themselves.

A call of a few microseconds is bound by the thread that launches it. Left to the scheduler, the two
sides of a pair sat on cores of unequal speed for the whole pair: sixteen-microsecond calls of equal
code differed by up to 2.3 times (H200, 16 virtual cores). Both sides' launching threads take turns
on one core, and no other worker runs there. What shares it unseen, on the other side of a
hypervisor, shows in its pace: by turns, such calls took 8 us and 11.5 us. And a core that halts is
slow to wake, and may wake beside another neighbour: it is kept awake while a pair is timed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

LEAST_CORES = 4
"""Fewer are all needed for work."""
LOOKS = 7
CALLS = 8
"""Of a tiny operator, in one look: some 10 us of the same code that the launches run through. The
pace of pure arithmetic hardly told (6 % where launches took 1.4 times as long)."""
TOPOLOGY = Path("/sys/devices/system/cpu")
SPIN = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:
    for _ in range(10000):
        pass
"""


class LaunchingCore:
    """One core of this host, by its number; for any thread of the supervisor."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._quickest_s = math.inf

    def pace(self) -> float:
        """Time that work takes there now, relative to the least it was ever seen to take.

        The calling thread does some itself, which nothing that is timed may do meanwhile.
        """
        spent, tiny = [], torch.zeros(8)
        with _confined({self.number}):
            for _ in range(LOOKS):
                start = time.perf_counter()
                for _ in range(CALLS):
                    torch.relu(tiny)
                spent.append(time.perf_counter() - start)
        self._quickest_s = min(self._quickest_s, *spent)
        return statistics.median(spent) / self._quickest_s

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[None]:
        """The calling thread keeps off it."""
        others = os.sched_getaffinity(0) - {self.number}
        with _confined(others) if others else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def kept_awake(self) -> Iterator[None]:
        """A process that steps aside for any other keeps it from halting."""
        command = [sys.executable, "-I", "-S", "-c", SPIN, str(os.getpid())]
        # In a session of its own, where an interrupt from the terminal does not reach it.
        spinner = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            try:
                os.sched_setscheduler(spinner.pid, os.SCHED_IDLE, os.sched_param(0))
                os.sched_setaffinity(spinner.pid, {self.number})
            except OSError as error:  # a container may refuse it: short calls are noisier then
                logger.info("the launching core is not kept awake: %s", error)
                spinner.kill()
            yield
        finally:
            spinner.kill()
            spinner.wait()


@contextlib.contextmanager
def _confined(cores: set[int]) -> Iterator[None]:
    """The calling thread runs on these cores alone."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def launching_core(gpu: str) -> int | None:
    """The core for one GPU, given as CUDA_VISIBLE_DEVICES names it; None where cores are few."""
    apart = _set_apart()
    if not apart:
        return None
    number = int(gpu) if gpu.isdigit() else zlib.crc32(gpu.encode())
    return apart[number % len(apart)][-1]


def common_cores() -> set[int]:
    """For all other work: every core but those on which some GPU's calls are launched."""
    return os.sched_getaffinity(0).difference(*_set_apart())


def _set_apart() -> list[list[int]]:
    """For each GPU the hardware threads of one core; none where cores are few."""
    cores, gpus = sorted(os.sched_getaffinity(0)), _gpus()
    least = max(LEAST_CORES, 2 * gpus)
    if len(cores) < least:
        return []
    whole: dict[str, list[int]] = {}
    for core in cores:
        whole.setdefault(_threads_beside(core), []).append(core)
    groups = list(whole.values()) if len(whole) >= least else [[core] for core in cores]
    return groups[: -gpus - 1 : -1]


def _threads_beside(core: int) -> str:
    """A name of the physical core, whose hardware threads slow each other down: the launches of two
    GPUs, each beside what keeps its core awake, would share one.
    """
    try:
        return (TOPOLOGY / f"cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def _gpus() -> int:
    """GPUs of the host, visible or not: other processes serve the others."""
    return max(1, len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))
