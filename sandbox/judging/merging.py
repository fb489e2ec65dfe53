"""Merged calls: a candidate that is only fast when it sees a batch of inputs at once.

Some rounds disclose one input set per "go". A candidate that merges the calls of a batch pays in
full there, in every pair: its lone calls then cost more than batched ones by far more than the
reference's do. Pure functions of the timed rounds.

How small an excess convicts depends on how lone calls are timed. Through the pipe they take some
160 us more than in a batch, and the host's time hides behind our own GPU context. By the bell
(sandbox/subjects/bell.py) they take what one caller would wait for: then an honest call costs more
than in a batch only by what a batch hides, host time behind the device's or the device's behind the
host's, and the lesser of the two is at most what the call costs in the batch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from sandbox.figures import Interval, Timing
from sandbox.judging.statistics import call_seconds, charged_collect
from sandbox.observation import RoundObservation

FLOOR_S = 150e-6
"""Through the pipe a candidate's cold launcher costs some 120 us more than the reference's (H200):
only gross merging is seen there."""
HOST_S, HOST_SHARE = 100e-6, 0.2
"""Through the pipe: an honest call's host time is at most what the call costs in the batch, and
rarely above 100 us plus a fifth of the reference."""
GAIN_SHARE = 0.02
"""Of a batched call, through the pipe: who merges for less gains nothing. Sleeps of 50 ms ended
300 us late (CPU)."""
RUNG_FLOOR_S = 5e-6
"""By the bell."""
LEAST_PAIRS = 2
"""Pairs in which the excess must show: on a busy CPU one in seven honest pairs had it."""
LEAST_ROUNDS = 4
"""Fewer single-set rounds convict nobody: their spread is not known. A confirmation has more."""
LEAST_KNOWN = 3
"""Figures from which their own spread is taken."""
NOISE_TIMES = 2.0
"""Standard errors of the excess that a lower bound allows for."""
LEAST_GAIN, LEAST_GAIN_S, DOUBTFUL_SHARE = 0.1, 20e-6, 0.5
"""What merging may have gained, as a share of the candidate's time and at least, and the share of
it that lone calls do without: nearly all such mergers get a second pair in simulation, and few who
are honest. Less cannot be told from what lone calls scatter in one pair.
"""
BEGIN_SHARE = 0.05
"""Of what beginning a lone call through the pipe takes, on two cores some 130 us: it is not known
better than that."""
FREE_SHARE = 0.05
"""Of a call, that lone calls by the bell may cost more and take nothing off a lower bound: longer
calls would pay for noise of microseconds."""


def excess_s(rounds: Sequence[RoundObservation]) -> tuple[float, float] | None:
    """(excess, noise) in seconds per call of single-set calls over batched ones, reference's
    overhead off.

    Through the pipe the excess is the least of the pairs', since a busy CPU wakes a team of threads
    late for seconds on end; by the bell it is the second largest, since a candidate may merge in
    some processes only, with what lone calls leave for after "done". The noise is that of the
    reference's lone calls, infinite where no pair has two: a candidate could make its own. None
    without rounds of both kinds.
    """
    usable = _usable(rounds)
    excesses, scatter = list[float](), list[float]()
    for number in {r.pair for r in usable}:
        batch = [r for r in usable if r.pair == number and not r.single]
        single = [r for r in usable if r.pair == number and r.single]
        base_reference = statistics.median(r.reference_s / r.calls for r in batch)
        # With what is charged, as in lone calls: a copy of an output is no merger.
        base_candidate = statistics.median(call_seconds(batch)[1])
        alone = [r.reference_s / r.calls for r in single]
        usual = statistics.median(alone)
        scatter += [abs(seconds - usual) for seconds in alone if len(alone) > 1]
        # A reference that seems quicker alone was disturbed in its batches: no reason to convict.
        overhead = max(0.0, usual - base_reference)
        # Of two the lesser: what disturbs a call makes it longer, and who merges pays in each.
        lone = statistics.median_low(r.candidate_s / r.calls for r in single)
        excesses.append(lone - base_candidate - overhead)
    if not excesses:
        return None
    noise = statistics.median(scatter) if scatter else math.inf
    singles = _singles(rounds)
    if not _rung(singles):
        return min(excesses), noise
    after_s = statistics.median(charged_collect(singles)) / statistics.median(
        r.calls for r in singles
    )
    return sorted(excesses)[max(0, len(excesses) - 2)] + after_s, noise


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
    return found[0] > _honest_s(rounds, candidate_s, reference_s)


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
    honest_s = _honest_s(rounds, timing.candidate_ms / 1e3, timing.reference_ms / 1e3)
    rung = _rung(singles)
    allowed = honest_s + 3 * noise if rung else max(honest_s, FLOOR_S + 3 * noise)
    by = f"{abs(excess) * 1e6:.0f} us {'less' if excess < 0 else 'more'}"
    words = f"a call alone costs {by} than in a batch, "
    if math.isinf(allowed):
        words += "too few such rounds to tell whether that is too much"
    else:
        words += f"allowed {allowed * 1e6:.0f} us over the reference's"
    return known and excess > allowed, words


def lower_bound(rounds: Sequence[RoundObservation], speedup: Interval, device: str) -> Interval:
    """The interval with the lower bound that calls made alone leave, where merging them to half
    would not be convicted: as if all that lone calls cost more had been saved by merging. What one
    pair says is left as it is: it only ranks, and where it is `doubtful` another is measured.
    """
    if len({r.pair for r in rounds}) < LEAST_PAIRS or not _unseen(rounds, device):
        return speedup
    middle_s = statistics.median(_batched(rounds)[1])
    excess, error = _lone_excess(rounds)
    free_s = FREE_SHARE * middle_s if _rung(_singles(rounds)) else 0.0
    most = max(0.0, max(0.0, excess) + NOISE_TIMES * error - free_s)
    return replace(speedup, low=speedup.low * middle_s / (middle_s + most))


def doubtful(rounds: Sequence[RoundObservation], device: str) -> bool:
    """Of a search's one pair: whether half of a gain is gone in calls made alone, and
    another pair has to say if that was noise.
    """
    if len({r.pair for r in rounds}) >= LEAST_PAIRS or not _unseen(rounds, device):
        return False
    reference_s, candidate_s = map(statistics.median, _batched(rounds))
    gained_s = reference_s - candidate_s
    excess, _ = _lone_excess(rounds)
    known = gained_s > max(LEAST_GAIN * candidate_s, LEAST_GAIN_S)
    return known and excess >= DOUBTFUL_SHARE * gained_s


def _unseen(rounds: Sequence[RoundObservation], device: str) -> bool:
    """Whether merging calls to half would convict nobody, as by the bell it never does, and lone
    calls tell more: on a GPU those through the pipe differ by 100 us.
    """
    lone = _singles(rounds)
    if not lone or not (device == "cpu" or _rung(lone)):
        return False
    reference_s = statistics.median(_batched(rounds)[0])
    return reference_s / 2 <= _honest_s(rounds, reference_s / 2, reference_s)


def _batched(rounds: Sequence[RoundObservation]) -> tuple[list[float], list[float]]:
    """Seconds a call in batches: the reference's, and the candidate's with what is charged."""
    mine, its = list[float](), list[float]()
    usable = [r for r in _usable(rounds) if not r.single]
    for number in {r.pair for r in usable}:
        reference_s, candidate_s = call_seconds([r for r in usable if r.pair == number])
        mine += reference_s
        its += candidate_s
    return mine, its


def _lone_excess(rounds: Sequence[RoundObservation]) -> tuple[float, float]:
    """(excess, standard error) in seconds a call of lone calls over batched ones, the reference's
    off; all pairs together.
    """
    lone = _singles(rounds)
    mine, its = _batched(rounds)
    saved = [a - b for a, b in zip(mine, its, strict=True)]
    costs = [(r.candidate_s - r.reference_s) / r.calls for r in lone]
    # Of one round nobody knows how much collect scatters.
    collect_s = statistics.median(charged_collect(lone)) if len(lone) > 1 else 0.0
    after_s = collect_s / statistics.median(r.calls for r in lone)
    usual_s = statistics.median(r.reference_s / r.calls for r in lone) - statistics.median(mine)
    begin_s = 0.0 if _rung(lone) else BEGIN_SHARE * max(0.0, usual_s)
    error = math.hypot(_error_s(saved), _error_s(costs), begin_s)
    return statistics.median(saved) + statistics.median(costs) + after_s, error


def _error_s(figures: Sequence[float]) -> float:
    """Standard error of their median, from their median absolute deviation (normal noise)."""
    if len(figures) < LEAST_KNOWN:
        return FLOOR_S
    middle = statistics.median(figures)
    spread = 1.4826 * statistics.median(abs(x - middle) for x in figures)
    return math.sqrt(math.pi / 2 / len(figures)) * spread


def _honest_s(rounds: Sequence[RoundObservation], candidate_s: float, reference_s: float) -> float:
    """What a lone call may cost more than one in a batch, on a quiet machine."""
    if _rung(_singles(rounds)):
        return RUNG_FLOOR_S + candidate_s
    hidden_s = min(1.5 * candidate_s, HOST_S + HOST_SHARE * reference_s)
    return max(FLOOR_S + hidden_s, GAIN_SHARE * candidate_s)


def _rung(singles: Sequence[RoundObservation]) -> bool:
    """Whether lone calls were timed by the bell."""
    return all(r.rung for r in singles)


def _usable(rounds: Sequence[RoundObservation]) -> list[RoundObservation]:
    """Rounds that count, of pairs that have both kinds of them."""
    valid = [r for r in rounds if not r.void]
    both = {r.pair for r in valid if r.single} & {r.pair for r in valid if not r.single}
    return [r for r in valid if r.pair in both]


def _singles(rounds: Sequence[RoundObservation]) -> list[RoundObservation]:
    return [r for r in _usable(rounds) if r.single]


def _pairs(rounds: Sequence[RoundObservation]) -> int:
    return len({r.pair for r in rounds})
