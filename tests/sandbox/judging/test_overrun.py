"""A GPU at work behind "done": when it is charged, when it convicts, and that it is asked."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sandbox import timing
from sandbox.evaluator import LocalEvaluator
from sandbox.judging.overrun import convicted, suspected
from sandbox.judging.statistics import Null, clear_win, summarise
from sandbox.observation import RoundObservation
from sandbox.pairs import sides
from sandbox.pairs.pair import ProcessPair
from sandbox.types import Candidate, EvalConfig, Language, Status
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

IDLE_S = 0.0004
"""What an idle GPU takes to come back to our context."""
BATCH_S = 0.01


def batch(left_s: float, reference_left_s: float = IDLE_S, pair: int = 0) -> RoundObservation:
    """Of equal code: what is left running is missing from the time."""
    return RoundObservation(
        pair, False, 10, BATCH_S, BATCH_S - max(0.0, left_s - IDLE_S),
        reference_left_s=reference_left_s, candidate_left_s=left_s,
    )  # fmt: skip


def rounds(left: Sequence[float]) -> list[RoundObservation]:
    """Of two pairs."""
    return [batch(seconds, pair=number % 2) for number, seconds in enumerate(left)]


@pytest.mark.parametrize(
    ("left", "guilty"),
    [
        ([0.005] * 8, True),
        ([0.005, 0.0045, 0.006, 0.005, 0.005, 0.0047, IDLE_S, IDLE_S], True),
        ([0.005] * 7, False),
        ([*[0.005] * 4, *[IDLE_S] * 4], False),
        ([IDLE_S + 0.0004] * 8, False),
        ([IDLE_S] * 8, False),
    ],
    ids=["always", "mostly", "in few rounds", "in every other", "a little", "idle"],
)
def test_a_gpu_that_works_on_behind_most_batches_convicts(left: list[float], guilty: bool) -> None:
    found = convicted(rounds(left))
    assert found is not None
    assert found[0] is guilty


def test_one_pair_convicts_nobody_and_asks_for_another() -> None:
    one = [batch(0.005)] * 8
    found = convicted(one)
    assert found is not None
    assert not found[0]
    assert suspected(one)
    assert not suspected([batch(IDLE_S)] * 8)
    assert not suspected([*one, *(replace(r, pair=1) for r in one)])
    few = [batch(0.005, pair=number % 2) for number in range(7)]
    assert suspected(few), "two pairs of too few batches ask for a third"


def test_a_neighbour_on_the_gpu_convicts_nobody() -> None:
    draw = random.Random(1)
    guilty = 0
    for _ in range(500):
        noisy = [IDLE_S + draw.uniform(0, 0.0024) for _ in range(24)]
        seen = [
            batch(a, b, n % 2) for n, (a, b) in enumerate(zip(noisy[:12], noisy[12:], strict=True))
        ]
        found = convicted(seen)
        guilty += found is not None and found[0]
    assert guilty == 0


@pytest.mark.parametrize("slice_s", [0.0024, 0.02])
def test_a_neighbour_of_any_size_convicts_hardly_anybody(slice_s: float) -> None:
    draw = random.Random(1)
    guilty, trials = 0, 2000
    for _ in range(trials):
        noisy = [IDLE_S + draw.uniform(0, slice_s) for _ in range(16)]
        seen = [
            batch(a, b, n % 2) for n, (a, b) in enumerate(zip(noisy[:8], noisy[8:], strict=True))
        ]
        found = convicted(seen)
        guilty += found is not None and found[0]
    assert guilty / trials < 0.006


def test_void_rounds_convict_nobody() -> None:
    void = [replace(r, void="the reference took longer") for r in rounds([0.005] * 10)]
    assert convicted(void) is None
    found = convicted([*void, *rounds([IDLE_S] * 8)])
    assert found is not None
    assert not found[0]


def test_on_a_cpu_there_is_nothing_to_see() -> None:
    assert convicted([RoundObservation(0, False, 10, 0.01, 0.005)]) is None
    assert convicted([RoundObservation(0, True, 8, 0.01, 0.005, 1, 1, 1, 1)]) is None


@pytest.mark.parametrize("least", [0.0, 0.3, 0.8])
def test_what_was_left_running_is_paid_for_however_it_varies(least: float) -> None:
    """By equal code: a gain of more than what counts as idle could only be stolen."""
    draw = random.Random(3)
    for _ in range(200):
        left = [
            IDLE_S + draw.uniform(least, 0.95) * BATCH_S * (draw.random() > 0.15) for _ in range(6)
        ]
        (found,) = summarise([batch(seconds) for seconds in left])
        assert found.log_speedup <= math.log(1 / (1 - 0.0003 / BATCH_S)) + 1e-9


def test_what_is_always_left_running_is_paid_for_beside_noise() -> None:
    """Other processes' work comes behind both sides' batches, and hides none of the candidate's."""
    draw = random.Random(4)
    gains = []
    for _ in range(500):
        noise = [draw.uniform(0, 0.004) for _ in range(12)]
        seen = [
            batch(IDLE_S + 0.005 + a, IDLE_S + b) for a, b in zip(noise[:6], noise[6:], strict=True)
        ]
        paid = [replace(r, candidate_s=BATCH_S - 0.005) for r in seen]
        (found,) = summarise(paid)
        gains.append(found.log_speedup)
    assert statistics.median(gains) < math.log(1.25)
    assert max(gains) < math.log(2) * 0.9


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_short_pair_is_charged_for_what_all_its_batches_exceed(count: int) -> None:
    mine = [IDLE_S + x for x in (0, 0.0004, 0.0008, 0.0002, 0.0006, 0.0004)][:count]
    (found,) = summarise([batch(IDLE_S + 0.0014, left) for left in mine])
    assert found.candidate_ms * 10 > 1e3 * (BATCH_S - 0.0014) + 0.3


def test_no_win_is_clear_whose_batches_all_end_late() -> None:
    """Whole pairs would charge what three noisy rounds do not."""
    null, config = Null((0.005, 0.0, -0.005)), EvalConfig(rounds=8)
    alone = RoundObservation(0, True, 8, 0.008, 0.007)
    quick = [batch(IDLE_S, left) for left in (0.0002, 0.0006, 0.0010)]
    quick = [replace(r, candidate_s=0.9 * BATCH_S) for r in quick]
    late = [replace(r, candidate_left_s=0.0014) for r in quick]
    assert clear_win([alone, *quick], null, config, 1.0)
    assert not clear_win([alone, *late], null, config, 1.0)


def test_an_idle_gpu_is_charged_to_nobody() -> None:
    draw = random.Random(2)
    logs = []
    for _ in range(500):
        idle = [draw.uniform(0.0003, 0.0007) for _ in range(12)]
        (found,) = summarise([
            RoundObservation(0, False, 10, 1, 1, reference_left_s=a, candidate_left_s=b)
            for a, b in zip(idle[:6], idle[6:], strict=True)
        ])  # fmt: skip
        logs.append(found.log_speedup)
    assert statistics.fmean(logs) == pytest.approx(0, abs=1e-6)


def test_noise_behind_both_sides_is_charged_to_few() -> None:
    """Beside another context's work on both sides' heels, which there is in a search alone."""
    draw = random.Random(2)
    charged = 0
    for _ in range(1000):
        noise = [IDLE_S + draw.uniform(0, 0.0024) for _ in range(12)]
        pairs_of = zip(noise[:6], noise[6:], strict=True)
        (found,) = summarise([
            RoundObservation(0, False, 10, BATCH_S, BATCH_S, reference_left_s=a, candidate_left_s=b)
            for a, b in pairs_of
        ])  # fmt: skip
        charged += found.log_speedup < -1e-9
    assert charged / 1000 < 0.1


class FakeProbe:
    """A GPU that is at work whenever the candidate's turn is over."""

    def __init__(self, busy: bool) -> None:
        self.busy = busy
        self.asked: list[str] = []
        self.turn = ""

    def ask(self) -> None:
        self.asked.append(self.turn)

    def wait(self) -> None:
        time.sleep(0.05 if self.busy and self.turn == "candidate" else 0.0005)

    def until_idle(self) -> None:
        self.ask()
        self.wait()


@pytest.mark.parametrize("to_beat", [None, 1.0], ids=["confirmed", "searched"])
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.slow
def test_both_sides_are_asked_behind_every_batch_and_who_left_it_busy_is_refused(
    evaluator: LocalEvaluator,
    monkeypatch: pytest.MonkeyPatch,
    busy: bool,
    to_beat: float | None,
) -> None:
    task = task_of(SCALE)
    config = replace(FAST, rounds=8, min_pairs=2, max_pairs=2)
    evaluator.prepare(task, config)
    probe = FakeProbe(busy)
    monkeypatch.setattr(sides, "probe_of", lambda device: probe)
    monkeypatch.setattr(ProcessPair, "until_idle", lambda self: None)  # of what is kept
    # Equal code on a busy machine may look hopeless or settled, and would end early.
    for known in ("hopeless", "settled"):
        monkeypatch.setattr(timing, known, lambda *_: False)
    wanted = 2 if to_beat is None else 1
    monkeypatch.setattr(timing, "enough", lambda pairs, *_: len(pairs) >= wanted)
    for side in ("reference", "candidate"):
        real = getattr(ProcessPair, f"run_{side}")

        def turn(self, *arguments, real=real, side=side):  # type: ignore[no-untyped-def]
            probe.turn = side
            return real(self, *arguments)

        monkeypatch.setattr(ProcessPair, f"run_{side}", turn)
    rounds_made: list[RoundObservation] = []
    observed = ProcessPair.observed

    def noted(self, *arguments, **options):  # type: ignore[no-untyped-def]
        rounds_made.append(observed(self, *arguments, **options))
        return rounds_made[-1]

    monkeypatch.setattr(ProcessPair, "observed", noted)
    same = Candidate(task.id, Language.TORCH, forward("return y"))
    found = evaluator.evaluate(task, same, config, to_beat=to_beat)
    assert found.status is (Status.REWARD_HACK if busy else Status.PASSED), found.detail
    assert ("idle device" in found.detail) is busy
    # Behind "done" and behind collect of every batch, void ones too; of no lone call.
    batches = [r for r in rounds_made if not r.single]
    for side in ("reference", "candidate"):
        assert probe.asked.count(side) == 2 * len(batches)
    pairs_made = 2 if busy or to_beat is None else 1
    assert len(batches) >= pairs_made * 6
    assert len({r.pair for r in batches}) >= pairs_made
