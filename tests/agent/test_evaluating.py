"""Kernels that are there already, through an engine: what is prepared, in which order, and what
each gets.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import warpsmith
from agent.engines import evaluating
from agent.engines.engine import LocalEngine
from agent.engines.evaluating import EngineJudge
from agent.engines.lanes import LaneLost, NoLaneLeft
from agent.proposing.scripted import ScriptedEvaluator
from agent.scoring import Told, environment_of
from agent.types import Measured
from sandbox.errors import InvalidReference
from sandbox.machine.quiet import BEGUN
from sandbox.types import EvalConfig, Request, Status
from tests.agent.scripts import calls, candidate, make_task, script

CONFIG = EvalConfig()


def requests(*scripts: tuple[str, dict[str, object]]) -> list[Request]:
    """One each, of a task and what its script says."""
    return [
        Request(make_task(name), candidate(name, script(number, **words)), CONFIG)
        for number, (name, words) in enumerate(scripts)
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def judge(log: Path, **changes) -> EngineJudge:
    engine = LocalEngine(partial(ScriptedEvaluator, log=log, invalid=changes.pop("invalid", ())))
    return EngineJudge(engine, **changes)


def words(log: Path) -> list[str]:
    return [line.rpartition(" ")[0] for line in log.read_text().splitlines()]


def test_baselines_are_timed_for_tasks_alone_that_a_kernel_solves(log):
    asked = requests(
        ("wrong", {"status": "WRONG_VALUE"}),
        ("right", {"speedup": 2.0}),
        ("right", {"status": "COMPILE_ERROR"}),
    )
    told: list[tuple[str, int]] = []
    one = judge(log, on_prepared=lambda task, _, left: told.append((task.id, left)))
    found = dict(one.evaluate_many(asked))
    one.engine.close()
    statuses = [found[place].status for place in range(3)]
    assert statuses == [Status.WRONG_VALUE, Status.PASSED, Status.COMPILE_ERROR]
    assert [line for line in words(log) if line.startswith("prepare")] == ["prepare test/right"]
    assert told == [("test/right", 0)]
    assert {e.config_id for e in found.values()} == {CONFIG.id}
    assert found[1].speedup is not None
    assert found[1].speedup.value == 2.0


def test_a_fault_of_ours_while_verifying_says_nothing_of_a_kernel(log):
    asked = requests(("a", {"status": "SANDBOX_ERROR"}))
    one = judge(log)
    assert [(p, e.status) for p, e in one.evaluate_many(asked)] == [(0, Status.SANDBOX_ERROR)]
    one.engine.close()
    assert "prepare test/a" in words(log)  # it had its whole chance


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_next_waves_candidates_are_built_meanwhile(log, monkeypatch, device):
    monkeypatch.setattr(evaluating, "WAVE", 1)
    asked = requests(("a", {}), ("b", {}), ("a", {"speedup": 3.0}), ("c", {}))
    built: list[str] = []
    one = judge(log)
    one.engine._build = lambda c, *_: built.append(c.id)
    asked = [replace(r, task=replace(r.task, device=device)) for r in asked]
    found = one.evaluate_many(asked)
    first, _ = next(found)
    ids = [request.candidate.id for request in asked]
    assert set(built) <= {ids[0], ids[2], ids[1]}  # c is of the wave after the next
    assert sorted([first, *(place for place, _ in found)]) == [0, 1, 2, 3]
    one.engine.close()
    assert sorted(built) == (sorted(ids) if device == "cuda" else [])  # there the lane builds
    order = [line for line in words(log) if line.startswith("prepare")]
    assert order == ["prepare test/a", "prepare test/b", "prepare test/c"]


def test_nothing_begins_once_it_is_over_and_what_is_under_way_ends(log):
    asked, found = requests(*((name, {}) for name in "abcdef")), []
    one = judge(log, over=lambda: bool(found))
    one.engine.depth = 0  # one at a time
    found += one.evaluate_many(asked)
    assert len(found) <= 1
    one.over = lambda: True
    assert list(one.evaluate_many(asked)) == []
    assert list(one.prepare_many([make_task("a")], CONFIG)) == []
    one.engine.close()


def test_what_waits_for_a_lane_when_it_is_over_is_not_begun(log):
    asked = requests(*((name, {"status": "WRONG_VALUE", "seconds": 1}) for name in "abc"))
    one = judge(log, over=log.exists)
    assert len(list(one.evaluate_many(asked))) == 1
    one.engine.close()
    assert len(calls(log, "start")) == 1


def test_an_interrupt_does_not_wait_for_a_lane_to_open():
    free = threading.Event()

    def open_late(index: int) -> ScriptedEvaluator:
        free.wait(60)
        return ScriptedEvaluator(index)

    engine = LocalEngine(open_late)
    try:
        with pytest.raises(KeyboardInterrupt):
            environment_of(engine, lambda: True)
    finally:
        free.set()
        engine.close()


def test_a_reference_that_cannot_be_scored_is_told_beside_the_others(log):
    one = judge(log, invalid=("test/a",))
    found = {task.id: told for task, told in one.prepare_many([*map(make_task, "ab")], CONFIG)}
    one.engine.close()
    assert isinstance(found["test/a"], InvalidReference)
    assert not isinstance(found["test/b"], Exception)


class Lost(ScriptedEvaluator):
    """Its lane is gone with the second task, and cannot be opened again."""

    def __init__(self, index: int, opened: list[int]) -> None:
        super().__init__()
        opened.append(index)
        if len(opened) > 1:
            raise RuntimeError("its node is gone")

    def figures(self, task, config):
        if task.id == "test/b":
            raise LaneLost("its node is gone")


def test_without_a_lane_left_no_task_is_told_to_have_failed():
    engine = LocalEngine(partial(Lost, opened=[]))
    found = EngineJudge(engine).prepare_many([*map(make_task, "abc")], CONFIG)
    assert next(found)[0].id == "test/a"
    with pytest.raises(NoLaneLeft, match="no lane is left to measure on: its node is gone"):
        list(found)
    engine.close()


KERNEL = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {call}
"""
PROBLEM = (
    KERNEL.replace("ModelNew", "Model")
    + """
def get_inputs():
    return [torch.randn(64, 129)]
def get_init_inputs():
    return []
"""
)


def test_a_folder_of_kernels_is_scored_and_a_suite_alone_has_its_references_timed(tmp_path):
    problems, kernels = tmp_path / "problems", tmp_path / "kernels"
    for name, call in {"relu": "torch.clamp_min(x, 0)", "sigmoid": "torch.tanh(x)"}.items():
        for folder, text in {
            problems: PROBLEM.format(call=f"torch.{name}(x)"),
            kernels: KERNEL.format(call=call),
        }.items():
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.py").write_text(text)
    preset = tmp_path / "bare.yaml"
    preset.write_text(
        "{baselines: [], scales: [3.0], rounds: 3, batch_ms: 0.5, max_sets: 8, "
        "min_pairs: 2, max_pairs: 2}"
    )
    suite = [str(problems)]
    given = {"device": "cpu", "preset": str(preset), "out": tmp_path / "out"}
    report = warpsmith.bench(kernels, suite, **given)
    assert report.all is not None
    assert (report.all.tasks, report.all.correct, report.waiting) == (2, 1, 0)
    assert report.about["protocol"].startswith("quick with scales 3.0, batch_ms 0.5, max_sets 8")
    told: list[str] = []
    given["out"] = tmp_path / "baselines"
    report = warpsmith.bench(
        None, suite, told=Told(reference=lambda r, _: told.append(r.task_id)), **given
    )
    assert (sorted(told), report.all) == (["file/relu", "file/sigmoid"], None)
    assert report.environment["device"] == "cpu"


def test_as_many_references_are_under_way_as_a_lane_begins_beside_the_one_it_times(
    log, monkeypatch
):
    held, most = threading.Semaphore(0), []
    asked: list[Future[object]] = []

    def submit(task, config):
        asked.append(Future())
        most.append(sum(not one.done() for one in asked))
        held.release()
        return asked[-1]

    one = judge(log)
    monkeypatch.setattr(one.engine, "submit_prepare", submit)
    found = one.prepare_many([*map(make_task, "abcde")], CONFIG)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, found)
        assert all(held.acquire(timeout=5) for _ in range(1 + BEGUN))
        for each in asked:
            each.set_result(Measured())
        first.result(timeout=5)
    assert most == [1, 2, 3]
    one.engine.close()
