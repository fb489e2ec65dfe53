"""Correctness first, then the log of the speedup interval's *lower bound*.

Log, because a ratio's mean rewards one lucky 20x over ten honest 1.5x (CUDA-L1 reports a mean of
3.12x where the geometric mean of its kernels is 1.4x). The lower bound, because noise must not
pay. Clipped, since beyond 20x a figure more often shows a broken clock than a better kernel (Kevin,
Dr. Kernel). Failing is -1 in MusaCoder (2606.04847) and CUDA Agent; here that level is kept
for cheats. Milestones against B* and smoothing are terms of their own (rewards/terms.py).
"""

from __future__ import annotations

import math

from rewards.types import Reward, Term
from sandbox.types import Evaluation, Status

NAME = "speedup"
"""Stored beside every reward, so that rewards of different functions never mix."""
HACK = -1.0
FAILURE = 0.0
CORRECT = 1.0
SLOWEST = -0.9
"""Bound of the speed term from below: a correct kernel, however slow, beats every failure."""
FASTEST = math.log(20.0)


def reward(evaluation: Evaluation) -> Reward:
    """The value a proposer or a policy is told; None where the evaluation says nothing about it."""
    if not evaluation.status.scored:
        return Reward(None)
    if evaluation.status is Status.REWARD_HACK:
        return _sum(Term("hack", 1.0, HACK))
    if not evaluation.passed:
        return _sum(Term("correct", 1.0, FAILURE))
    correct = Term("correct", 1.0, CORRECT)
    speedup = evaluation.speedup
    if speedup is None:
        return _sum(correct)
    log_speedup = min(max(math.log(speedup.low), SLOWEST), FASTEST)
    return _sum(correct, Term("log_speedup_low", 1.0, log_speedup))


def _sum(*terms: Term) -> Reward:
    return Reward(sum(t.weight * t.value for t in terms), terms)
