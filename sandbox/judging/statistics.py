"""From timed rounds to an interval: charged times, medians within a pair, a t-interval over pairs.

The process pair is the unit of sampling (a clustered interval): launch-bound calls differ by 3-6 %
between processes, so rounds of one pair are not independent. Bonferroni over the allowed looks
keeps the level whenever sampling stops.
"""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.figures import Interval, Pair
from sandbox.observation import RoundObservation
from sandbox.types import EvalConfig

EARLY_SHARE = 0.2
"""Of the allowed error: for giving a candidate up before `min_pairs`, on the null experiment's few
ratios alone; the rest is for the looks from `min_pairs` on."""
WON_WIDTH = 3.0
"""Times the target half-width that the figure of a clear winner may have: by more than that, one
repetition after the other told another figure (2.90 to 3.00 times with intervals of 2 to 19 %,
H200)."""
WIDEST = 300.0
"""Half-width in log speedup beyond which an interval is cut: e^300 is still a float64."""


@dataclass(frozen=True)
class Null:
    """The null experiment: the reference against itself, one log ratio per process pair."""

    log_ratios: tuple[float, ...] = ()

    @property
    def deviation(self) -> float:
        """Standard deviation of a pair's log ratio about zero, its known mean."""
        if not self.log_ratios:
            return 0.0
        return math.sqrt(sum(x * x for x in self.log_ratios) / len(self.log_ratios))

    @property
    def floor(self) -> float:
        """The largest log ratio that equal code was seen to make."""
        return max((abs(x) for x in self.log_ratios), default=0.0)

    def of_batches(self, sets: int, planned: int) -> Null:
        """As it would scatter with fewer sets a batch than planned, each of which is as noisy: what
        a batch is off by, the round trip above all, is off by more in a call.
        """
        wider = max(1.0, planned / max(1, sets))
        return self if wider == 1.0 else Null(tuple(wider * x for x in self.log_ratios))


def summarise(rounds: Sequence[RoundObservation]) -> list[Pair]:
    """One Pair per process pair that has a valid batch round."""
    pairs = []
    for number in sorted({r.pair for r in rounds}):
        mine = [r for r in rounds if r.pair == number and not r.single]
        valid = [r for r in mine if not r.void]
        if not valid:
            continue
        reference, candidate = call_seconds(valid)
        logs = _logs(reference, candidate)
        pairs.append(
            Pair(
                reference_ms=statistics.median(reference) * 1e3,
                candidate_ms=statistics.median(candidate) * 1e3,
                log_speedup=statistics.median(logs),
                rounds=len(valid),
                voided=len(mine) - len(valid),
                spread=math.sqrt(_variance(logs)) if len(logs) > 1 else 0.0,
            )
        )
    return pairs


def call_seconds(batches: Sequence[RoundObservation]) -> tuple[list[float], list[float]]:
    """Of each batch of one pair, seconds a call: the reference's, and the candidate's with what is
    charged to it.
    """
    unpaid = map(operator.add, charged_collect(batches), left_s(batches))
    return (
        [r.reference_s / r.calls for r in batches],
        [(r.candidate_s + x) / r.calls for r, x in zip(batches, unpaid, strict=True)],
    )


def log_ratios(batches: Sequence[RoundObservation]) -> list[float]:
    """Of each batch of one pair, the log speedup."""
    return _logs(*call_seconds(batches))


def _logs(reference: Sequence[float], candidate: Sequence[float]) -> list[float]:
    return [math.log(a / b) for a, b in zip(reference, candidate, strict=True)]


def _variance(values: Sequence[float]) -> float:
    """The sample's, in floats: the standard library's is exact, and twenty times as slow."""
    mean = statistics.fmean(values)
    return math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)


COLLECT_SHARE, COLLECT_FLOOR_S = 0.01, 20e-6
"""Of a batch, and at least, that handing outputs over may take longer than the reference's."""
LEFT_FLOOR_S = 300e-6
"""An idle GPU takes 0.3 to 0.7 ms to come back to our context and to be found idle (H200)."""
STEADY_NOISE = ((5, 1.0), (3, 2.0))
"""(batches, times the noise) beyond which what all of them exceed is no chance,"""
LEFT_NOISE = ((1, 3.0),)
COLLECT_NOISE = ((5, 4.0), (3, 6.0), (1, 10.0))
"""and what one of them does: of few batches the noise is hardly known. Of honest figures of six
batches four in a hundred are charged anything (simulated)."""


def charged_collect(rounds: Sequence[RoundObservation]) -> list[float]:
    """Seconds to charge each batch for handing its outputs over."""
    batch_s = statistics.median(r.candidate_s for r in rounds)
    floor_s = max(COLLECT_SHARE * batch_s, COLLECT_FLOOR_S)
    mine, its = [r.reference_collect_s for r in rounds], [r.candidate_collect_s for r in rounds]
    excess, noise = _excess(mine, its)
    # Where the reference took longer as well, as both do in a pair's first batch, so may it.
    excess = [min(x, b - a) for x, a, b in zip(excess, mine, its, strict=True)]
    return _charged(excess, noise, floor_s, COLLECT_NOISE)


def left_s(rounds: Sequence[RoundObservation]) -> list[float]:
    """Seconds to charge each batch for what a GPU was left to do behind its "done"."""
    return _charged(*_behind(rounds), LEFT_FLOOR_S, LEFT_NOISE)


def _behind(rounds: Sequence[RoundObservation]) -> tuple[list[float], float]:
    """Of what a GPU still did behind "done"."""
    mine, its = [r.reference_left_s for r in rounds], [r.candidate_left_s for r in rounds]
    return _excess(mine, its)


def _excess(mine: Sequence[float], its: Sequence[float]) -> tuple[list[float], float]:
    """By how much a candidate's seconds are above what is usual of the reference's, and how much
    these scatter (median absolute deviation).
    """
    usual = statistics.median(mine)
    return [x - usual for x in its], statistics.median(abs(x - usual) for x in mine)


def _charged(
    excess: Sequence[float], noise: float, floor_s: float, chance: Sequence[tuple[int, float]]
) -> list[float]:
    """What of it noise does not explain, round by round: a candidate that leaves now more and now
    less would else hide in what its own scatter. Noise that is charged to a few rounds moves no
    median. What all of them exceed is no chance.
    """
    least, count = min(excess), len(excess)
    steady_s, chance_s = (
        next((times * noise for few, times in table if count >= few), math.inf)
        for table in (STEADY_NOISE, chance)
    )
    steady = least if least > max(floor_s, steady_s) else 0.0
    return [x if x > max(floor_s, chance_s) else steady for x in excess]


def interval(
    pairs: Sequence[Pair], null: Null, config: EvalConfig, *, early: bool = False
) -> Interval:
    """The speedup over pairs with its t-interval; the null experiment's spread is pooled in.

    `early`: at the level for giving up before `min_pairs`.

    Pooling is refused when the pairs scatter more than the null did: allowed up to four times its
    variance, the 95 % interval of three pairs covered 91 % (simulated). With one pair the null
    gives the spread, and its own rounds what they add where some were left out.
    """
    logs = [p.log_speedup for p in pairs]
    value = statistics.fmean(logs)
    looks = config.max_pairs - config.min_pairs + 1
    share = EARLY_SHARE / (config.min_pairs - 1) if early else (1 - EARLY_SHARE) / looks
    level = 1 - (1 - config.confidence) * share
    own_dof, null_dof = len(logs) - 1, len(null.log_ratios)
    own = _variance(logs) if own_dof else 0.0
    prior = null.deviation**2
    if own_dof and (not null_dof or own > prior):
        variance, dof = own, own_dof
    elif own_dof or null_dof:
        dof = own_dof + null_dof
        variance = (own * own_dof + prior * null_dof) / dof
    else:
        variance, dof = 0.05**2, 1
    if not own_dof:
        variance += _of_rounds_left_out(pairs[0], config, variance)
    half = t_quantile(0.5 + level / 2, dof) * math.sqrt(variance / len(logs))
    half = min(max(half, 1e-4), WIDEST)
    middle = math.exp(value)
    return Interval(middle, middle * math.exp(-half), middle * math.exp(half), config.confidence)


def _of_rounds_left_out(pair: Pair, config: EvalConfig, whole: float) -> float:
    """Variance that the median of a pair has for being cut short: the null experiment's pairs, of
    variance `whole`, were not. A median's is pi / 2 times a mean's; of one round nothing is known.
    """
    if pair.rounds < LEAST_ROUNDS:
        return whole * max(0, full_rounds(config) - 1)
    fewer = 1 / pair.rounds - 1 / full_rounds(config)
    return math.pi / 2 * pair.spread**2 * max(0.0, fewer)


def enough(pairs: Sequence[Pair], null: Null, config: EvalConfig, to_beat: float | None) -> bool:
    """True when another pair would not change the decision.

    `to_beat` is given in a search, whose winners are confirmed afresh: `search_pairs` are enough
    there. A candidate whose upper bound misses `to_beat` (or eager itself) is hopeless after
    any pair; others need `min_pairs`, and stop at the target width, or once their lower bound
    clears the bar: a figure that is reported not before it is known to WON_WIDTH times that width.
    """
    if not pairs:
        return False
    if len(pairs) >= config.max_pairs:
        return True
    early = to_beat is None and len(pairs) < config.min_pairs
    now = interval(pairs, null, config, early=early)
    slack = math.exp(2 * null.floor)
    bar = max(to_beat or 0.0, 1.0)
    if now.high * slack < bar:
        return True
    if to_beat is not None and len(pairs) >= config.search_pairs:
        return True
    if len(pairs) < config.min_pairs:
        return False
    width = math.log(now.high / now.low) / 2
    if now.low > bar * slack:
        return to_beat is not None or width <= max(WON_WIDTH * config.target_half_width, null.floor)
    return width <= max(config.target_half_width, null.floor)


LEAST_ROUNDS, WINNING_ROUNDS = 2, 3
"""Batch rounds of a pair before a candidate is given up, or its win is clear."""
SETTLED_SHARE = 0.25
"""Of a whole pair's variance, that rounds may be left out for: its interval is 12 % wider."""


def hopeless(
    rounds: Sequence[RoundObservation], null: Null, config: EvalConfig, to_beat: float
) -> bool:
    """In a search, whether the pair under way may end: its candidate cannot reach `to_beat`.

    All of its rounds miss the bar by twice the noise floor, and so does the upper bound of their
    median, whose spread is the null experiment's, widened since the rounds are fewer. The level is
    split over the looks: a candidate as fast as the bar is given up in less than (1 - confidence)
    of all cases, all looks together. Nothing is charged: what hides its work is to be convicted.
    """
    valid = _under_way(rounds)
    if not null.log_ratios or len(valid) < LEAST_ROUNDS:
        return False
    logs = [math.log(r.reference_s / r.candidate_s) for r in valid]
    bar = math.log(max(to_beat, 1.0)) - 2 * null.floor
    return max(logs) < bar and statistics.median(logs) + _half(len(valid), null, config) < bar


def clear_win(
    rounds: Sequence[RoundObservation], null: Null, config: EvalConfig, to_beat: float
) -> bool:
    """The same above the bar, with all that is charged and a single-set round that counts, and the
    figure that it ends with says so. What leads a search is confirmed on whole pairs.
    """
    valid = _complete(rounds)
    if not null.log_ratios or not valid:
        return False
    bar = math.log(max(to_beat, 1.0))
    if min(log_ratios(valid)) - 2 * null.floor <= bar:
        return False
    (pair,) = summarise(valid)
    sure = pair.log_speedup - _half(len(valid), null, config)
    low = math.log(interval([pair], null, config).low)
    return min(sure, low) > bar


def settled(
    rounds: Sequence[RoundObservation], null: Null, config: EvalConfig, *, judged: bool = True
) -> bool:
    """In a search, and for baselines, whose sides are not `judged`, whether the rounds left would
    hardly narrow the figure of the pair under way: processes of equal code differ by more, as the
    null experiment's pairs did.
    """
    valid, whole = _complete(rounds) if judged else _under_way(rounds), null.deviation**2
    if not null.log_ratios or len(valid) < WINNING_ROUNDS:
        return False
    (pair,) = summarise(valid)
    return _of_rounds_left_out(pair, config, whole) <= SETTLED_SHARE * whole


def _complete(rounds: Sequence[RoundObservation]) -> list[RoundObservation]:
    """The same as `_under_way` once the pair has had what a figure needs, a single-set round that
    counts among it; until then none, and none where more rounds may charge what is left behind.
    """
    valid = _under_way(rounds)
    alone = any(r.single and not r.void for r in rounds if r.pair == rounds[-1].pair)
    if len(valid) < WINNING_ROUNDS or not alone:
        return []
    behind, noise = _behind(valid)
    return [] if min(behind) > max(LEFT_FLOOR_S, noise) else valid


def _under_way(rounds: Sequence[RoundObservation]) -> list[RoundObservation]:
    """Batch rounds of the last pair."""
    return [r for r in rounds if r.pair == rounds[-1].pair and not r.single and not r.void]


def _half(count: int, null: Null, config: EvalConfig) -> float:
    """Of the interval of so many rounds' median log ratio."""
    whole = full_rounds(config)
    level = 1 - (1 - config.confidence) / max(1, whole - LEAST_ROUNDS)
    spread = null.deviation * math.sqrt(max(1.0, whole / count))
    return t_quantile(0.5 + level / 2, len(null.log_ratios)) * spread


def full_rounds(config: EvalConfig) -> int:
    """Batch rounds of a whole pair: one at least, without which there is no figure."""
    return max(1, config.rounds - max(1, round(config.rounds * config.single_share)))


@functools.cache
def t_quantile(probability: float, dof: int) -> float:
    """Quantile of Student's t, by bisection on the closed-form CDF for integer degrees of
    freedom.
    """
    low, high = 0.0, 1.0
    while t_cdf(high, dof) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, dof) < probability else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, dof: int) -> float:
    """P(T <= t) for integer dof (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(dof))
    cosine2 = math.cos(angle) ** 2
    if dof % 2:
        term, total = math.cos(angle), math.cos(angle) if dof > 1 else 0.0
        for k in range(3, dof, 2):
            term *= cosine2 * (k - 1) / k
            total += term
        inside = 2 / math.pi * (angle + math.sin(angle) * total)
    else:
        term = total = 1.0
        for k in range(2, dof, 2):
            term *= cosine2 * (k - 1) / k
            total += term
        inside = math.sin(angle) * total
    return 0.5 + inside / 2
