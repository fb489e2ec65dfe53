"""Where no candidate is to come, one batch of the reference serves all its rivals' rounds."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import pytest

from sandbox.baselines.bare import BareGroup, BarePair, RivalFailed
from sandbox.baselines.baselines import DEVICE_BASELINES, NULL, TOGETHER
from sandbox.baselines.compiling import Ahead
from sandbox.baselines.race import Races
from sandbox.baselines.race_room import Room
from sandbox.baselines.rival import Rival
from sandbox.evaluator import LocalEvaluator
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.proc import family
from sandbox.observation import Failure, FailureKind
from sandbox.subjects.signature import Opening
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, EvalConfig, Language, Task
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

pytestmark = pytest.mark.usefixtures("calm")

ONE, TWO = "one", "two"
"""Baselines that are eager once more: the CPU has none that a GPU has."""
PAIRS = FAST.min_pairs
STARTS_S = 30.0
FAILED = Failure("reference", FailureKind.CLAIMED, ("Unsupported",), "not this one")
SHORT_OF_MEMORY = Failure("reference", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")


class Seen:
    """Whose turns there were, by pair, and what the races were of."""

    def __init__(self) -> None:
        self.wraps: dict[Subject, str | None] = {}
        self.turns: dict[int, list[Subject]] = {}
        self.races: list[list[str | None]] = []
        self.retired: set[Subject] = set()
        """Whose processes are being ended, which takes a while: no turn of theirs is to come."""
        self.fails: dict[tuple[str, int], Failure] = {}
        """Of a rival, in its pair of this number."""

    def names(self, number: int) -> Counter[str | None]:
        """Turns of each in a pair; the reference's is `eager`."""
        return Counter(self.wraps.get(side, "eager") for side in self.turns[number])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, turn, called = Seen(), BarePair.turn, Races._called
    opened, raced, retired = Races._opened, Races._race, Stand.retire

    def turned(pair: BarePair, side: Subject, sets: list[int]) -> Any:
        found.turns.setdefault(pair.number, []).append(side)
        for other in [pair.reference, *found.wraps]:
            still = {process.state for process in family(other.worker.pid)} <= set("Tt")
            mine = found.turns[pair.number]
            assert other is side or other not in mine or other in found.retired or still
        if failure := found.fails.pop((found.wraps.get(side) or "", pair.number), None):
            raise WorkerFailed(failure)
        return turn(pair, side, sets)

    def open_(races: Races, rival: Rival) -> Subject:
        subject = opened(races, rival)
        found.wraps[subject] = rival.wrap
        return subject

    def retire(stand: Stand, subject: Subject) -> Any:
        found.retired.add(subject)
        return retired(stand, subject)

    def call(races: Races, wrap: str | None) -> Subject:
        return called(races, None if wrap in (ONE, TWO) else wrap)

    def race(races: Races, rivals: list[Rival], *more: Any, **options: Any) -> None:
        found.races.append([rival.wrap for rival in rivals])
        raced(races, rivals, *more, **options)

    monkeypatch.setattr("sandbox.types.BASELINES", (ONE, TWO, "cuda_graph", "compile"))
    monkeypatch.setitem(DEVICE_BASELINES, "cpu", (ONE, TWO, "cuda_graph", "compile"))
    monkeypatch.setattr(BarePair, "turn", turned)
    # On a busy machine every round of a pair may be void, which is then none.
    monkeypatch.setattr(BarePair, "why_void", lambda *_: "")
    monkeypatch.setattr(Races, "_opened", open_)
    monkeypatch.setattr(Races, "_called", call)
    monkeypatch.setattr(Races, "_race", race)
    monkeypatch.setattr(Stand, "retire", retire)
    return found


def alone(*baselines: str) -> EvalConfig:
    return replace(FAST, baselines_only=True, baselines=baselines)


def fresh_task(number: int) -> Task:
    """None that was timed before."""
    return task_of(SCALE.replace("1.0", f"5.{number}"))


def test_a_round_has_one_batch_of_the_reference_for_all(
    evaluator: LocalEvaluator, seen: Seen
) -> None:
    found = evaluator.figures(fresh_task(125), alone(ONE, TWO))
    assert seen.races == [[None, ONE, TWO]]
    assert [one.name for one in found.baselines] == [ONE, TWO]
    for one in found.baselines:
        assert one.speedup is not None
        assert one.speedup.low <= one.speedup.value <= one.speedup.high
        assert math.exp(fmean(one.logs)) == pytest.approx(one.speedup.value)
        assert one.latency_ms is not None
        assert one.latency_ms > 0
    assert found.seconds[TOGETHER] > 0
    assert set(seen.turns) == set(range(PAIRS))
    for number in seen.turns:
        times = seen.names(number)
        assert times["eager"] == max(times[name] for name in (None, ONE, TWO)) <= 2 * FAST.rounds
        assert len(set(seen.turns[number])) == 4
    everyone = [side.worker.pid for turns in seen.turns.values() for side in set(turns)]
    assert len(everyone) == len(set(everyone)) == 4 * PAIRS


def test_only_what_is_missing_is_timed_beside_the_same_null_experiment(
    evaluator: LocalEvaluator, seen: Seen
) -> None:
    task, baselines = fresh_task(25), evaluator._preparer.baselines
    first = evaluator.figures(task, alone(ONE))
    null = baselines._null(task, alone(ONE, TWO))
    both = evaluator.figures(task, alone(ONE, TWO))
    assert seen.races == [[None, ONE], [TWO]]
    assert both.baselines[0] == first.baselines[0]
    assert null is not None
    assert baselines._null(task, alone(ONE, TWO)) == null
    assert len(null.log_ratios) == PAIRS
    assert not evaluator.figures(task, alone(ONE, TWO)).seconds
    assert len(seen.races) == 2


def test_baselines_share_the_references_batches_behind_a_judged_null_experiment(
    evaluator: LocalEvaluator, seen: Seen
) -> None:
    task, config = fresh_task(225), replace(FAST, baselines=(ONE, TWO))
    found = evaluator.figures(task, config)
    assert seen.races == [[None], [ONE, TWO]]
    assert all(one.speedup is not None for one in found.baselines)
    assert {NULL, TOGETHER} <= set(found.seconds)
    for number in seen.turns:
        times = seen.names(number)
        assert times["eager"] == max(times[ONE], times[TWO])
    evaluator.figures(task, replace(config, baselines=(ONE,)))
    assert len(seen.races) == 2


def test_a_baseline_that_fails_when_it_starts_stops_no_other(
    evaluator: LocalEvaluator, seen: Seen
) -> None:
    config = alone("cuda_graph", ONE)  # a CPU captures none
    graph, one = evaluator.figures(fresh_task(375), config).baselines
    assert graph.speedup is None
    assert graph.detail
    assert one.speedup is not None
    assert seen.races == [[None, "cuda_graph", ONE]]


@pytest.mark.parametrize("number", range(PAIRS))
def test_a_baseline_that_fails_in_its_rounds_stops_no_other(
    evaluator: LocalEvaluator, seen: Seen, number: int
) -> None:
    seen.fails = {(ONE, number): FAILED}
    task = fresh_task(1 + number)
    one, two = evaluator.figures(task, alone(ONE, TWO)).baselines
    assert one.speedup is None
    assert "not this one" in one.detail
    assert two.speedup is not None
    assert seen.races == [[None, ONE, TWO]]
    assert set(seen.turns) == set(range(PAIRS))
    # Whoever was beside it is timed anew, in other processes.
    turns = seen.turns[number]
    failed = next(place for place, side in enumerate(turns) if seen.wraps.get(side) == ONE)
    assert set(turns[: failed + 1]).isdisjoint(turns[failed + 1 :])
    assert len(set(turns[failed + 1 :])) == 3
    # A worker of it that was open already is timed no more.
    assert not any(seen.names(later)[ONE] for later in range(number + 1, PAIRS))
    evaluator._stand.settle()
    assert not any(side.worker.living for side in seen.wraps)
    null = evaluator._preparer.baselines._null(task, alone(ONE, TWO))
    assert null is not None
    assert len(null.log_ratios) == PAIRS


def test_without_the_whole_null_experiment_all_is_timed_pair_by_pair(
    evaluator: LocalEvaluator, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, begun = Races._opened, Counter[str | None]()

    def once(races: Races, rival: Rival) -> Subject:
        begun[rival.wrap] += 1
        if rival.wrap is None and begun[None] == PAIRS:
            raise WorkerFailed(SHORT_OF_MEMORY)
        return opened(races, rival)

    monkeypatch.setattr(Races, "_opened", once)
    task = fresh_task(3)
    found = evaluator.figures(task, alone(ONE, TWO))
    assert seen.races == [[None, ONE, TWO], [None], [ONE], [TWO]]
    assert all(one.speedup is not None for one in found.baselines)
    null = evaluator._preparer.baselines._null(task, alone(ONE, TWO))
    assert null is not None
    assert len(null.log_ratios) == PAIRS
    evaluator._stand.settle()
    assert not any(side.worker.living for side in seen.wraps)


def test_room_is_reckoned_for_all_sides_that_are_timed_at_once(
    evaluator: LocalEvaluator, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides, reckoned = list[int](), Room.of

    def of(*given: Any) -> Room:
        sides.append(given[-1])
        return reckoned(*given)

    monkeypatch.setattr(Room, "of", of)
    evaluator.figures(fresh_task(35), alone(ONE, TWO))
    evaluator.figures(fresh_task(45), replace(FAST, baselines=(ONE,)))
    assert sides == [4, 2]


@pytest.mark.parametrize("again", [True, False])
def test_what_lacked_memory_beside_others_is_timed_alone(
    evaluator: LocalEvaluator, seen: Seen, again: bool
) -> None:
    seen.fails = {(TWO, 1): SHORT_OF_MEMORY}
    rounds = Races._rounds

    def full(races: Races, number: int, group: Mapping[Rival, Subject], *more: Any) -> Any:
        if again and len(seen.races) > 1:
            raise WorkerFailed(SHORT_OF_MEMORY)
        return rounds(races, number, group, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Races, "_rounds", full)
        one, two = evaluator.figures(fresh_task(5 + again), alone(ONE, TWO)).baselines
    assert seen.races == [[None, ONE, TWO], [TWO]]
    assert one.speedup is not None
    assert (two.speedup is None) is again
    assert ("no room" in two.detail) is again


def test_where_all_do_not_fit_at_once_they_are_timed_pair_by_pair(
    evaluator: LocalEvaluator, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.baselines.race_room.PAIR_SHARE", 0.0)
    found = evaluator.figures(fresh_task(75), alone(ONE, TWO))
    assert seen.races == [[None], [ONE], [TWO]]
    assert all(one.speedup is not None for one in found.baselines)
    assert TOGETHER not in found.seconds


@pytest.mark.parametrize("ready", range(PAIRS + 1))
def test_workers_that_are_compiled_in_time_are_in_the_others_rounds(
    evaluator: LocalEvaluator, seen: Seen, monkeypatch: pytest.MonkeyPatch, ready: int
) -> None:
    """The others are timed against the references that stayed; no two of its pairs share one."""
    task, config = fresh_task(9 + ready), alone(ONE, "compile")

    def make(ahead: Ahead) -> None:
        subject = ahead.compiling.stand.reference(task, config, Opening(known=ahead.signature))[0]
        seen.wraps[subject] = "compile"
        ahead.ready.append(subject)

    def begin(ahead: Ahead, *_: Any) -> None:
        for _ in range(ready):
            make(ahead)

    def finish(ahead: Ahead) -> None:
        for _ in range(config.min_pairs - ready):
            make(ahead)

    monkeypatch.setattr("sandbox.baselines.baselines.CORES_PER_COMPILER", 1)
    monkeypatch.setattr(Ahead, "begin", begin)
    monkeypatch.setattr(Ahead, "finish", finish)
    _, compiled = evaluator.figures(task, config).baselines
    assert compiled.speedup is not None
    late = [] if ready == config.min_pairs else [["compile"]]
    assert seen.races == [[None, ONE, "compile"], *late]
    workers = [s for turns in seen.turns.values() for s in set(turns) if s in seen.wraps]
    assert Counter(seen.wraps[s] for s in workers) == dict.fromkeys(
        (None, ONE, "compile"), config.min_pairs
    )
    assert len({s.worker.pid for s in workers}) == 3 * config.min_pairs


Gather = Callable[..., BareGroup]


@pytest.fixture
def gathered(evaluator: LocalEvaluator) -> Iterator[Gather]:
    """A group of the reference and of candidates that begin so; none was called."""
    with ExitStack() as stack:

        def gather(*first_lines: str, rounds: int = FAST.rounds) -> BareGroup:
            task, config, stand = task_of(SCALE), replace(FAST, rounds=rounds), evaluator._stand
            prepared = evaluator.prepare(task, FAST)
            known = prepared.signature
            reference, _ = stand.reference(task, config, Opening(known=known))
            stack.enter_context(closing(reference))
            rivals = []
            for line in first_lines:
                source = forward(line, "return x * y + 3.5")
                subject = stand.candidate(task, Candidate(task.id, Language.TORCH, source), config)
                rivals.append(stack.enter_context(closing(subject)))
                stand.open_candidate(subject, known)
            shared = (known, prepared.plan, config, lambda: None, stand.quiet)
            return BareGroup(0, reference, rivals, *shared)

        yield gather


@pytest.fixture
def started(gathered: Gather) -> Gather:
    """One that is ready for its rounds."""

    def start(*first_lines: str, rounds: int = FAST.rounds) -> BareGroup:
        group = gathered(*first_lines, rounds=rounds)
        group.start(STARTS_S)
        return group

    return start


def test_each_rival_is_told_by_its_own_calls(started: Gather) -> None:
    group = started("pass", "__import__('time').sleep(0.004)")
    quick, slow = group.pairs
    rounds = list(group.rounds())
    ratios = {
        rival: median(o.candidate_s / o.reference_s for side, o in rounds if side is rival)
        for rival in (quick, slow)
    }
    assert math.log(ratios[slow] / ratios[quick]) > math.log(10)


def test_a_rival_whose_figure_is_settled_is_in_no_further_round(started: Gather) -> None:
    group = started("pass", "pass", rounds=8)
    settled, other = group.pairs
    sides = Counter(side for side, seen in group.rounds(lambda rival: rival is settled))
    assert sides[settled] == 3
    assert sides[other] >= 6
    # All of them run again.
    for side in (group.reference, settled, other):
        assert {process.state for process in family(side.worker.pid)}.isdisjoint("Tt")


@pytest.mark.parametrize("place", range(3))
def test_who_failed_when_it_was_called_first_is_told(gathered: Gather, place: int) -> None:
    lines = ["pass", "pass", "pass"]
    lines[place] = "raise ValueError('not now')"
    group = gathered(*lines)
    with pytest.raises(RivalFailed, match="not now") as told:
        group.start(STARTS_S)
    assert told.value.rival is list(group.pairs)[place]


@pytest.mark.parametrize("place", range(3))
def test_who_failed_in_a_round_is_told(started: Gather, place: int) -> None:
    group = started("pass", "pass", "pass")
    guilty = list(group.pairs)[place]
    os.kill(guilty.worker.pid, signal.SIGKILL)
    with pytest.raises(RivalFailed, match="SIGKILL") as told:
        list(group.rounds())
    assert told.value.rival is guilty


def test_no_rival_is_told_of_where_the_reference_failed(started: Gather) -> None:
    group = started("pass", "pass")
    os.kill(group.reference.worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerFailed, match="SIGKILL") as told:
        list(group.rounds())
    assert not isinstance(told.value, RivalFailed)
