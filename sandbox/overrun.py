"""Work that goes on behind "done": a GPU that was not idle when a candidate said that it was.

Half of the protocol against it is a price: what is seen behind "done" is charged
(`statistics.charged_collect`). Where it shows in every batch it is no noise, and no honest
candidate can do it: its worker waits for the device before it answers. Pure functions of the timed
rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sandbox.observation import RoundObservation

FLOOR_S, BATCH_SHARE = 300e-6, 0.02
"""An idle GPU takes some 200 us to come back to our context, give or take 50 us."""
LEAST_ROUNDS = 3


def convicted(rounds: Sequence[RoundObservation]) -> tuple[bool, str] | None:
    """Whether a GPU worked on behind the candidate's "done", in every batch longer than behind any
    of the reference's, and the figures in words; None where nothing was seen.
    """
    batches = [r for r in rounds if not r.single and r.reference_left_s > 0]
    if not batches:
        return None
    mine = [r.reference_left_s for r in batches]
    its = [r.candidate_left_s for r in batches]
    excess = statistics.median(its) - statistics.median(mine)
    allowed = max(FLOOR_S, BATCH_SHARE * statistics.median(r.candidate_s for r in batches))
    words = (
        f"the GPU was idle {statistics.median(its) * 1e6:.0f} us after a batch was called done, "
        f"{statistics.median(mine) * 1e6:.0f} us after the reference's"
    )
    always = len(batches) >= LEAST_ROUNDS and min(its) > max(mine)
    return always and excess > allowed, words
