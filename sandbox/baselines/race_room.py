"""What of a device's memory the races of a task may take, and what may wait or work beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sandbox.machine.device import free_bytes
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import SLOWLY_FREED_BYTES
from sandbox.types import EvalConfig, Task

BESIDE_BYTES = 1 << 30
"""Inputs and outputs of a call up to which workers are called once while others are timed, and wait
between races whatever a pair takes."""
WAITING_SHARE, PAIR_SHARE = 0.15, 0.65
"""Of free memory, the call and the pair up to which workers wait where calls are larger: their
contexts are some gigabytes, which the largest pairs need."""
AHEAD_SHARE, AHEAD_CALLS = 0.8, 2
"""Of free memory that a pair and what is compiled beside it may take, a call twice over each."""
NEXT_SHARE = 0.4
"""Of free memory that a pair or group may take beside which two other tasks are begun: of each four
processes have a context and a small call, some gigabytes."""
KEPT_SHARE = 0.2
"""Of free memory that the pairs of a race may take for their references to serve the next race: a
plan fills the memory with a single pair."""
FREE_SHARE = 0.5
"""Of the memory that was free before a race: with less left, none of its references stays. What
their calls take besides outputs is in no plan."""
STAYING_BYTES = 1 << 30
"""Of parameters up to which a model stays on a GPU between races."""


def stays(task: Task, signature: Signature, room: int) -> bool:
    """Whether workers wait between races, without arenas, where so many bytes are free: CUDA
    contexts are made by turns, a quarter of a second each (H200). A process on the CPU is forked in
    no time, and what it did before shows in its heap.
    """
    call = signature.input_bytes + signature.output_bytes
    small = call <= max(BESIDE_BYTES, WAITING_SHARE * room)
    return task.device == "cuda" and small and signature.state_bytes <= STAYING_BYTES


def small(signature: Signature) -> bool:
    """Whether workers may be called once while others are timed."""
    return signature.input_bytes + signature.output_bytes <= BESIDE_BYTES


def at_once_bytes(scheme: Plan, signature: Signature, sides: int) -> int:
    """What so many sides take, of which each has its own inputs, outputs and parameters."""
    return sides * (scheme.bytes(signature) // 2 + signature.state_bytes)


def fits(scheme: Plan, signature: Signature, device: str, sides: int) -> bool:
    """Whether the reference may be timed once for several rivals."""
    one = at_once_bytes(scheme, signature, sides)
    return not signature.mutates and one <= PAIR_SHARE * free_bytes(device)


@dataclass(frozen=True)
class Room:
    """As it is before the first race of a task."""

    free: int
    """Bytes."""
    small: bool
    """Workers are called once while others are timed, and wait whatever a pair takes."""
    stays: bool
    """Workers are opened while others are timed, and wait for the next race."""
    beside: float
    """So many workers may compile and call the model while a pair is timed."""
    leaves_room: bool
    """Another task may be examined, and its workers compile, beside this one."""
    few: bool
    """The references of all pairs may keep their memory."""
    large: bool
    """The end of what was timed is waited for before more memory is taken. Elsewhere only before
    something is timed."""

    @classmethod
    def of(
        cls, task: Task, config: EvalConfig, signature: Signature, scheme: Plan, sides: int
    ) -> Room:
        """With so many sides at once."""
        free, call = free_bytes(task.device), signature.input_bytes + signature.output_bytes
        one, light = at_once_bytes(scheme, signature, sides), small(signature)
        return cls(
            free=free,
            small=light,
            stays=stays(task, signature, free) and (light or one <= PAIR_SHARE * free),
            beside=math.inf if light else (AHEAD_SHARE * free - one) // (AHEAD_CALLS * call),
            leaves_room=light and one <= NEXT_SHARE * free,
            few=config.min_pairs * one <= KEPT_SHARE * free,
            large=one > SLOWLY_FREED_BYTES,
        )
