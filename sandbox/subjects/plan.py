"""The memory planner: how many input sets a timed batch holds, within what the device has free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sandbox.judging.invalid import NoRoom
from sandbox.machine.pages import MAPPED_BYTES
from sandbox.subjects.signature import Signature
from sandbox.types import EvalConfig

MEMORY_SHARE = 0.75
"""Of free memory for arenas and retained outputs; the rest is the models' own temporaries."""
MANY_SHARE = 0.55
"""Of free memory beyond LEAST_SETS: among temporaries of another size, torch's allocator may take
twice what retained outputs need (an RMS norm in bf16 ran an H200 out of memory)."""
WARM_SETS = 2
FILL_S = 0.03
"""What making a round's inputs may cost: fresh values for every call are not free on the CPU."""
LEAST_SETS = 4
UNTIMED = 2
"""Whole batches before the first timed one, until the allocator holds a batch's outputs: on the CPU
the first two took four and two times as long as the third."""
SINGLE_CALLS, LEAST_SINGLE, SINGLE_S = 8, 4, 0.002
"""Calls in a round that discloses one input set per "go": fewer where they last so long."""
QUICK, LONGEST, LONGER = 4.0, 8, 1.5
"""A candidate so many times as quick as its reference has batches that end too soon: those of 1 ms
told 21 and 22 times of one kernel (H200). They grow up to so many times, unless by less than so
many: it would not pay for another pair."""
SLOW, SLOW_BATCH_S = 8.0, 0.5
"""A candidate so many times as slow as its reference has batches that last about so long: 82 calls
of 0.4 s, for a reference of 0.1 ms, took a GPU two minutes to tell 0.0002x (H100)."""
SPARE_OUTPUTS = 2
"""More than a batch's, while the allocator grows: once an output is kept, what was freed around it
no longer fits, and the candidate's next batch took three times as long (CPU; the reference's heap
is larger by what its inputs were made in)."""
LEAN_BYTES = 512 << 20
"""Of a call's inputs and outputs, beyond which trusted sides are called on one input set again and
again: no cache holds it. With as many sets as fit, pairs filled an H200, so that every one waited
for the memory of the one before (16 s instead of 5 for a sum over 8 GiB), and where one fitted, a
batch was a single call."""
LEAN_CALLS, LEAN_BATCH_S, LEAN_MOST_S = 2, 0.008, 0.03
"""Of such a batch at least, and how long it lasts at most, but for a single call."""
RESERVED_OUTPUTS, RESERVED_BYTES = 8, 64 << 20
"""More than a batch's, and at most, for which a side's heap has room from the start: what is kept
leaves gaps that nothing fits, and new memory in a timed batch took five times as long as the work
(CPU)."""


@dataclass(frozen=True)
class Plan:
    """Input arenas hold `sets` timed sets, then `warm` warm-up sets; slots hold `sets`."""

    sets: int
    warm: int
    lone: int = SINGLE_CALLS
    """Calls of a round that are alone, where there are so many sets."""
    untimed: int = UNTIMED
    """Batches of either side before the first timed one."""
    repeats: int = 1
    """Calls on every set of a batch."""
    lean: bool = False
    """All calls are on one set, warming up included, and outputs are let go of at once."""

    @property
    def single(self) -> int:
        return min(self.sets, self.lone)

    @property
    def timed(self) -> list[int]:
        return list(range(self.sets)) * self.repeats

    @property
    def warm_sets(self) -> list[int]:
        return [0] if self.lean else list(range(self.sets, self.sets + self.warm))

    @property
    def slots(self) -> int:
        """Sets whose outputs are handed over."""
        return 0 if self.lean else self.sets

    def longer(self, times: float, most: int) -> Plan:
        """For a candidate that is so many times as quick as the reference: its batch lasts half as
        long as planned for the reference's, as far as `most` sets allow; else this plan.
        """
        sets = min(most, math.ceil(self.sets * min(times / 2, LONGEST)))
        longer = times >= QUICK and sets >= LONGER * self.sets
        return replace(self, sets=sets) if longer else self

    def shorter(self, call_s: float, reference_s: float) -> Plan:
        """For a candidate with calls of `call_s`: fewer sets where it is slow, and where those are
        the least nothing untimed, beside which what an allocator takes is little; else this plan.
        """
        sets = max(LEAST_SETS, math.ceil(SLOW_BATCH_S / max(call_s, 1e-7)))
        if call_s < SLOW * reference_s or sets >= self.sets:
            return self
        if sets > LEAST_SETS:
            return replace(self, sets=sets)
        return replace(self, sets=sets, warm=1, untimed=0)

    def leaner(self, signature: Signature) -> Plan:
        """For two sides that are trusted, where calls are large; else this plan."""
        if signature.mutates or signature.input_bytes + signature.output_bytes < LEAN_BYTES:
            return self
        call_s = max(signature.latency_s, 1e-7)
        calls = min(max(LEAN_CALLS, math.ceil(LEAN_BATCH_S / call_s)), int(LEAN_MOST_S / call_s))
        return replace(self, sets=1, warm=0, repeats=max(1, calls), lean=True)

    def reserved(self, signature: Signature, device: str, *, keeps: bool) -> int:
        """Outputs that a side has memory for before its first batch; `keeps`: one of them is kept,
        which those that are large are not: the largest leave no room to spare.
        """
        size = signature.output_bytes
        if device == "cuda" and not keeps:
            return self.sets if self.sets > LEAST_SETS else 0
        if device == "cuda":
            return self.sets + SPARE_OUTPUTS
        fits = 0 < size <= MAPPED_BYTES
        return self.sets + min(RESERVED_OUTPUTS, RESERVED_BYTES // size) if fits else 0

    def bytes(self, signature: Signature) -> int:
        """Of inputs, slots and retained outputs on both sides."""
        inputs = (self.sets + self.warm) * signature.input_bytes  # lean: two outputs at a time
        return 2 * inputs + 4 * self.sets * signature.output_bytes


def plan(signature: Signature, config: EvalConfig, free_bytes: int) -> Plan:
    """As many sets as fill `batch_ms` and fit: inputs and slots on both sides, outputs retained on
    both.

    Raises NoRoom when not even one set fits.
    """
    budget = MEMORY_SHARE * free_bytes
    per_set = 2 * signature.input_bytes + 4 * signature.output_bytes
    wanted = math.ceil(config.batch_ms / 1e3 / max(signature.latency_s, 1e-7))
    # Each warm-up set costs inputs on both sides and, while it runs, an output.
    warm_bytes = 2 * signature.input_bytes + signature.output_bytes
    for warm in (WARM_SETS, 1):
        fits = int((budget - warm * warm_bytes) // per_set)
        if fits > LEAST_SETS:
            many = int((MANY_SHARE * free_bytes - warm * warm_bytes) // per_set)
            fits = max(LEAST_SETS, many)
        if fits >= 1:
            affordable = max(LEAST_SETS, int(FILL_S / max(signature.fill_s, 1e-7)))
            sets = max(1, min(wanted, fits, affordable, config.max_sets))
            long = math.ceil(SINGLE_S / max(signature.latency_s, 1e-7))
            return Plan(sets, warm, min(SINGLE_CALLS, max(LEAST_SINGLE, long)))
    raise NoRoom(
        f"one input set needs {(per_set + warm_bytes) >> 20} MiB for both sides; "
        f"{int(budget) >> 20} MiB are free: use a smaller shape or a larger device"
    )
