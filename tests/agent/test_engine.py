"""Lanes: results, faults, and what happens when one is lost."""

import logging
import sys
import threading
import time
from concurrent.futures import CancelledError
from functools import partial

import pytest

from agent.engines.engine import LocalEngine
from agent.engines.lanes import MAX_LOST, LaneLost, LanePool, NoLane, NoLaneLeft
from agent.journals.timings import device_name
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.errors import DeviceError, InvalidReference, SandboxFault
from sandbox.machine.device import DeviceFacts
from sandbox.types import EvalConfig, Evaluation, Status
from tests.agent.scripts import candidate, local_engine, make_task, script

TASK = make_task("a")
CONFIG = EvalConfig()


class Faulty(ScriptedEvaluator):
    """Raises what the source names."""

    def evaluate(self, task, candidate, config, *, to_beat=None):
        errors = {"fault": SandboxFault("no reply"), "bug": KeyError("x"), "gpu": DeviceError("no")}
        raise errors[candidate.source]


def evaluate(engine: LocalEngine, source: str) -> Evaluation:
    return engine.submit_evaluate(TASK, candidate("a", source), CONFIG, None).result(10)


def test_an_evaluation_comes_back_through_a_future():
    engine = local_engine()
    assert evaluate(engine, script(1, speedup=2.0)).speedup.value == 2.0
    engine.close()


@pytest.mark.parametrize("source", ["fault", "bug"])
def test_our_own_fault_becomes_a_value_at_the_edge_of_the_pool(source):
    engine = LocalEngine(Faulty)
    assert evaluate(engine, source).status is Status.SANDBOX_ERROR
    engine.close()


def test_a_fault_at_the_edge_of_the_pool_names_the_device_of_its_lane():
    class Known(Faulty):
        facts = DeviceFacts("H1", "cuda", {"gpu": "H1"}, 1.0, {}, 0.0, 1, 1)

    engine = LocalEngine(lambda _: Known())
    assert device_name(evaluate(engine, "fault")) == "H1"
    engine.close()


def test_a_missing_device_is_raised():
    engine = LocalEngine(Faulty)
    with pytest.raises(DeviceError):
        evaluate(engine, "gpu")
    engine.close()


def test_an_invalid_reference_is_raised_by_prepare():
    engine = local_engine(invalid=("test/a",))
    with pytest.raises(InvalidReference, match="constant"):
        engine.submit_prepare(TASK, CONFIG).result(10)
    engine.close()


def test_lanes_work_side_by_side():
    all_four = threading.Barrier(4)
    meet = partial(ScriptedEvaluator, sleep=lambda _: all_four.wait(20))
    engine = LocalEngine(meet, lanes=4)
    sources = [script(i) for i in range(4)]
    futures = [engine.submit_evaluate(TASK, candidate("a", s), CONFIG, None) for s in sources]
    assert all(f.result(30).passed for f in futures)
    engine.close()


def test_builds_run_off_the_lanes():
    built = []
    engine = LocalEngine(ScriptedEvaluator, lambda c, _, task: built.append((task.id, c.id)))
    slow = engine.submit_evaluate(TASK, candidate("a", script(1, seconds=0.3)), CONFIG, None)
    other = candidate("a", script(2))
    engine.submit_build(TASK, other, CONFIG).result(10)
    assert built == [(TASK.id, other.id)]
    assert not slow.done()
    engine.close()


def test_a_lane_prefers_the_task_it_keeps_warm():
    order, gate = [], threading.Event()
    pool = LanePool("test", [NoLane])
    pool.submit(lambda _: gate.wait(10), affinity="b")
    jobs = [pool.submit(lambda _, n=n: order.append(n), affinity=n) for n in "abab"]
    gate.set()
    for job in jobs:
        job.result(10)
    assert order == ["b", "b", "a", "a"]
    pool.close()


class Losing:
    """A lane that is lost on each of its first calls."""

    left = 0

    def work(self) -> str:
        if type(self).left:
            type(self).left -= 1
            raise LaneLost("gone")
        return "done"

    def close(self) -> None: ...


@pytest.mark.parametrize(("losses", "result"), [(MAX_LOST - 1, "done"), (MAX_LOST, "fallback")])
def test_a_job_survives_lost_lanes_but_not_for_ever(losses, result):
    Losing.left = losses
    pool = LanePool("test", [Losing, Losing])
    assert pool.submit(Losing.work, fallback=lambda _: "fallback").result(10) == result
    pool.close()


def test_without_any_lane_the_reason_is_given_to_every_job():
    def broken() -> NoLane:
        raise DeviceError("no usable NVIDIA GPU")

    pool = LanePool("test", [broken, broken])
    with pytest.raises(DeviceError, match="NVIDIA"):
        pool.submit(lambda _: None).result(10)
    pool.close()


def test_a_lost_last_lane_says_so():
    opened = []

    def once() -> Losing:
        if opened:
            raise LaneLost("its node is gone")
        opened.append(1)
        return Losing()

    Losing.left = 1
    pool = LanePool("test", [once])
    with pytest.raises(NoLaneLeft, match="node is gone"):
        pool.submit(Losing.work).result(10)
    pool.close()


def test_closing_drops_what_has_not_begun_and_does_not_wait_for_ever():
    pool, begun, end = LanePool("test", [NoLane]), threading.Event(), threading.Event()
    running = pool.submit(lambda _: (begun.set(), end.wait(60)))
    waiting = pool.submit(lambda _: None)
    assert begun.wait(20)
    pool.close(grace_s=0.1)
    assert not running.done()
    end.set()
    with pytest.raises(CancelledError):
        waiting.result(20)
    with pytest.raises(NoLaneLeft, match="closed"):
        pool.submit(lambda _: None).result(20)


def test_a_lane_that_closing_kept_from_opening_is_no_news(caplog):
    begun, end = threading.Event(), threading.Event()

    def killed() -> NoLane:
        begun.set()
        end.wait(5)
        raise LaneLost("its actor died")

    pool = LanePool("test", [killed])
    assert begun.wait(5)
    pool.close(grace_s=0)
    end.set()
    pool.close()
    assert not caplog.records


def test_a_deep_lane_runs_several_jobs_at_once():
    both = threading.Barrier(2)
    pool = LanePool("test", [NoLane], depth=2)
    jobs = [pool.submit(lambda _: both.wait(10)) for _ in range(2)]
    assert sorted(job.result(10) for job in jobs) == [0, 1]
    pool.close()


def test_an_idle_lane_takes_another_lanes_task_but_a_busy_one_leaves_it_there():
    pool = LanePool("test", [NoLane, NoLane], depth=2)
    gate, taken = threading.Event(), []
    names = {}

    def work(lane, n):
        taken.append((names.setdefault(lane, len(names)), n))
        gate.wait(10)

    jobs = [pool.submit(lambda lane, n=n: work(lane, n), affinity=n) for n in "ab"]
    while len(taken) < 2:
        time.sleep(0.001)
    jobs += [pool.submit(lambda lane, n=n: work(lane, n), affinity=n) for n in "ba"]
    while len(taken) < 4:
        time.sleep(0.001)
    gate.set()
    for one in jobs:
        one.result(10)
    lanes = {n: {lane for lane, each in taken if each == n} for n in "ab"}
    assert lanes["a"] != lanes["b"]
    assert all(len(used) == 1 for used in lanes.values())
    pool.close()


def test_a_lane_goes_back_to_tasks_it_knows_before_it_takes_up_another_lanes():
    pool, gate, taken = LanePool("test", [NoLane, NoLane]), threading.Barrier(2), []
    names = {}

    def work(lane, n):
        taken.append((names.setdefault(lane, len(names)), n))
        gate.wait(10)  # so that each lane has one of each two

    first = [pool.submit(lambda lane, n=n: work(lane, n), affinity=n) for n in "abcd"]
    for one in first:
        one.result(10)
    again = [pool.submit(lambda lane, n=n: work(lane, n), affinity=n) for n in "abcd"]
    for one in again:
        one.result(10)
    pool.close()
    assert {(lane, n) for lane, n in taken[:4]} == {(lane, n) for lane, n in taken[4:]}


class Shared:
    """A lane that is lost with everything on it, once."""

    lost = 0

    def __init__(self) -> None:
        self.number = type(self).lost

    def work(self, gate: threading.Barrier) -> int:
        if self.number == 0:
            gate.wait(10)
            type(self).lost = 1
            raise LaneLost("gone")
        return self.number

    def close(self) -> None: ...


def test_every_job_of_a_lost_deep_lane_is_done_again():
    Shared.lost = 0
    pool, gate = LanePool("test", [Shared], depth=3), threading.Barrier(3)
    jobs = [pool.submit(lambda lane: lane.work(gate)) for _ in range(3)]
    assert [job.result(10) for job in jobs] == [1, 1, 1]
    pool.close()


class Doomed:
    """A lane that every job loses, and that cannot be opened again."""

    def __init__(self) -> None:
        self.opened = 0
        self.ended = threading.Event()

    def open(self) -> "Doomed":
        self.opened += 1
        if self.opened == 1:
            return self
        self.ended.set()
        raise LaneLost("its node is gone")

    def work(self, gate: threading.Barrier) -> None:
        gate.wait(10)
        raise LaneLost("gone")

    def close(self) -> None: ...


class SlowLog(logging.Handler):
    """Time between the loss of a lane and what becomes of the job, one job after the other."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.1)


def test_a_job_that_comes_back_once_the_last_lane_has_ended_is_told_so():
    logger, slow = logging.getLogger("agent.engines.lanes"), SlowLog()
    slow.addFilter(lambda record: str(record.msg).startswith("lane lost"))
    logger.addHandler(slow)
    try:
        pool, gate = LanePool("test", [Doomed().open], depth=2), threading.Barrier(2)
        for job in [pool.submit(lambda lane: lane.work(gate)) for _ in range(2)]:
            with pytest.raises(NoLaneLeft, match="node is gone"):
                job.result(10)
    finally:
        logger.removeHandler(slow)
    pool.close()


class Late(NoLane):
    def work(self, gate: threading.Barrier) -> str:
        return "done"


def test_a_thread_that_slept_while_its_lane_came_to_its_end_takes_no_job():
    doomed, alone = Doomed(), threading.Barrier(1)

    def late() -> Late:
        doomed.ended.wait(10)
        time.sleep(0.1)
        return Late()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(5)  # whoever is woken sleeps on while the one that woke it can go on
    try:
        pool = LanePool("test", [late, doomed.open], depth=2)
        assert pool.submit(lambda lane: lane.work(alone)).result(10) == "done"
    finally:
        sys.setswitchinterval(interval)
    pool.close()
