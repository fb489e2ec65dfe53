"""The next task's reference and compiled workers are made while another task is timed."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from sandbox.baselines import beforehand
from sandbox.baselines.baselines import TOGETHER
from sandbox.baselines.beforehand import Beginnings
from sandbox.baselines.compiling import Compiling
from sandbox.baselines.race import Races
from sandbox.errors import InvalidReference
from sandbox.evaluator import LocalEvaluator
from sandbox.machine import memory
from sandbox.machine.quiet import BEGUN, Turns
from sandbox.prepare import Figures
from sandbox.subjects.signature import Opening
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task
from tests.sandbox.conftest import FAST, SCALE, task_of

pytestmark = pytest.mark.usefixtures("calm")

ALONE = replace(FAST, baselines_only=True, baselines=("compile",))


class Steps:
    """What is done for which task, in order; the first one is timed until the other has begun."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.begun = threading.Event()
        self.subjects: list[Subject] = []

    def note(self, task: Task, what: str) -> None:
        self.done.append((task.id, what))

    def of(self, name: str) -> list[str]:
        return [what for task, what in self.done if task == name]


@pytest.fixture
def steps(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Of tasks whose compiled workers are eager ones, where others' work has cores of its own."""
    found, race, begin = Steps(), Races._race, beforehand.begin

    def start(compiling: Compiling, task: Task, config: EvalConfig, *more: Any) -> Subject:
        found.note(task, "compiled")
        subject = compiling.stand.reference(task, config, Opening(known=more[0]))[0]
        found.subjects.append(subject)
        return subject

    def raced(races: Races, *more: Any, **options: Any) -> None:
        if not found.begun.wait(20):
            found.note(races.task, "nothing begins")
        found.note(races.task, "timed")
        race(races, *more, **options)

    def began(stand: Any, baselines: Any, task: Task, config: EvalConfig) -> Any:
        try:
            return begin(stand, baselines, task, config)
        finally:
            found.note(task, "begun")
            found.begun.set()

    monkeypatch.setattr(evaluator._quiet, "same_cores", False)
    monkeypatch.setattr("sandbox.baselines.baselines.CORES_PER_COMPILER", 1)
    monkeypatch.setattr(Compiling, "start", start)
    monkeypatch.setattr(Races, "_race", raced)
    monkeypatch.setattr("sandbox.baselines.beforehand.begin", began)
    return found


def both(evaluator: LocalEvaluator, *tasks: Task) -> list[Future[Figures]]:
    """Asked for at once, as a lane is: the second while the first holds the device."""
    futures = list[Future[Figures]]()
    with ThreadPoolExecutor(2) as pool:
        for task in tasks:
            futures.append(pool.submit(evaluator.figures, task, ALONE))
            while not (evaluator._turns._held or futures[0].done()):
                time.sleep(0.001)
    return futures


def tasks_of(*numbers: int) -> tuple[Task, ...]:
    return tuple(task_of(SCALE.replace("1.0", f"7.{n}"), f"test/{n}") for n in numbers)


@pytest.mark.slow
def test_the_next_task_is_begun_while_another_is_timed(
    evaluator: LocalEvaluator, steps: Steps
) -> None:
    earlier, later = tasks_of(125, 25)
    first, second = (future.result() for future in both(evaluator, earlier, later))
    assert first.baselines[0].speedup is not None
    assert second.baselines[0].speedup is not None
    assert steps.done.index((later.id, "begun")) < steps.done.index((earlier.id, "timed"))
    # Nothing of it is done twice.
    assert steps.of(later.id).count("compiled") == ALONE.min_pairs
    assert "begun" not in steps.of(earlier.id)
    assert first.seconds["examine"] > 0
    assert "start" not in second.seconds
    assert second.seconds[TOGETHER] > 0
    assert second.latency_s > 0
    evaluator._stand.settle()
    assert not any(subject.worker.living for subject in steps.subjects)


@pytest.mark.slow
def test_beside_what_fills_the_memory_nothing_is_begun(
    evaluator: LocalEvaluator, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.baselines.race_room.NEXT_SHARE", 0.0)
    steps.begun.set()
    told = [future.result() for future in both(evaluator, *tasks_of(375, 5))]
    assert all("examine" in found.seconds for found in told)
    assert not any(what == "begun" for _, what in steps.done)


@pytest.mark.slow
def test_on_the_cores_of_what_is_timed_nothing_is_begun(
    evaluator: LocalEvaluator, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator._quiet, "same_cores", True)
    steps.begun.set()
    told = [future.result() for future in both(evaluator, *tasks_of(75, 875))]
    assert all("examine" in found.seconds for found in told)
    assert not any(what == "begun" for _, what in steps.done)


@pytest.mark.slow
def test_a_task_that_cannot_be_begun_fails_in_its_turn(
    evaluator: LocalEvaluator, steps: Steps
) -> None:
    (good,) = tasks_of(625)
    bad = task_of(SCALE.replace("return torch.relu(x)", "return torch.rand_like(x)"), "test/bad")
    for order in ((good, bad), (bad, good)):
        if order[0] is bad:
            steps.begun.set()
        futures = both(evaluator, *order)
        told = dict(zip(order, futures, strict=True))
        assert told[good].result().baselines[0].speedup is not None
        with pytest.raises(InvalidReference, match=r"^test/bad: stochastic"):
            told[bad].result()
    evaluator._stand.settle()
    assert not any(subject.worker.living for subject in steps.subjects)


@pytest.fixture
def short(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks that lacked memory, as whatever is timed does while workers of another task live."""
    lacked, race = list[str](), Races._race

    def raced(races: Races, *more: Any, **options: Any) -> None:
        def others() -> list[Subject]:
            return [one for one in steps.subjects if one.task is not races.task]

        end = time.monotonic() + 20
        while not others() and time.monotonic() < end:
            time.sleep(0.01)
        if any(one.worker.living for one in others()):
            lacked.append(races.task.id)
            raise memory.OutOfMemoryError("the device has no room")
        race(races, *more, **options)

    monkeypatch.setattr(Races, "_race", raced)
    return lacked


@pytest.mark.slow
def test_what_is_begun_is_ended_where_the_one_that_is_timed_lacks_its_memory(
    evaluator: LocalEvaluator, steps: Steps, short: list[str]
) -> None:
    earlier, later = tasks_of(1875, 3125)
    first, second = both(evaluator, earlier, later)
    assert first.result().baselines[0].speedup is not None
    assert set(short) == {earlier.id}
    assert second.result().baselines[0].speedup is not None
    assert "start" in second.result().seconds  # once more, in its turn


def test_beside_a_task_that_lacked_memory_nothing_begins_again() -> None:
    told = list[bool]()
    beginnings = Beginnings(told.append, lambda: None)
    beginnings.tell_room(True)
    assert not beginnings.end()
    beginnings.tell_room(True)
    assert told == [True, False, False]


def test_who_waits_for_room_waits_for_no_more_than_a_free_device() -> None:
    turns, told = Turns(), list[bool]()
    assert not turns.room_beside()
    waiting = threading.Thread(target=lambda: told.append(turns.room_beside()))
    with turns.hold("one"):
        waiting.start()
        turns.tell_room(False)
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join(5)
    assert told == [False]


def test_room_beside_a_task_is_for_two_and_for_one_more_once_one_of_them_has_its_turn() -> None:
    turns, granted, go_on = Turns(), queue.Queue[threading.Event](), threading.Event()

    def work() -> None:
        assert turns.room_beside()
        mine = threading.Event()
        granted.put(mine)
        assert mine.wait(5)
        with turns.hold("another"):
            turns.tell_room(True)
            assert go_on.wait(5)

    with ThreadPoolExecutor(3) as pool:
        with turns.hold("one"):
            workers = [pool.submit(work) for _ in range(3)]
            turns.tell_room(True)
            first, second = (granted.get(timeout=5) for _ in range(2))
            with pytest.raises(queue.Empty):
                granted.get(timeout=0.1)
            first.set()  # it waits for the device, and has its room
            with pytest.raises(queue.Empty):
                granted.get(timeout=0.1)
        granted.get(timeout=5).set()  # beside it
        second.set()
        go_on.set()
    assert [worker.exception() for worker in workers] == [None] * 3


def test_who_had_room_and_never_holds_the_device_gives_it_back(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(evaluator._quiet, "same_cores", False)
    monkeypatch.setattr("sandbox.baselines.beforehand.begin", fails)
    turns = evaluator._turns
    with ThreadPoolExecutor(BEGUN) as pool, turns.hold("one"):
        turns.tell_room(True)
        asked = [pool.submit(evaluator.figures, task, ALONE) for task in tasks_of(1375, 1625)]
        for one in asked:
            with pytest.raises(RuntimeError, match="new thread"):
                one.result(timeout=5)
        assert pool.submit(turns.room_beside).result(timeout=5)
        turns.tell_room(False)
    turns._begun = 0
