"""Rounds that do not count: the reference ran slower beside a candidate than alone, or the core
that launches did not serve both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

SOLO_ROUNDS = 3
SOLO_KEPT = 5
SOLO_AGREES = 0.05
"""Relative difference of a fresh solo batch from the known ones that makes these forgotten."""
DRIFT = {"cuda": 0.15, "cpu": 0.5}
"""Relative slow-down of the reference, beyond five times its solo spread, that voids a round: a
shared CPU is that noisy by itself."""

SHORT_CALL_S = 50e-6
"""Up to here a call may be bound by the core that launches it."""
UNEVEN = 1.15
"""Ratio of that core's paces on the two sides."""


def timed_alone(known: tuple[float, ...], alone: Callable[[], float]) -> tuple[float, ...]:
    """What drift is measured by, in seconds per call, newest last: batches of the reference alone,
    from earlier pairs too as long as a fresh one agrees.
    """
    fresh = [alone()]
    if not known or abs(fresh[0] / statistics.median(known) - 1) > SOLO_AGREES:
        known = ()
        fresh += [alone() for _ in range(SOLO_ROUNDS - 1)]
    return (*known, *fresh)[-SOLO_KEPT:]


def drift(seconds: float, solo: Sequence[float], device: str) -> str:
    """Why a round is void in which a call of the reference took so long; empty where it is not."""
    middle = statistics.median(solo)
    spread = statistics.median(abs(x - middle) for x in solo)
    if seconds <= middle * (1 + DRIFT[device]) + 5 * spread:
        return ""
    return f"reference took {seconds * 1e6:.1f} us a call, {middle * 1e6:.1f} us alone"


def uneven(reference: float, candidate: float) -> str:
    """Why a round is void in which the launching core's paces were these; empty where it is not."""
    if max(reference, candidate) <= UNEVEN * min(reference, candidate):
        return ""
    return f"the launching core was {reference:.2f} and {candidate:.2f} times slower than it can be"
