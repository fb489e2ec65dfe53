"""A GPU's memory that a candidate keeps from those that measure it: told from our own shortage.

A candidate that asks for more than there is fails by itself. One that stops just before that lets
the supervisor's arenas and comparisons fail instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from sandbox.errors import Crowded, DeviceError
from sandbox.judging.judge import MEMORY_TYPES
from sandbox.machine import memory
from sandbox.machine.gpu_state import GpuWatch
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import Failure, FailureKind
from sandbox.subjects.plan import MEMORY_SHARE
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject

SHARE = (1 - MEMORY_SHARE) / 2
"""Of a GPU's memory: one side's part of what the plan leaves to both."""
UNCROWDED = 0.7
"""Of a GPU's memory: with so much left beside it, a candidate lacked nothing that others held."""
SHORTAGE = "OutOfMemoryError"
"""As torch and cupy call it, on a GPU."""
CONTEXT_BYTES = 1 << 30
"""Beside it: what CUDA and its libraries take in any process is about half of this."""


def most(memory_bytes: int) -> int:
    """What a candidate may hold of a GPU with so much memory, before it is in others' way."""
    return int(SHARE * memory_bytes) + CONTEXT_BYTES


def own_bytes(signature: Signature, calls: int) -> int:
    """What a candidate may hold at once for so many calls: their outputs, its parameters twice, and
    twice what one call takes.
    """
    one_call = signature.input_bytes + signature.output_bytes + signature.state_bytes
    return calls * signature.output_bytes + 2 * one_call


def blame(failure: Failure) -> Failure:
    """A reference that fails beside a candidate is our fault, unless the host's memory was taken
    from it (a GPU's: `room_beside`).
    """
    if failure.stage != "reference":
        return failure
    if MEMORY_TYPES & set(failure.types):
        words = "the candidate left no memory for the reference"
        return Failure("time", FailureKind.MEMORY, message=words)
    return replace(failure, kind=FailureKind.FAULT)


def refuse_hoard(candidate: Subject, gpu: GpuWatch | None, memory_bytes: int) -> None:
    """Raise WorkerFailed where importing it took more than its share, beside what we gave it:
    others, which are measured before its own turn comes, would lack that.
    """
    held = None if gpu is None else gpu.held_bytes(candidate.worker.pid)
    if held is not None and held > most(memory_bytes) + candidate.given_bytes:
        raise _hoards(candidate, held)


@contextmanager
def room_beside(
    candidate: Subject | None,
    device: str,
    memory_bytes: int,
    needed_bytes: int = 0,
    *,
    settle: Callable[[], object] = lambda: None,
    crowded: bool = False,
) -> Iterator[None]:
    """Where a GPU's memory runs out in the block, for us, the reference or the candidate, tell
    whose fault that is: raises WorkerFailed where the candidate held more than its share, or lacked
    memory although it had its share; else DeviceError.

    `candidate`: None where it is to be started in the block. `needed_bytes`: its share, if that is
    more. `settle` waits for workers that are ending. `crowded`: idle workers may hold memory, which
    it could have another time; then Crowded is raised where it has its share, but not nearly all.
    """
    share = max(most(memory_bytes), needed_bytes)
    failed: WorkerFailed | None = None
    try:
        yield
        return
    except (memory.OutOfMemoryError, torch.OutOfMemoryError) as error:
        words = str(error)
    except WorkerFailed as error:
        if device == "cpu" or SHORTAGE not in error.failure.types:
            raise
        failed, words = error, str(error)
    torch.cuda.empty_cache()  # out here: the exception's frames held tensors
    settle()
    free = memory.steady_free_bytes()
    others = memory.arena_bytes()
    if candidate is not None:
        candidate.worker.close()
        memory.wait_for_device(free + share)
    left = memory.device_free_bytes() + memory.arena_bytes() - others
    if candidate is not None and left - free > share:
        raise _hoards(candidate, left - free)
    if failed is not None and failed.failure.stage != "reference" and left > share:
        if crowded and left < UNCROWDED * memory_bytes:
            raise Crowded(words)
        raise failed
    raise DeviceError(words)


def _hoards(candidate: Subject, held_bytes: int) -> WorkerFailed:
    words = f"it holds {held_bytes >> 20} MiB of the GPU's memory, too much to measure it beside"
    return WorkerFailed(Failure(candidate.stage, FailureKind.MEMORY, message=words))
