"""From rounds to an interval: quantiles against tables, coverage by simulation, hidden work."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.figures import Interval, Pair, Timing
from sandbox.judging.statistics import (
    Null,
    charged_collect,
    clear_win,
    enough,
    full_rounds,
    hopeless,
    interval,
    settled,
    summarise,
    t_cdf,
    t_quantile,
)
from sandbox.observation import RoundObservation
from sandbox.types import EvalConfig

ONE_LOOK = EvalConfig(min_pairs=3, max_pairs=3)
T_TABLE = [
    (1, 0.975, 12.706),
    (2, 0.975, 4.303),
    (3, 0.975, 3.182),
    (4, 0.95, 2.132),
    (5, 0.995, 4.032),
    (10, 0.975, 2.228),
    (29, 0.975, 2.045),
    (30, 0.9, 1.310),
    (120, 0.975, 1.980),
]
"""Abramowitz and Stegun, table 26.10."""


def batch(pair: int, reference_s: float, candidate_s: float, **rest: object) -> RoundObservation:
    return RoundObservation(pair, False, 10, reference_s, candidate_s, **rest)  # type: ignore[arg-type]


def pairs_of(logs: Sequence[float]) -> list[Pair]:
    return [Pair(1.0, math.exp(-x), x, 6) for x in logs]


@pytest.mark.parametrize(("dof", "probability", "quantile"), T_TABLE)
def test_quantiles_are_those_of_the_table(dof: int, probability: float, quantile: float) -> None:
    assert t_quantile(probability, dof) == pytest.approx(quantile, abs=6e-4)
    assert t_cdf(quantile, dof) == pytest.approx(probability, abs=1e-4)
    assert t_cdf(-quantile, dof) == pytest.approx(1 - probability, abs=1e-4)


@pytest.mark.parametrize("pairs", [3, 4, 6])
@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5, 3.0, 10.0])
def test_the_interval_covers_the_truth(pairs: int, spread: float) -> None:
    """Pairs scatter `spread` times as much as the null experiment did."""
    draw, covered, trials = random.Random(pairs), 0, 2000
    config = replace(ONE_LOOK, min_pairs=pairs, max_pairs=pairs)
    for _ in range(trials):
        null = Null(tuple(draw.gauss(0, 0.02) for _ in range(3)))
        logs = [draw.gauss(0.3, 0.02 * spread) for _ in range(pairs)]
        found = interval(pairs_of(logs), null, config)
        covered += found.low <= math.exp(0.3) <= found.high
    assert covered / trials >= 0.93


def test_the_interval_covers_whenever_sampling_stops() -> None:
    draw, covered, trials = random.Random(1), 0, 1000
    config = EvalConfig(min_pairs=3, max_pairs=6)
    for _ in range(trials):
        null = Null(tuple(draw.gauss(0, 0.02) for _ in range(3)))
        logs = [draw.gauss(0.3, 0.02)]
        while not enough(pairs_of(logs), null, config, None):
            logs.append(draw.gauss(0.3, 0.02))
        found = interval(pairs_of(logs), null, config)
        covered += found.low <= math.exp(0.3) <= found.high
    assert covered / trials >= 0.93


@pytest.mark.parametrize(("spread", "coverage"), [(1.0, 0.95), (2.5, 0.9)])
def test_equal_code_is_seldom_given_up_or_called_different(spread: float, coverage: float) -> None:
    """A null experiment of three ratios may be much too quiet; no pair before the third decides."""
    draw, covered, given_up, trials = random.Random(5), 0, 0, 3000
    config = EvalConfig(min_pairs=3, max_pairs=3)
    for _ in range(trials):
        null = Null(tuple(draw.gauss(0, 0.01) for _ in range(3)))
        logs = [draw.gauss(0, 0.01 * spread)]
        while not enough(pairs_of(logs), null, config, None):
            logs.append(draw.gauss(0, 0.01 * spread))
        found = interval(pairs_of(logs), null, config)
        covered += found.low <= 1.0 <= found.high
        given_up += len(logs) < config.min_pairs
    assert covered / trials >= coverage
    assert given_up / trials <= 0.02


@given(
    st.lists(st.floats(-18, 18), min_size=1, max_size=6),
    st.lists(st.floats(-18, 18), max_size=3),
    st.sampled_from([0.9, 0.95, 0.99, 0.999]),
)
def test_any_scatter_makes_an_interval(
    logs: list[float], null: list[float], confidence: float
) -> None:
    config = EvalConfig(min_pairs=2, max_pairs=6, confidence=confidence)
    found = interval(pairs_of(logs), Null(tuple(null)), config)
    assert 0 < found.low <= found.value <= found.high < math.inf
    enough(pairs_of(logs), Null(tuple(null)), config, 2.0)


def test_a_pair_is_the_median_of_its_valid_batches() -> None:
    rounds = [batch(0, 1.0, s) for s in (0.5, 0.4, 0.6)]
    rounds += [batch(0, 9.0, 0.1, void="drift"), batch(1, 1.0, 1.0, void="drift")]
    rounds += [RoundObservation(0, True, 8, 5.0, 5.0)]
    (found,) = summarise(rounds)
    spread = pytest.approx(0.203, abs=1e-3)
    assert found == Pair(100.0, 50.0, pytest.approx(math.log(2)), 3, 1, spread)


@pytest.mark.parametrize(
    ("excess", "charged"),
    [
        ([0.5, 0.5, 0.5], 0.5),
        ([0.5, 0.4, 0.6], 0.5),
        ([0.0, 0.0, 0.0], 0.0),
        ([-0.5, -0.5, -0.5], 0.0),
        ([0.5, -0.5, 0.1], 0.1),
        ([0.5, -0.5, -0.1], 0.0),
        ([0.009, 0.009, 0.009], 0.0),
    ],
    ids=["constant", "about", "none", "faster", "now more", "mostly less", "under one per cent"],
)
def test_what_the_references_noise_does_not_explain_is_charged(
    excess: list[float], charged: float
) -> None:
    rounds = [
        batch(0, 1.0, 1.0, reference_collect_s=1.0, candidate_collect_s=1.0 + x) for x in excess
    ]
    assert statistics.median(charged_collect(rounds)) == pytest.approx(charged)
    (pair,) = summarise(rounds)
    assert pair.candidate_ms == pytest.approx((1.0 + charged) * 100)


def test_a_collect_that_scatters_by_itself_is_charged() -> None:
    """Of batches of 20 ms a copy is left for collect, now all of it and now a part."""
    rounds = [
        batch(0, 20e-3, 20e-3 - left, reference_collect_s=1e-3, candidate_collect_s=1e-3 + left)
        for left in (8e-3, 4e-3, 0.8e-3) * 2
    ]
    (pair,) = summarise(rounds)
    assert pair.log_speedup == pytest.approx(0.0)


def test_noise_in_collecting_charges_honest_code_nothing() -> None:
    draw = random.Random(2)
    charged = [
        statistics.median(
            charged_collect(
                [
                    batch(0, 1, 1, reference_collect_s=draw.gauss(1, 0.05),
                          candidate_collect_s=draw.gauss(1, 0.05))
                    for _ in range(6)
                ]
            )
        )
        for _ in range(500)
    ]  # fmt: skip
    assert sum(x > 0 for x in charged) < 25


@pytest.mark.parametrize(
    ("logs", "to_beat", "stop"),
    [
        ([], None, False),
        ([-2.0], None, True),
        ([0.5], None, False),
        ([0.5], 1.1, True),
        ([0.5], 5.0, True),
        ([0.5, 0.5001], None, False),
        ([0.5, 0.5001, 0.5002], None, True),
        ([0.5, 0.504, 0.496], None, True),
        ([0.5, 0.512, 0.488], None, False),
        ([0.5, 0.512, 0.488], 1.1, True),
        ([0.5, 0.9, 0.1], None, False),
        ([0.5, 0.9, 0.1, 0.3, 0.2, 0.8], None, True),
    ],
)
def test_sampling_stops_when_the_decision_stands(
    logs: list[float], to_beat: float | None, stop: bool
) -> None:
    config = EvalConfig(min_pairs=3, max_pairs=6)
    null = Null((0.001, -0.001, 0.0005))
    assert enough(pairs_of(logs), null, config, to_beat) is stop


ratios = st.floats(0.01, 100)
widths = st.floats(0, 2)
intervals = st.builds(
    lambda v, down, up: Interval(v, v * math.exp(-down), v * math.exp(up)), ratios, widths, widths
)


@given(intervals, intervals)
def test_a_ratio_of_intervals_is_wider_than_either(left: Interval, right: Interval) -> None:
    found = left.divided_by(right)
    assert found.value == pytest.approx(left.value / right.value)
    assert found.high / found.value >= max(left.high / left.value, right.value / right.low) - 1e-9
    assert found.value / found.low >= max(left.value / left.low, right.high / right.value) - 1e-9


@pytest.mark.parametrize("bounds", [(4, 1, 3), (0, -1, 1), (1, 0, 2), (1, 1, math.inf)])
def test_what_is_no_interval_is_refused(bounds: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="not an interval"):
        Interval(*bounds)


@pytest.mark.parametrize(
    ("low", "value", "floor", "pairs", "win"),
    [
        (1.1, 1.2, 0.05, 3, True),
        (1.1, 1.2, 0.05, 2, False),
        (0.9, 1.2, 0.05, 3, False),
        (1.1, 1.2, 0.30, 3, False),
    ],
    ids=["win", "two pairs", "interval", "noise floor"],
)
def test_a_win_needs_pairs_an_interval_and_the_noise_floor(
    low: float, value: float, floor: float, pairs: int, win: bool
) -> None:
    speedup = Interval(value, low, 2.0)
    timing = Timing(1.0, 1 / value, speedup, floor, tuple(pairs_of([0.1] * pairs)), 8)
    assert timing.win is win


def cut_short(draw: random.Random, truth: float, between: float, within: float) -> int | None:
    """Batch rounds after which a search ends the pair of a candidate whose bar is 1.5; None if
    never.
    """
    config = EvalConfig(rounds=8)
    whole = full_rounds(config)

    def pair_of() -> float:
        return draw.gauss(0, between) + draw.gauss(0, 1.25 * within / math.sqrt(whole))

    null = Null(tuple(pair_of() for _ in range(3)))
    process = draw.gauss(0, between)
    rounds: list[RoundObservation] = []
    rounds.append(RoundObservation(0, True, 8, 1.0, 1.0))
    for number in range(whole - 1):
        log = math.log(1.5 * truth) + process + draw.gauss(0, within)
        rounds.append(batch(0, math.exp(log), 1.0))
        if hopeless(rounds, null, config, 1.5) or clear_win(rounds, null, config, 1.5):
            return number + 1
    return None


@pytest.mark.parametrize(("between", "within"), [(0.01, 0.002), (0.01, 0.01), (0.002, 0.02)])
def test_a_candidate_as_fast_as_the_bar_is_rarely_cut_short(between: float, within: float) -> None:
    """Given up in at most 2 %, called a clear winner in at most 2 %."""
    draw, trials = random.Random(7), 2000
    cut = sum(cut_short(draw, 1.0, between, within) is not None for _ in range(trials))
    assert cut / trials < 0.04


@pytest.mark.parametrize(("truth", "rounds"), [(0.7, 2), (2.0, 3)], ids=["below", "above"])
def test_a_candidate_far_from_the_bar_is_cut_short_at_once(truth: float, rounds: int) -> None:
    draw = random.Random(7)
    found = [cut_short(draw, truth, 0.01, 0.01) for _ in range(200)]
    assert sum(number == rounds for number in found) > 180


def test_what_is_hidden_behind_done_makes_no_clear_win_and_nobody_hopeless() -> None:
    null, config = Null((0.01, 0.0, -0.01)), EvalConfig(rounds=8)
    rounds = [RoundObservation(0, True, 8, 1.0, 0.5), *[batch(0, 1.0, 0.5)] * 3]
    left = [replace(r, reference_left_s=3e-4, candidate_left_s=1.5) for r in rounds]
    hidden = [replace(r, reference_collect_s=0.1, candidate_collect_s=1.6) for r in rounds]
    assert clear_win(rounds, null, config, 1.0)
    for seen in (left, hidden):
        assert not clear_win(seen, null, config, 1.0)
        assert not hopeless(seen, null, config, 1.0)


def test_nothing_is_decided_without_a_null_experiment_or_on_one_round() -> None:
    slow, fast = [batch(0, 1.0, 10.0)] * 4, [batch(0, 10.0, 1.0)] * 4
    null, config = Null((0.01, 0.0, -0.01)), EvalConfig(rounds=8)
    alone = RoundObservation(0, True, 8, 10.0, 1.0)
    for decided, rounds, least in ((hopeless, slow, 2), (clear_win, fast, 3)):
        assert not decided([alone, *rounds], Null(), config, 1.0)
        assert not decided([alone, *rounds[: least - 1]], null, config, 1.0)
        assert decided([alone, *rounds[:least]], null, config, 1.0)
    assert not clear_win(fast, null, config, 1.0)
    assert not clear_win([replace(alone, void="uneven"), *fast], null, config, 1.0)


def test_a_search_ends_once_processes_differ_by_more_than_rounds() -> None:
    alone, config = RoundObservation(0, True, 8, 1.0, 1.0), EvalConfig(rounds=8)
    steady = [batch(0, 1.0 + late, 1.0) for late in (0.0, 0.004, -0.004)]
    loud, quiet = Null((0.05, -0.04, 0.02)), Null((0.001, -0.002, 0.001))
    assert settled([alone, *steady], loud, config)
    assert not settled([alone, *steady], quiet, config)
    assert not settled(
        [alone, *(replace(r, reference_s=r.reference_s**30) for r in steady)], loud, config
    )
    assert not settled([alone, *steady], Null(), config)
    assert not settled([alone, *steady[:2]], loud, config)
    assert not settled(steady, loud, config)
    assert settled(steady, loud, config, judged=False)
    assert not settled(steady[:2], loud, config, judged=False)
    assert not settled(steady, quiet, config, judged=False)
    assert not settled([replace(alone, void="uneven"), *steady], loud, config)
    left = [replace(r, reference_left_s=3e-4, candidate_left_s=1.5) for r in (alone, *steady)]
    assert not settled(left, loud, config)


@pytest.mark.parametrize("within", [0.002, 0.02, 0.05])
def test_the_interval_of_a_settled_pair_covers_the_truth_and_is_little_wider(within: float) -> None:
    draw, config, between = random.Random(3), EvalConfig(rounds=8), 0.03
    covered, ended, wider = 0, 0, list[float]()
    for _ in range(1500):
        null = Null(tuple(draw.gauss(0, between) for _ in range(3)))
        process = 0.3 + draw.gauss(0, between)
        rounds = [RoundObservation(0, True, 8, 1.0, 1.0)]
        for _ in range(full_rounds(config)):
            rounds.append(batch(0, math.exp(process + draw.gauss(0, within)), 1.0))
            if settled(rounds, null, config):
                break
        count = len(rounds) - 1
        ended += count < full_rounds(config)
        (pair,) = summarise(rounds)
        found = interval([pair], null, config)
        whole = interval([replace(pair, rounds=full_rounds(config))], null, config)
        covered += found.low <= math.exp(0.3) <= found.high
        wider.append(math.log(found.high / found.low) / math.log(whole.high / whole.low))
    assert covered / 1500 >= 0.95
    assert max(wider) < 1.13
    assert ended > 500


def test_a_clear_win_ends_with_an_interval_above_the_bar() -> None:
    draw, null, config = random.Random(5), Null((0.01, 0.0, -0.01)), EvalConfig(rounds=8)
    ended = 0
    for _ in range(500):
        gain, spread = draw.uniform(0.02, 0.15), draw.uniform(0, 0.02)
        rounds = [RoundObservation(0, True, 8, 1.0, 0.9)]
        rounds += [batch(0, math.exp(draw.gauss(gain, spread)), 1.0) for _ in range(4)]
        if clear_win(rounds, null, config, 1.0):
            ended += 1
            assert interval(summarise(rounds), null, config).low > 1.0
    assert ended > 100


def test_a_pair_cut_short_has_a_wider_interval() -> None:
    null, config = Null((0.01, -0.02, 0.01)), EvalConfig(rounds=8)
    whole, short = (interval([Pair(1, 1, 0, n, spread=0.02)], null, config) for n in (6, 2))
    assert short.high / short.low > whole.high / whole.low
    one, all_of_it = (interval([Pair(1, 1, 0, n)], null, config) for n in (1, 6))
    assert math.log(one.high) == pytest.approx(math.sqrt(6) * math.log(all_of_it.high))


@pytest.mark.parametrize("within", [0.002, 0.01, 0.03])
def test_the_interval_of_a_pair_cut_short_covers_the_truth(within: float) -> None:
    draw, covered, trials = random.Random(9), 0, 2000
    config = EvalConfig(rounds=8)

    def pair_of(count: int) -> Pair:
        process = draw.gauss(0, 0.005)
        logs = [process + draw.gauss(0, within) for _ in range(count)]
        (found,) = summarise([batch(0, math.exp(0.3 + log), 1.0) for log in logs])
        return found

    for _ in range(trials):
        null = Null(tuple(pair_of(6).log_speedup - 0.3 for _ in range(3)))
        found = interval([pair_of(3)], null, config)
        covered += found.low <= math.exp(0.3) <= found.high
    assert covered / trials >= 0.95
