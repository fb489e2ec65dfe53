"""B*: the fastest of eager and the baselines timed beside it, chosen on some process pairs and
measured on others. Standard library only.

The fastest of several that are about as fast is the one that chance favoured: as measured it is too
fast, and what is compared with it too slow. Each pair's figure is that of the baseline that was the
fastest over the other pairs, so that no pair both chooses and measures (leave-one-out).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from sandbox.figures import Baseline, Interval

EAGER = "eager"


def best_baseline(baselines: Sequence[Baseline]) -> tuple[str, Interval | None]:
    """Its name and its speedup against eager; `eager` and None where nothing is faster.

    The name is that of the fastest over all pairs. Where it is not known what each pair measured,
    as in older records, that is its figure too.
    """
    known = [b for b in baselines if b.speedup is not None]
    best = max(known, key=lambda b: b.speedup.value if b.speedup is not None else 0.0, default=None)
    if best is None or best.speedup is None or best.speedup.value <= 1:
        return EAGER, None
    count = min(len(b.logs) for b in known)  # one that was disturbed has more
    if count < 2:
        return best.name, best.speedup
    picks = [_pick(known, left_out) for left_out in range(count)]
    if all(pick is best for pick in picks):
        return best.name, best.speedup
    figures = [0.0 if p is None else p.logs[i] for i, p in enumerate(picks)]
    value = math.exp(statistics.fmean(figures))
    if value <= 1:
        return EAGER, None
    down, up = best.speedup.value / best.speedup.low, best.speedup.high / best.speedup.value
    return best.name, Interval(value, value / down, value * up, best.speedup.confidence)


def _pick(known: Sequence[Baseline], left_out: int) -> Baseline | None:
    """The fastest over all pairs but one; None is eager."""

    def others(one: Baseline) -> float:
        return statistics.fmean(x for i, x in enumerate(one.logs) if i != left_out)

    fastest = max(known, key=others)
    return fastest if others(fastest) > 0 else None
