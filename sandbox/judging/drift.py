"""Rounds that do not count: the reference ran slower beside a candidate than alone, or the core
that launches did not serve both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

SOLO_ROUNDS = 3
SOLO_KEPT = 5
SOLO_AGREES = 0.05
"""Relative difference of a fresh solo batch from the known ones that makes these forgotten."""
DRIFT = {"cuda": 0.15, "cpu": 0.5}
"""Relative slow-down of the reference, beyond five times its solo spread, that voids a round: a
shared CPU is that noisy by itself."""

SHORT_CALL_S = 50e-6
"""Up to here a call may be bound by the core that launches it."""
UNEVEN = 1.4
"""Ratio of that core's paces on the two sides. It was 1.0 to 1.25 where calls took 10 us, and 1.8
to 2.1 where they took 15 us (H200)."""


class Alone(NamedTuple):
    """One batch of the reference alone."""

    call_s: float
    pace: float


def timed_alone(known: tuple[Alone, ...], alone: Callable[[], Alone]) -> tuple[Alone, ...]:
    """What drift is measured by, newest last: batches of the reference alone, from earlier pairs
    too as long as a fresh one agrees.
    """
    fresh = [alone()]
    if not known or abs(fresh[0].call_s / _usual(known).call_s - 1) > SOLO_AGREES:
        known = ()
        fresh += [alone() for _ in range(SOLO_ROUNDS - 1)]
    return (*known, *fresh)[-SOLO_KEPT:]


def drift(call_s: float, pace: float, solo: Sequence[Alone], device: str) -> str:
    """Why a round is void in which a call of the reference took so long; empty where it is not.

    Where the launching core was slower than it was for the reference alone, so may the calls be.
    """
    usual = _usual(solo)
    spread = statistics.median(abs(one.call_s - usual.call_s) for one in solo)
    fair = usual.call_s * max(1.0, pace / usual.pace)
    if call_s <= fair * (1 + DRIFT[device]) + 5 * spread:
        return ""
    return f"reference took {call_s * 1e6:.1f} us a call, {usual.call_s * 1e6:.1f} us alone"


def _usual(solo: Sequence[Alone]) -> Alone:
    return Alone(*map(statistics.median, zip(*solo, strict=True)))


def uneven(reference: float, candidate: float) -> str:
    """Why a round is void in which the launching core's paces were these; empty where it is not."""
    if max(reference, candidate) <= UNEVEN * min(reference, candidate):
        return ""
    return f"the launching core was {reference:.2f} and {candidate:.2f} times slower than it can be"
