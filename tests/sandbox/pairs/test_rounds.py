"""What every pair has met before it may end early."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.figures import Pair
from sandbox.judging.drift import DRIFT
from sandbox.judging.statistics import Null, full_rounds, summarise
from sandbox.machine import processes
from sandbox.machine.handle import Worker
from sandbox.machine.rest import Afterwards
from sandbox.observation import CaseObservation, Observation, RoundObservation
from sandbox.pairs import turns
from sandbox.pairs.pair import ProcessPair
from sandbox.pairs.rounds import MET_BY, restyled, short_round, single_set
from sandbox.pairs.turn import Progress, Turn, together
from sandbox.run import Run
from sandbox.subjects.plan import Plan
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, Language, Status
from tests.exploits.problems import FRAMES
from tests.exploits.x_state_left_to_itself import AVERAGE
from tests.sandbox.conftest import FAST, LINEAR, SCALE, forward, task_of


class UnevenCore:
    """Paces that the supervisor reads of the core that launches: by turns, in pairs, so often as
    `uneven` says, and then always the same.
    """

    def __init__(self, uneven: float = math.inf) -> None:
        self.number = max(os.sched_getaffinity(0))
        self.left = uneven
        self.read = 0

    def pace(self) -> float:
        self.read += 1
        self.left -= 1
        return 1.0 + 0.9 * (self.read % 2) if self.left >= 0 else 1.0

    @contextlib.contextmanager
    def left_alone(self) -> Iterator[None]:
        yield

    kept_awake = left_alone


SLOW = "__import__('time').sleep(0.003)"
SEARCH = replace(FAST, search_pairs=1, rounds=8)


def test_a_single_set_round_comes_early_at_a_secret_place() -> None:
    config, secret = replace(SEARCH, single_share=0.1), random.Random(1)
    kinds = [single_set(config, secret, judged=True) for _ in range(200)]
    assert {rounds.count(True) for rounds in kinds} == {1}
    assert {rounds.index(True) for rounds in kinds} == set(range(MET_BY))


def test_parameters_change_early_and_again_at_secret_places() -> None:
    secret = random.Random(1)
    places = [restyled(8, secret) for _ in range(400)]
    assert {len(numbers) for numbers in places} == {2}
    assert all(min(numbers) < MET_BY for numbers in places)
    assert set().union(*places) == set(range(8))
    assert restyled(1, secret) == {0}


def test_one_batch_ends_early_and_is_neither_the_first_nor_one_with_hidden_inputs() -> None:
    kinds = [False, True, False, False, True, False]
    found = {short_round(kinds, {2}, random.Random(seed)) for seed in range(50)}
    assert found == {3, 5}
    assert short_round([False, True, False], {2}, random.Random(0)) is None


@pytest.mark.slow
def test_what_is_updated_is_told_after_batches_of_which_one_is_shorter(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[int, list[tuple[int, bool, int]]] = {}
    observed = ProcessPair.observed

    def noted(self: ProcessPair, mine: Turn, its: Turn, calls: int, *, single: bool) -> Any:
        if self.judged:
            more = len(mine.collects) - (calls if single else 1)
            told.setdefault(self.number, []).append((calls, single, more))
            assert len(its.collects) == len(mine.collects)
        return observed(self, mine, its, calls, single=single)

    monkeypatch.setattr(ProcessPair, "observed", noted)
    task = task_of(AVERAGE)
    source = AVERAGE.replace("class Model(", "class ModelNew(")
    config = replace(FAST, rounds=8)
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, source), config)
    assert found.status is Status.PASSED, found.detail
    assert told
    for rounds in told.values():
        batches = [calls for calls, single, _ in rounds if not single]
        assert sum(calls < max(batches) for calls in batches) == 1
        assert {more for _, single, more in rounds if not single} == {1}, "its telling is one more"
        assert {more for _, single, more in rounds if single} == {0}


def test_between_trusted_sides_no_call_is_alone() -> None:
    assert single_set(SEARCH, random.Random(1), judged=False) == [False] * 6


@pytest.mark.parametrize("rounds", [2, 3, 8])
def test_a_pair_has_a_batch_whatever_share_of_its_rounds_is_single_set(rounds: int) -> None:
    config = replace(FAST, rounds=rounds, single_share=0.99)
    assert sorted(single_set(config, random.Random(1), judged=True)) == [
        False,
        *[True] * (rounds - 1),
    ]


def test_a_lone_call_that_waited_for_a_thread_does_not_speak_for_the_others() -> None:
    assert together([0.003]) == 0.003
    assert together([0.001, 0.012, 0.002, 0.001]) == 0.004


def lone_turn(calls: Sequence[tuple[float, float]]) -> Turn:
    """Of lone calls, by seconds to "done" and of handing their outputs over."""
    turn = Progress(paces=[1.0])
    for spent, collect in calls:
        turn.spent.append(spent)
        turn.collected(collect, Afterwards(None))
    return turn.over()


def test_the_lone_call_that_leaves_its_work_for_collect_does_not_speak_for_the_others() -> None:
    reference = lone_turn([(3e-3, 1.1e-3), (3e-3, 1.3e-3), (3e-3, 1.2e-3)])
    deferring = lone_turn([(3e-3, 1.2e-3), (1e-3, 4e-3), (3e-3, 1.1e-3)])
    seen = deferring.beside(reference)
    assert seen.seconds == pytest.approx(9e-3)
    assert seen.collect_s == pytest.approx(3.5e-3)
    slower = lone_turn([(1e-3, 2.3e-3)] * 3)  # whose outputs take longer to copy
    seen = slower.beside(reference)
    assert seen.seconds + seen.collect_s == pytest.approx(slower.seconds + slower.collect_s)
    assert reference.beside(reference).seconds == reference.seconds


@pytest.mark.parametrize("attempt", range(2))
def test_a_slow_cheat_with_frozen_weights_is_still_caught(
    evaluator: LocalEvaluator, attempt: int
) -> None:
    task = task_of(LINEAR)
    source = LINEAR.replace("class Model(", "class ModelNew(").replace(
        "        return x @ self.weight.T + self.bias",
        f"        {SLOW}\n"
        "        if getattr(self, 'kept', None) is None or len(self.kept[2]) < 12:\n"
        "            w, b = self.weight.clone(), self.bias.clone()\n"
        "            seen = [] if getattr(self, 'kept', None) is None else self.kept[2]\n"
        "            self.kept = (w, b, seen + [1])\n"
        "        return x @ self.kept[0].T + self.kept[1]",
    )
    found = evaluator.evaluate(
        task, Candidate(task.id, Language.TORCH, source + f"\n# {attempt}"), SEARCH, to_beat=1.0
    )
    assert found.status is Status.WRONG_VALUE, found.detail


def test_a_hopeless_candidate_is_timed_in_fewer_rounds(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    slow = Candidate(task.id, Language.TORCH, forward(SLOW, "return y"))
    config = replace(SEARCH, rounds=12, min_pairs=3, max_pairs=3)
    found = evaluator.evaluate(task, slow, config, to_beat=1e30)
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    assert len(found.timing.pairs) == 1
    assert found.timing.pairs[0].rounds < 9


def test_a_clear_winner_is_timed_in_fewer_rounds(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a busy machine makes of it: what is clear is told by the test, once a round counts
    (a pair of void rounds alone is no figure, and the next one would be whole).
    """
    monkeypatch.setattr("sandbox.timing.clear_win", lambda rounds, *_: bool(summarise(rounds)))
    monkeypatch.setattr("sandbox.timing.hopeless", lambda *_: False)
    monkeypatch.setattr("sandbox.timing.doubted", lambda *_, **__: False)
    task = task_of(SCALE)
    same = Candidate(task.id, Language.TORCH, forward("return y"))
    found = evaluator.evaluate(task, same, replace(SEARCH, rounds=12), to_beat=1.0)
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    (pair,) = found.timing.pairs
    assert pair.rounds <= MET_BY
    several = replace(SEARCH, rounds=12, search_pairs=2, max_pairs=2)
    whole = evaluator.evaluate(task, same, several, to_beat=1.0)
    assert whole.timing is not None
    assert all(pair.rounds + pair.voided >= 9 for pair in whole.timing.pairs)


def test_a_win_that_is_doubted_meets_every_round() -> None:
    """And so does the pair that was added for the doubt."""
    run, null = Run.__new__(Run), Null((0.001, -0.001, 0.0005))
    run.to_beat, run.config, run.task = 1.0, SEARCH, task_of(SCALE)
    run.preparation = SimpleNamespace(null=null)  # type: ignore[assignment]
    fast = RoundObservation(0, False, 10, 0.01, 0.005)
    alone = RoundObservation(0, True, 8, 0.008, 0.004)
    merged = replace(alone, candidate_s=0.07)
    left = replace(fast, reference_left_s=4e-4, candidate_left_s=0.004)
    for rounds, decided in (
        ([fast, alone, fast, fast], True),
        ([fast, merged, fast, fast], False),
        ([fast, replace(merged, void="uneven"), fast, fast], False),
        ([fast, fast, fast], False),
        ([left, alone, left, left], False),
        ([replace(r, pair=1) for r in (fast, alone, fast, fast)], False),
    ):
        run.observation, run.doubt = Observation("task", "candidate", rounds=tuple(rounds)), False
        assert run.decided() is decided


def test_a_doubt_about_the_first_pair_stands_until_there_is_another() -> None:
    run, null = Run.__new__(Run), Null((0.001, -0.001, 0.0005))
    run.to_beat, run.config, run.task = 1.0, SEARCH, task_of(SCALE)
    run.preparation = SimpleNamespace(null=null)  # type: ignore[assignment]
    fast, alone = (
        RoundObservation(0, False, 10, 0.01, 0.005),
        RoundObservation(0, True, 8, 0.008, 0.004),
    )
    merged = replace(alone, candidate_s=0.07)
    doubtful, clean = [fast, merged, fast, fast], [fast, merged, fast, fast, *[alone] * 4]
    for rounds, doubts in ((doubtful, True), (clean, True)):
        run.observation = Observation("task", "candidate", rounds=tuple(rounds))
        assert run.doubts() is doubts
    assert not run.doubts(slow=True)
    other = [replace(r, pair=1) for r in (fast, alone, fast, fast)]
    run.observation = Observation("task", "candidate", rounds=(*clean, *other))
    assert not run.doubts()


def script(candidate_s: float, *others_s: float, pair: int = 0, calls: int = 4) -> list[Any]:
    """Batches of one pair, whose reference takes 1 ms a batch."""
    case = CaseObservation("timed rounds")
    found = [RoundObservation(pair, False, calls, 0.001, s) for s in (candidate_s, *others_s)]
    return [(seen, [case]) for seen in found]


@pytest.mark.parametrize("to_beat", [None, 1.0])
@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ([script(0.1, 0.1, 0.1)], 4),
        ([script(0.1, 0.1, 0.003), script(0.002, 0.002, 0.002, calls=0)], 0),
        ([script(0.1, 0.003, 0.1), script(0.1, 0.1, 0.1, calls=0)], 0),
    ],
    ids=["slow throughout", "quick once", "quick once, slow in the batches as planned"],
)
def test_short_batches_are_for_who_is_slow_in_every_one(
    pairs: list[list[Any]], told: int, to_beat: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.timing.timed_bounds", lambda _: ())
    monkeypatch.setattr("sandbox.timing.timed_kinds", lambda *_: ())
    monkeypatch.setattr("sandbox.timing.own_error", lambda _: 0.0)
    monkeypatch.setattr("sandbox.timing.judge_case", lambda _: (Status.PASSED, ""))
    planned, searched = Plan(80, 2), Plan(40, 2)
    wanted = planned if to_beat is None else searched
    run = Run.__new__(Run)
    run.to_beat, run.config, run.task, run.loaded = to_beat, SEARCH, task_of(SCALE), None
    null = Null((0.001, -0.001, 0.0005))
    run.preparation = SimpleNamespace(  # type: ignore[assignment]
        null=null, plan=planned, search_plan=searched, most_sets=80
    )
    run.preparer = SimpleNamespace(floor_s=lambda _, plan: plan.sets)  # type: ignore[assignment]
    run.pools = [SimpleNamespace(cases=[None], signature=None)]  # type: ignore[list-item]
    run.observation = Observation("task", "candidate", planned_sets=wanted.sets)
    run.replan(Plan(4, 2))
    numbers, left = [], list(pairs)

    def pair(number: int, _: object) -> Any:
        numbers.append(number)
        # As planned, where the script says no other number of calls.
        return [(replace(r, calls=r.calls or run.plan.sets), cases) for r, cases in left.pop(0)]

    run.pair = pair  # type: ignore[method-assign, assignment]
    run.time()
    seen = run.observation
    assert numbers == [0] * len(pairs), "nobody who is slow needs another pair"
    assert seen.sets == seen.floor_s == (told or wanted.sets)
    assert {r.calls for r in seen.rounds} == {told or wanted.sets}
    assert len(seen.rounds) == 3
    assert run.replanned is (told == 0)


def test_batches_that_grew_for_a_quick_candidate_do_not_shrink() -> None:
    """A process may be slow, or quick, whenever it likes; without this they took turns for ever."""
    run = Run.__new__(Run)
    run.to_beat, run.plan, run.observation = None, Plan(4, 2), Observation("task", "candidate")
    run.preparation = SimpleNamespace(plan=Plan(4, 2), most_sets=64)  # type: ignore[assignment]
    run.preparer = SimpleNamespace(floor_s=lambda *_: None)  # type: ignore[assignment]
    run.pools = [SimpleNamespace(signature=None)]  # type: ignore[list-item]
    assert run.lengthened([Pair(1.0, 0.05, math.log(20), 3, 0, 0.0)])
    assert run.plan.sets > 4
    assert run.replanned


@pytest.fixture
def launching_on(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[UnevenCore], None]]:
    """As on a GPU's host: workers launch from one core, whose pace is read; nothing else voids."""
    monkeypatch.setitem(DRIFT, "cpu", math.inf)
    # A call of microseconds, however long it took on a busy machine.
    monkeypatch.setattr("sandbox.pairs.sides.SHORT_CALL_S", math.inf)
    # With a launching core lone calls are rung for, which says nothing on cores that others share.
    monkeypatch.setattr("sandbox.judging.merging.convicted", lambda *_: None)
    zygote = evaluator._stand.zygote

    def place(core: UnevenCore) -> None:
        zygote.launching_core = core  # type: ignore[assignment]

    yield place
    zygote.launching_core = None


@pytest.mark.slow
def test_batches_that_one_side_launched_from_a_slower_core_are_made_up_for(
    evaluator: LocalEvaluator, launching_on: Callable[[UnevenCore], None]
) -> None:
    task, config = task_of(SCALE), replace(FAST, rounds=6)
    evaluator.prepare(task, config)
    # Batches alone, two rounds of eight lone calls a side, wherever they come, and one batch round.
    launching_on(UnevenCore(3 + 2 * 2 * 8 + 3))
    same = Candidate(task.id, Language.TORCH, forward("", "return y"))
    found = evaluator.evaluate(task, same, config)
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    assert found.timing.pairs[0].voided > 0
    assert all(pair.rounds >= full_rounds(config) for pair in found.timing.pairs)


@pytest.mark.slow
def test_a_core_that_never_serves_both_sides_alike_gives_no_figure(
    evaluator: LocalEvaluator, launching_on: Callable[[UnevenCore], None]
) -> None:
    task = task_of(SCALE)
    evaluator.prepare(task, FAST)
    core = UnevenCore()
    launching_on(core)
    same = Candidate(task.id, Language.TORCH, forward("", "return y"))
    found = evaluator.evaluate(task, same, FAST)
    assert found.status is Status.SANDBOX_ERROR, found.detail
    assert "launching core" in found.detail
    assert core.read < 200


@pytest.mark.slow
def test_with_a_launching_core_lone_calls_are_rung_for_and_compared(
    evaluator: LocalEvaluator,
    launching_on: Callable[[UnevenCore], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rung: list[int] = []
    told: list[str] = []
    ring, answers_later = Subject.ring, Worker.answers_later

    def counted(self: Subject, index: int, warm: int, values: bytes) -> float:
        rung.append(index)
        return ring(self, index, warm, values)

    def noted(self: Worker, *, stage: str, timeout_s: float) -> None:
        told.append(stage)
        answers_later(self, stage=stage, timeout_s=timeout_s)

    monkeypatch.setattr(Subject, "ring", counted)
    monkeypatch.setattr(Worker, "answers_later", noted)
    task, config = task_of(SCALE), replace(FAST, rounds=6)
    evaluator.prepare(task, config)
    launching_on(UnevenCore(0))
    same = Candidate(task.id, Language.TORCH, forward("", "return y"))
    assert evaluator.evaluate(task, same, config).status is Status.PASSED
    assert rung
    assert told  # by the bell, before there is an answer
    lone = "(frame := harness('do_go')) and 'rung' in frame.f_locals['request']"
    spoilt = forward(f"return y + 0.1 if {lone} else y", top=FRAMES)
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, spoilt), config)
    assert found.status is Status.WRONG_VALUE
    assert found.detail.startswith("timed rounds")
    raising = forward(f"return 1 / 0 if {lone} else y", top=FRAMES)
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, raising), config)
    assert found.status is Status.RUNTIME_ERROR
    assert "ZeroDivisionError" in found.detail


@pytest.mark.slow
def test_what_a_lone_call_leaves_for_after_it_said_that_it_was_over_is_paid_for(
    evaluator: LocalEvaluator,
    launching_on: Callable[[UnevenCore], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a copy of its inputs, since they are overwritten at once."""
    lone: list[float] = []
    observed = ProcessPair.observed

    def noted(self: ProcessPair, *turns: Any, single: bool) -> RoundObservation:
        seen = observed(self, *turns, single=single)
        lone.extend([(seen.candidate_s - seen.reference_s) / seen.calls] if single else [])
        return seen

    monkeypatch.setattr(ProcessPair, "observed", noted)
    task = task_of(SCALE)
    evaluator.prepare(task, FAST)
    launching_on(UnevenCore(0))
    early = forward(
        "frame = harness('do_go', 'keep_warm')",
        "alone = frame is not None and frame.f_code.co_name == 'do_go'",
        "asked = frame.f_locals['request'] if alone else {}",
        "if 'rung' in asked:",
        "    x = x.clone()",
        "    frame.f_locals['self'].bell.tell(asked['rung'])",
        "    end = time.process_time() + 0.02",
        "    while time.process_time() < end: pass",
        "y = torch.relu(x) * self.factor + 1.0",
        "return y",
        top=FRAMES + "\nimport time",
    )
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, early), FAST)
    assert found.passed, found.detail
    assert lone
    assert min(lone) > 0.01


def test_a_candidate_stands_still_while_its_claims_are_read(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be long, and what it did meanwhile would be nobody's time."""
    pids, states = [0], set[str]()
    run, read = ProcessPair.run_candidate, turns.structure

    def noted_run(self: ProcessPair, *arguments: Any) -> tuple[Turn, CaseObservation]:
        pids.append(self.candidate.worker.pid)
        return run(self, *arguments)

    def noted_read(*arguments: Any, **more: Any) -> dict[str, Any]:
        states.add(Path(f"/proc/{pids[-1]}/stat").read_text().rpartition(")")[2].split()[0])
        return read(*arguments, **more)

    monkeypatch.setattr(ProcessPair, "run_candidate", noted_run)
    monkeypatch.setattr(turns, "structure", noted_read)
    task = task_of(SCALE)
    candidate = Candidate(
        task.id, Language.TORCH, forward("return torch.relu(x) * self.factor + 1.0")
    )
    found = evaluator.evaluate(task, candidate, FAST)
    assert found.passed, found.detail
    assert states == {"T"}


@pytest.mark.slow
def test_the_clock_runs_from_when_a_side_can_begin(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of it that spin may keep us from saying "go"."""
    spent: list[float] = []
    thaw, observed = processes.thaw_tree, ProcessPair.observed

    def delayed(pgid: int) -> None:
        thaw(pgid)
        time.sleep(0.02)

    def noted(
        self: ProcessPair, mine: Turn, its: Turn, calls: int, *, single: bool
    ) -> RoundObservation:
        spent.extend((*mine.spent, *its.spent))
        return observed(self, mine, its, calls, single=single)

    task = task_of(SCALE)
    evaluator.prepare(task, FAST)
    monkeypatch.setattr(processes, "thaw_tree", delayed)
    monkeypatch.setattr(ProcessPair, "observed", noted)
    right = forward("return torch.relu(x) * self.factor + 1.0")
    evaluator.evaluate(task, Candidate(task.id, Language.TORCH, right), FAST)
    assert spent
    assert min(spent) > 0.009  # at most half of a batch is taken off as the harness's own
