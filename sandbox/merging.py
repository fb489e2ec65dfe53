"""Merged calls: a candidate that is only fast when it sees a batch of inputs at once.

Some rounds disclose one input set per "go". A candidate that merges the calls of a batch pays in
full there, in every pair: its lone calls then cost more than batched ones by far more than the
reference's do. Pure functions of the timed rounds. Calls shorter than the pipe's own cost are not
seen here; the launch floor covers those (docs/measuring.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sandbox.observation import RoundObservation
from sandbox.types import Timing

FLOOR_S = 150e-6
"""A call alone through the pipe costs about 160 us more than inside a batch, and a candidate's cold
launcher some 120 us more than the reference's (measured on an H200): only gross merging is seen."""
HOST_S, HOST_SHARE = 100e-6, 0.2
"""A batch hides host time behind the device, a call alone does not: an honest call's host time
is at most what the call costs in the batch, and rarely above 100 us plus a fifth of the
reference.
"""
LEAST_PAIRS = 2
"""Pairs in which the excess must show: on a busy CPU one in seven honest pairs had it."""
LEAST_ROUNDS = 4
"""Fewer single-set rounds convict nobody: their spread is not known. A confirmation has more."""


def excess_s(rounds: Sequence[RoundObservation]) -> tuple[float, float] | None:
    """(excess, noise) in seconds per call of single-set calls over batched ones, reference's
    overhead off.

    The excess is the least of the pairs' medians, since a busy CPU wakes a team of threads late for
    seconds on end. None without rounds of both kinds.
    """
    valid = [r for r in rounds if not r.void]
    overheads: dict[int, list[float]] = {}
    for number in {r.pair for r in valid}:
        batch = [r for r in valid if r.pair == number and not r.single]
        single = [r for r in valid if r.pair == number and r.single]
        if not batch or not single:
            continue
        base_reference = statistics.median(r.reference_s / r.calls for r in batch)
        base_candidate = statistics.median(r.candidate_s / r.calls for r in batch)
        # A reference that seems quicker alone was disturbed in its batches: no reason to convict.
        overheads[number] = [
            (r.candidate_s / r.calls - base_candidate)
            - max(0.0, r.reference_s / r.calls - base_reference)
            for r in single
        ]
    if not overheads:
        return None
    everything = [x for found in overheads.values() for x in found]
    middle = statistics.median(everything)
    noise = statistics.median(abs(x - middle) for x in everything)
    return min(statistics.median(found) for found in overheads.values()), noise


def suspected(rounds: Sequence[RoundObservation]) -> bool:
    """Whether the verdict on these rounds needs another pair: lone calls cost more than an honest
    one's would, in fewer pairs than convict.
    """
    found = excess_s(rounds)
    if found is None or _pairs(_singles(rounds)) >= LEAST_PAIRS:
        return False
    batches = [r for r in rounds if not r.single and not r.void]
    candidate_s = statistics.median(r.candidate_s / r.calls for r in batches)
    reference_s = statistics.median(r.reference_s / r.calls for r in batches)
    return found[0] > _honest_s(candidate_s, reference_s)


def convicted(rounds: Sequence[RoundObservation], timing: Timing) -> tuple[bool, str] | None:
    """Whether calls were merged beyond any honest cost, and the figures in words; None without
    rounds of both kinds.
    """
    found = excess_s(rounds)
    if found is None:
        return None
    excess, noise = found
    singles = _singles(rounds)
    known = len(singles) >= LEAST_ROUNDS and _pairs(singles) >= LEAST_PAIRS
    honest_s = _honest_s(timing.candidate_ms / 1e3, timing.reference_ms / 1e3)
    allowed = max(honest_s, FLOOR_S + 3 * noise)
    words = (
        f"a call alone costs {excess * 1e6:.0f} us more than in a batch, "
        f"allowed {allowed * 1e6:.0f} us over the reference's"
    )
    return known and excess > allowed, words


def _honest_s(candidate_s: float, reference_s: float) -> float:
    """What a lone call may cost more than one in a batch, on a quiet machine."""
    return FLOOR_S + min(1.5 * candidate_s, HOST_S + HOST_SHARE * reference_s)


def _singles(rounds: Sequence[RoundObservation]) -> list[RoundObservation]:
    return [r for r in rounds if r.single and not r.void]


def _pairs(rounds: Sequence[RoundObservation]) -> int:
    return len({r.pair for r in rounds})
