"""CUDA-L1's robust figures (arXiv 2507.14111, stage 3): central value, rounding, smoothing.

Published: 7 buckets, an evaluation discarded where their variance exceeds 0.005, the median of the
buckets' means, two decimals rounded toward 1, and smoothing clip((r - mu) / sigma, -1.5, 1.5).
Ours: a bucket is a fresh process pair (the protocol's independent unit, docs/measuring.md), so an
EvalConfig with 7 pairs gives the 7 buckets; with fewer pairs there are as many buckets as pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.figures import Timing


@dataclass(frozen=True)
class Robust:
    buckets: int = 7
    variance: float = 0.005
    """Between buckets, of speedups; above it a figure is discarded."""
    decimals: int = 2
    """Kept, rounding toward 1."""

    def __post_init__(self) -> None:
        if self.buckets < 1 or self.variance <= 0 or self.decimals < 0:
            raise ValueError("expected buckets >= 1, variance > 0 and decimals >= 0")


def robust_speedup(timing: Timing, robust: Robust = Robust()) -> float | None:
    """Of one evaluation; None where its buckets disagree too much to be believed."""
    ratios = [math.exp(pair.log_speedup) for pair in timing.pairs] or [timing.speedup.value]
    count = min(robust.buckets, len(ratios))
    means = [statistics.fmean(ratios[i::count]) for i in range(count)]
    if count > 1 and statistics.variance(means) > robust.variance:
        return None
    return toward_one(statistics.median(means), robust.decimals)


def toward_one(ratio: float, decimals: int = 2) -> float:
    """1.118 becomes 1.11 and 0.992 becomes 1.00: noise never pays."""
    unit = 10.0**decimals
    # The ninth decimal: 1.15 * 100 is 114.99999999999999.
    scaled = round(ratio * unit, 9)
    return (math.floor(scaled) if ratio > 1 else min(math.ceil(scaled), unit)) / unit


def smooth(
    rewards: Sequence[float | None], seen: Sequence[float], clip: float = 1.5
) -> list[float | None]:
    """clip((r - mu) / sigma, -clip, clip) with mu and sigma of the rewards seen so far.

    One fake of 50x cannot dominate the gradient. Order is kept. Before two different rewards were
    seen sigma counts as 1.
    """
    mean = statistics.fmean(seen) if seen else 0.0
    spread = statistics.stdev(seen) if len(seen) > 1 else 0.0
    scale = spread if spread > 1e-9 else 1.0
    return [None if r is None else min(max((r - mean) / scale, -clip), clip) for r in rewards]
