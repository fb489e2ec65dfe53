"""Work that goes on behind "done": a GPU that was not idle when a candidate said that it was.

Half of the protocol against it is a price: what is seen behind "done" is charged, batch by batch
(`statistics.left_s`). Where it shows in most batches it is no noise, and no honest candidate can do
it: its worker waits for the device before it answers. Pure functions of the timed rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sandbox.observation import RoundObservation

MARGIN_S, BATCH_SHARE = 500e-6, 0.02
"""Beyond the longest that was seen behind the reference's, and of a batch."""
GUILTY_SHARE = 2 / 3
LEAST_ROUNDS, LEAST_PAIRS = 8, 2
"""Fewer convict nobody: a neighbour's kernels may have been there in all of them. Of eight batches
a side, all equally disturbed, so many of the candidate's lie beyond all of the reference's in 0.3 %
of cases (C(8, 6) / C(16, 6)), of more in at most 0.5 %."""
MOST_PAIRS = 3
"""To come to so many batches."""


def convicted(rounds: Sequence[RoundObservation]) -> tuple[bool, str] | None:
    """Whether a GPU worked on behind most of the candidate's batches, longer than behind any of the
    reference's, and the figures in words; None where nothing was seen.
    """
    batches = _batches(rounds)
    if not batches:
        return None
    known = len(batches) >= LEAST_ROUNDS and len({r.pair for r in batches}) >= LEAST_PAIRS
    its = statistics.median(r.candidate_left_s for r in batches)
    mine = statistics.median(r.reference_left_s for r in batches)
    share = _share(batches)
    words = (
        f"the GPU was ours {its * 1e6:.0f} us after a batch was called done, "
        f"{mine * 1e6:.0f} us after the reference's; it was at work behind {share:.0%}"
    )
    return known and share >= GUILTY_SHARE, words


def suspected(rounds: Sequence[RoundObservation]) -> bool:
    """Whether the verdict on these rounds needs another pair."""
    batches = _batches(rounds)
    few = len({r.pair for r in batches}) < LEAST_PAIRS or len(batches) < LEAST_ROUNDS
    return bool(batches) and few and _share(batches) >= GUILTY_SHARE


def _batches(rounds: Sequence[RoundObservation]) -> list[RoundObservation]:
    return [r for r in rounds if not r.single and not r.void and r.reference_left_s > 0]


def _share(batches: Sequence[RoundObservation]) -> float:
    """Of batches behind which the GPU was at work, beyond doubt."""
    longest = max(r.reference_left_s for r in batches)
    margin = max(MARGIN_S, BATCH_SHARE * statistics.median(r.candidate_s for r in batches))
    return sum(r.candidate_left_s > longest + margin for r in batches) / len(batches)
