"""Calls merged within a batch: how they show in the rounds, and what does not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.figures import Interval, Timing
from sandbox.judging.merging import convicted, doubtful, excess_s, lower_bound, suspected
from sandbox.observation import RoundObservation


def batch(pair: int, reference_s: float, candidate_s: float) -> RoundObservation:
    return RoundObservation(pair, False, 10, reference_s, candidate_s)


def test_merged_calls_show_as_an_excess_per_call() -> None:
    singles = [RoundObservation(0, True, 4, 4 * 0.101, 4 * 0.9, 0, 0) for _ in range(3)]
    found = excess_s([batch(0, 1.0, 0.1), batch(0, 1.0, 0.1), *singles])
    assert found == (pytest.approx(0.9 - 0.01 - 0.001), pytest.approx(0))


def test_an_excess_in_one_pair_of_two_is_a_busy_machine() -> None:
    rounds = [batch(0, 1.0, 0.9), batch(1, 1.0, 0.9)]
    rounds += [RoundObservation(0, True, 4, 0.4, 0.9), RoundObservation(1, True, 4, 0.4, 0.36)]
    found = excess_s(rounds)
    assert found is not None
    assert found[0] == pytest.approx(0)
    assert suspected([r for r in rounds if r.pair == 0])
    assert not suspected(rounds)


@pytest.mark.parametrize(
    ("call_s", "excess_s", "worth"),
    [(0.002, 0.0003, False), (0.002, 0.0008, True), (0.05, 0.0009, False), (0.05, 0.0011, True)],
)
def test_an_excess_that_could_convict_nobody_is_not_worth_another_pair(
    call_s: float, excess_s: float, worth: bool
) -> None:
    """Of calls of 2 ms: 150 us, 100 us and a fifth of the reference are allowed; of slow ones,
    which take 50 ms, two per cent of themselves.
    """
    rounds = [RoundObservation(0, False, 4, 4 * 0.002, 4 * call_s)] * 4
    rounds += [RoundObservation(0, True, 4, 4 * 0.002, 4 * (call_s + excess_s))] * 2
    assert suspected(rounds) is worth
    timing = Timing(2.0, call_s * 1e3, Interval(1.0, 0.9, 1.1, 0.95), 0.0, (), 10)
    again = [*rounds, *(replace(r, pair=1) for r in rounds)]
    found = convicted(again, timing)
    assert found is not None
    assert found[0] is worth


def test_a_reference_slowed_in_its_batches_convicts_nobody() -> None:
    """Lone calls of both sides cost what they did; a busy machine held up the reference's batch."""
    singles = [RoundObservation(0, True, 2, 2 * 0.10, 2 * 0.02) for _ in range(4)]
    found = excess_s([batch(0, 5.0, 0.2), batch(0, 9.0, 0.2), *singles])
    assert found == (pytest.approx(0), pytest.approx(0))


def test_one_disturbed_lone_call_a_pair_convicts_nobody() -> None:
    """As on an H100 whose host worked for another as well: 73 us where 72 were allowed."""
    timing = Timing(0.150, 0.031, Interval(4.7, 0.9, 24.9, 0.95), 0.1, (), 10)
    rounds = []
    for pair in range(2):
        rounds += [RoundObservation(pair, False, 137, 137 * 150e-6, 137 * 31e-6)] * 4
        for lone_s in (35e-6, 180e-6):
            rounds.append(RoundObservation(pair, True, 1, 150e-6, lone_s, rung=True))
    found = convicted(rounds, timing)
    assert found is not None
    assert not found[0]
    # Who merges pays in each.
    merged = [replace(r, candidate_s=180e-6) if r.single else r for r in rounds]
    found = convicted(merged, timing)
    assert found is not None
    assert found[0]


@pytest.mark.parametrize("single", [True, False])
def test_merging_cannot_be_seen_in_one_kind_of_round(single: bool) -> None:
    rounds = [RoundObservation(0, single, 4, 1.0, 1.0)]
    assert excess_s(rounds) is None
    other = RoundObservation(1, not single, 4, 1.0, 1.0)
    assert excess_s([*rounds, other]) is None
    assert excess_s([*rounds, replace(other, pair=0, void="drift")]) is None


@pytest.mark.parametrize(
    ("pairs", "singles", "guilty"), [(2, 2, True), (1, 4, False), (2, 1, False)]
)
def test_gross_merging_convicts_once_it_shows_often_enough(
    pairs: int, singles: int, guilty: bool
) -> None:
    timing = Timing(100.0, 10.0, Interval(10.0, 9.0, 11.0, 0.95), 0.0, (), 10)
    rounds = [batch(pair, 1.0, 0.1) for pair in range(pairs)]
    rounds += [RoundObservation(p, True, 4, 0.4, 3.6) for p in range(pairs) for _ in range(singles)]
    found = convicted(rounds, timing)
    assert found is not None
    assert found[0] is guilty
    assert "a call alone costs 890000 us more" in found[1]


def rung(
    pair: int, reference_us: float, candidate_us: float, alone: list[tuple[float, float]]
) -> list[RoundObservation]:
    """Rounds of one pair whose lone calls were timed by the bell."""
    lone = [
        RoundObservation(pair, True, 1, mine * 1e-6, its * 1e-6, rung=True) for mine, its in alone
    ]
    return [RoundObservation(pair, False, 1, reference_us * 1e-6, candidate_us * 1e-6), *lone]


def verdict(rounds: list[RoundObservation]) -> bool:
    batches = [r for r in rounds if not r.single]
    reference_ms = sum(r.reference_s for r in batches) / len(batches) * 1e3
    candidate_ms = sum(r.candidate_s for r in batches) / len(batches) * 1e3
    timing = Timing(reference_ms, candidate_ms, Interval(1.0, 0.9, 1.1, 0.95), 0.0, (), 10)
    found = convicted(rounds, timing)
    assert found is not None
    return found[0]


CHAIN = [
    *rung(0, 189.8, 15.8, [(236.8, 212.7), (244.8, 250.6), (206.4, 211.8), (209.6, 215.4)]),
    *rung(1, 200.2, 16.1, [(240.5, 225.4), (227.8, 239.9), (231.1, 230.0), (222.6, 233.0)]),
]
"""Sixteen small operators, merged: 12 times as fast in a batch, no faster alone (H200)."""
TINY = [
    *rung(0, 20.0, 5.2, [(58.1, 72.1), (41.7, 43.9), (41.5, 46.2), (48.3, 50.8), (39.3, 45.4)]),
    *rung(1, 29.0, 8.0, [(75.6, 53.6), (72.3, 82.9), (62.6, 80.0), (71.4, 75.6), (71.4, 79.6)]),
]
"""One operator, merged, on a host that slowed down between the pairs (H200)."""
WEIGHTS = rung(0, 132.1, 51.4, [(209.2, 135.2), (231.4, 156.8), (218.8, 128.5), (214.9, 133.9)])
"""An honest kernel, 2.6 times as fast, in its first pair (H200)."""


@pytest.mark.parametrize(
    ("rounds", "guilty"),
    [(CHAIN, True), (TINY, True), ([*WEIGHTS, *(replace(r, pair=1) for r in WEIGHTS)], False)],
    ids=["chain", "tiny", "honest"],
)
def test_by_the_bell_merging_of_microseconds_shows(
    rounds: list[RoundObservation], guilty: bool
) -> None:
    assert verdict(rounds) is guilty
    assert not verdict([replace(r, rung=False) for r in rounds])  # the pipe hides it


def test_by_the_bell_a_call_may_hide_its_host_time_behind_the_device() -> None:
    """The host needs 14 us, the device 14; the reference's 5 us are hidden behind 20."""
    alone = [(25.0 + 30, 28.0 + 30)] * 3
    assert not verdict([*rung(0, 20.0, 14.0, alone), *rung(1, 20.0, 14.0, alone)])


def test_a_candidate_cannot_hide_in_noise_of_its_own() -> None:
    """It delays every other lone call by a millisecond."""
    alone = [(40.0, 45.0), (40.0, 1045.0)] * 2
    assert verdict([*rung(0, 20.0, 4.0, alone), *rung(1, 20.0, 4.0, alone)])


def test_by_the_bell_one_clean_pair_acquits_nobody() -> None:
    """It merges in most of its processes."""
    merged, clean = [(40.0, 45.0)] * 4, [(40.0, 40.0)] * 4
    rounds = [*rung(0, 20.0, 4.0, merged), *rung(1, 20.0, 20.0, clean)]
    assert not verdict(rounds)
    assert verdict([*rounds, *rung(2, 20.0, 4.0, merged)])


def test_by_the_bell_what_lone_calls_leave_for_collect_counts() -> None:
    def collecting(pair: int, its_s: float) -> list[RoundObservation]:
        rounds = rung(pair, 20.0, 4.0, [(40.0, 25.0)] * 4)
        usual = [replace(r, reference_collect_s=1e-4, candidate_collect_s=1e-4) for r in rounds]
        return [replace(r, candidate_collect_s=its_s) if r.single else r for r in usual]

    assert not verdict([*collecting(0, 1e-4), *collecting(1, 1e-4)])
    assert verdict([*collecting(0, 1.3e-4), *collecting(1, 1.3e-4)])


def test_a_pair_without_a_valid_batch_is_no_second_witness() -> None:
    merged = rung(0, 20.0, 4.0, [(40.0, 60.0)] * 4)
    batch, *alone = rung(1, 20.0, 4.0, [(40.0, 24.0)] * 4)
    rounds = [*merged, replace(batch, void="drift"), *alone]
    assert suspected(rounds)
    assert not verdict(rounds)


def test_lone_rounds_of_unknown_noise_convict_nobody() -> None:
    """One in each pair: how much the reference's own scatter is not known."""
    pairs = [rung(n, 20.0, 4.0, [(50.0 + 30 * n, 100.0 + 30 * n)]) for n in range(4)]
    rounds = [r for rounds in pairs for r in rounds]
    assert not verdict(rounds)
    timing = Timing(20e-3, 4e-3, Interval(5.0, 4.0, 6.0, 0.95), 0.0, (), 10)
    assert "too few such rounds" in (convicted(rounds, timing) or (False, ""))[1]


def rounds_of(reference_s: float, candidate_s: float, lone_s: float) -> list[RoundObservation]:
    """Of two pairs, seconds a call: batches, then lone calls of the candidate; those of the
    reference take 130 us more than in a batch. A microsecond of noise.
    """
    noise = (0.0, 1e-6, -1e-6, 2e-6)
    found = []
    for pair in range(2):
        for late in noise:
            found.append(
                RoundObservation(pair, False, 10, 10 * (reference_s + late), 10 * candidate_s)
            )
            alone = 8 * (reference_s + 130e-6), 8 * (lone_s + late)
            found.append(RoundObservation(pair, True, 8, *alone))
    return found


SPEEDUP = Interval(4.0, 3.8, 4.2, 0.95)


UNSEEN = [(35e-6, 8e-6), (310e-6, 65e-6), (400e-6, 101e-6), (600e-6, 235e-6)]
"""Seconds a call: on its own and merged, which would not be convicted (the CPU)."""


@pytest.mark.parametrize(("reference_s", "merged_s"), UNSEEN)
def test_calls_merged_below_what_convicts_gain_nothing(reference_s: float, merged_s: float) -> None:
    merged = rounds_of(reference_s, merged_s, reference_s + 130e-6)
    speedup = reference_s / merged_s
    said = Interval(speedup, 0.97 * speedup, 1.03 * speedup, 0.95)
    timing = Timing(reference_s * 1e3, merged_s * 1e3, said, 0.0, (), 10)
    known = convicted(merged, timing)
    assert known is not None
    assert not known[0]
    found = lower_bound(merged, said, "cpu")
    assert found.low < 1
    assert (found.value, found.high) == (said.value, said.high)


@pytest.mark.parametrize(("reference_s", "merged_s"), UNSEEN)
def test_a_search_asks_for_another_pair_where_calls_alone_leave_half_of_a_gain(
    reference_s: float, merged_s: float
) -> None:
    for share in (1.0, 0.9):  # lone calls as slow as the reference's, and a little quicker
        merged = rounds_of(reference_s, merged_s, share * reference_s + 130e-6)
        one = [r for r in merged if r.pair == 0]
        assert doubtful(one, "cpu")
        assert not doubtful(merged, "cpu")  # there is the other
        assert not doubtful([r for r in one if not r.single], "cpu")
        assert lower_bound(one, SPEEDUP, "cpu") == SPEEDUP  # it only ranks
    honest = [r for r in rounds_of(reference_s, merged_s, merged_s + 130e-6) if r.pair == 0]
    assert not doubtful(honest, "cpu")
    equal = rounds_of(reference_s, 0.95 * reference_s, reference_s + 130e-6)
    assert not doubtful([r for r in equal if r.pair == 0], "cpu")


def test_short_calls_that_are_as_fast_alone_keep_most_of_their_lower_bound() -> None:
    honest = rounds_of(200e-6, 50e-6, 50e-6 + 130e-6)
    assert 0.5 * SPEEDUP.low < lower_bound(honest, SPEEDUP, "cpu").low < 0.8 * SPEEDUP.low


def test_work_left_for_collect_of_lone_calls_counts_as_theirs() -> None:
    left = [
        replace(r, candidate_collect_s=8 * 27e-6) if r.single else r
        for r in rounds_of(35e-6, 8e-6, 8e-6 + 130e-6)
    ]
    assert lower_bound(left, SPEEDUP, "cpu").low < 1


def test_few_lone_rounds_leave_short_calls_no_lower_bound_to_speak_of() -> None:
    """In their noise anything may hide."""
    few = [r for r in rounds_of(35e-6, 8e-6, 8e-6 + 130e-6) if not r.single]
    few += [RoundObservation(n, True, 8, 8 * 165e-6, 8 * 138e-6) for n in range(2)]
    assert lower_bound(few, SPEEDUP, "cpu").low < 0.2


def test_what_is_charged_for_collect_is_not_taken_off_twice() -> None:
    """An honest kernel whose outputs take longer to copy, in batches and alone."""
    usual = rounds_of(200e-6, 50e-6, 50e-6 + 130e-6)
    charged = [replace(r, candidate_collect_s=r.calls * 30e-6) for r in usual]
    lows = [lower_bound(rounds, SPEEDUP, "cpu").low for rounds in (usual, charged)]
    assert lows[1] >= 0.99 * lows[0]


def test_longer_calls_through_the_pipe_keep_their_lower_bound_and_on_a_gpu_all_do() -> None:
    merged = rounds_of(900e-6, 500e-6, 900e-6 + 130e-6)
    assert lower_bound(merged, SPEEDUP, "cpu") == SPEEDUP  # to less than half convicts
    short = rounds_of(35e-6, 8e-6, 35e-6 + 130e-6)
    assert lower_bound(short, SPEEDUP, "cuda") == SPEEDUP
    batches = [r for r in short if not r.single]
    assert lower_bound(batches, SPEEDUP, "cpu") == SPEEDUP


def begun_by_the_bell(rounds: list[RoundObservation]) -> list[RoundObservation]:
    return [replace(r, rung=r.single) for r in rounds]


@pytest.mark.parametrize("reference_s", [10e-6, 60e-6, 190e-6, 2e-3])
def test_calls_merged_in_twos_gain_nothing_where_lone_ones_are_rung_for(reference_s: float) -> None:
    """Half of what they cost is what an honest call may hide in a batch: nobody is convicted."""
    merged = begun_by_the_bell(rounds_of(reference_s, 0.55 * reference_s, reference_s + 130e-6))
    speedup = 1 / 0.55
    said = Interval(speedup, 0.97 * speedup, 1.03 * speedup, 0.95)
    known = convicted(merged, Timing(reference_s * 1e3, 0.55 * reference_s * 1e3, said, 0.0, (), 9))
    assert known is not None
    assert not known[0]
    assert lower_bound(merged, said, "cuda").low < 1.05


def test_a_rung_call_that_is_as_fast_alone_keeps_its_lower_bound_but_for_noise() -> None:
    tiny = begun_by_the_bell(rounds_of(25e-6, 6e-6, 6e-6 + 130e-6))
    assert 0.6 * SPEEDUP.low < lower_bound(tiny, SPEEDUP, "cuda").low < 0.9 * SPEEDUP.low
    longer = begun_by_the_bell(rounds_of(400e-6, 100e-6, 100e-6 + 130e-6))
    assert lower_bound(longer, SPEEDUP, "cuda") == SPEEDUP  # noise of two microseconds is free


def test_a_copy_that_is_charged_in_batches_merges_nothing() -> None:
    """Outputs in another dense layout: handing one over takes 4 ms more, alone as in a batch."""
    slower = {"reference_collect_s": 3 * 0.4e-3, "candidate_collect_s": 3 * 4.4e-3}
    rounds = []
    for pair in range(3):
        rounds += [RoundObservation(pair, False, 3, 3 * 7.5e-3, 3 * 3.0e-3, **slower)] * 6
        # Of lone calls it is part of the call (`Turn.beside`).
        rounds += [RoundObservation(pair, True, 4, 4 * 7.6e-3, 4 * 7.1e-3)] * 2
    found = convicted(rounds, Timing(7.5, 7.0, Interval(1.07, 1.0, 1.1, 0.95), 0.0, (), 3))
    assert found is not None
    assert not found[0], found[1]
