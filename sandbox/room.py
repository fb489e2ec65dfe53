"""A GPU's memory that a candidate keeps from those that measure it: told from our own shortage.

A candidate that asks for more than there is fails by itself. One that stops just before that lets
the supervisor's arenas and comparisons fail instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sandbox import memory
from sandbox.errors import DeviceError
from sandbox.gpu_state import GpuWatch
from sandbox.handle import WorkerFailed
from sandbox.observation import Failure, FailureKind
from sandbox.plan import MEMORY_SHARE
from sandbox.subject import Subject

SHARE = (1 - MEMORY_SHARE) / 2
"""Of a GPU's memory: one side's part of what the plan leaves to both."""
SHORTAGE = "OutOfMemoryError"
"""As torch and cupy call it, on a GPU."""
CONTEXT_BYTES = 1 << 30
"""Beside it: what CUDA and its libraries take in any process is about half of this."""


def most(memory_bytes: int) -> int:
    """What a candidate may hold of a GPU with so much memory, before it is in others' way."""
    return int(SHARE * memory_bytes) + CONTEXT_BYTES


def refuse_hoard(candidate: Subject, gpu: GpuWatch | None, memory_bytes: int) -> None:
    """Raise WorkerFailed where importing it took more than its share: others, which are measured
    before its own turn comes, would lack that.
    """
    held = None if gpu is None else gpu.held_bytes(candidate.worker.pid)
    if held is not None and held > most(memory_bytes):
        raise _hoards(candidate, held)


@contextmanager
def room_beside(candidate: Subject, memory_bytes: int, needed_bytes: int = 0) -> Iterator[None]:
    """Where a GPU's memory runs out in the block, for us, the reference or the candidate, tell
    whose fault that is: raises WorkerFailed where the candidate held more than its share, or lacked
    memory although it had its share; else DeviceError. `needed_bytes`: its share, if that is more.
    """
    share = max(most(memory_bytes), needed_bytes)
    failed: WorkerFailed | None = None
    try:
        yield
        return
    except (memory.OutOfMemoryError, torch.OutOfMemoryError) as error:
        words = str(error)
    except WorkerFailed as error:
        if candidate.task.device == "cpu" or SHORTAGE not in error.failure.types:
            raise
        failed, words = error, str(error)
    torch.cuda.empty_cache()  # out here: the exception's frames held tensors
    free = memory.steady_free_bytes()
    candidate.worker.close()
    memory.wait_for_device(free + share)
    left = memory.device_free_bytes()
    if left - free > share:
        raise _hoards(candidate, left - free)
    if failed is not None and failed.failure.stage != "reference" and left > share:
        raise failed
    raise DeviceError(words)


def _hoards(candidate: Subject, held_bytes: int) -> WorkerFailed:
    words = f"it holds {held_bytes >> 20} MiB of the GPU's memory, too much to measure it beside"
    return WorkerFailed(Failure(candidate.stage, FailureKind.MEMORY, message=words))
