"""A reference that fails: whether that is the task's fault or ours."""

from __future__ import annotations

from sandbox.errors import InvalidReference, SandboxFault
from sandbox.judging.judge import MEMORY_TYPES
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import FailureKind
from sandbox.types import Task


class NoRoom(InvalidReference):
    """Not one call fits, or the reference ran out of memory beside what was planned for it."""


class Died(InvalidReference):
    """Its process ended, by itself or by another's doing: on a host without memory, say."""


def reference_failed(task: Task, failed: WorkerFailed) -> Exception:
    """A reference that raises, hangs or dies is the task's fault; a garbled reply is ours."""
    failure = failed.failure
    words = failure.message.strip().splitlines()
    first = words[0][:300] if words else ""
    if failure.kind is FailureKind.CLAIMED:
        kind = failure.types[0] if failure.types else "error"
        error = NoRoom if set(failure.types) & MEMORY_TYPES else InvalidReference
        return error(f"{task.id}: the reference failed with {kind}: {first}")
    if failure.kind is FailureKind.MEMORY:
        return NoRoom(f"{task.id}: the reference's worker: {first}")
    if failure.kind in (FailureKind.TIMEOUT, FailureKind.DIED):
        error = Died if failure.kind is FailureKind.DIED else InvalidReference
        return error(f"{task.id}: the reference's worker: {first}")
    return SandboxFault(f"{task.id}: the reference's worker: {first}")
