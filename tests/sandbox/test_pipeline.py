"""Candidates under way together get the verdicts they get one by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.machine.handle import Worker
from sandbox.machine.quiet import Quiet
from sandbox.machine.ready import PROFILED, Ready
from sandbox.machine.spawn import Zygote
from sandbox.many import evaluate_many
from sandbox.subjects.signature import Opening
from sandbox.subjects.stand import Stand
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Request, Status, Task
from tests.sandbox.conftest import (
    FAST,
    LINEAR,
    SCALE,
    Evaluate,
    forward,
    renamed,
    task_of,
    workers_alive,
)

SEARCH = replace(FAST, search_pairs=1, rounds=8, batch_ms=2.0, max_sets=64)
CORPUS = {
    "right": (forward("return y"), Status.PASSED),
    "another right": (forward("return y + 0.0"), Status.PASSED),
    "slow": (forward("__import__('time').sleep(0.002)", "return y"), Status.PASSED),
    "wrong": (forward("return y * 1.01"), Status.WRONG_VALUE),
    "dropped tail": (forward("y[-1, -1] = 0", "return y"), Status.WRONG_VALUE),
    "wrong shape": (forward("return y[:3]"), Status.WRONG_SHAPE),
    "wrong dtype": (forward("return y.half()"), Status.WRONG_DTYPE),
    "mutated": (forward("x.zero_()", "return y"), Status.INPUT_MUTATED),
    "raises": (forward("raise KeyError('x')"), Status.RUNTIME_ERROR),
    "dies in its import": (forward("return y", top="import os; os._exit(3)"), Status.RUNTIME_ERROR),
    "no python": ("class ModelNew(:", Status.COMPILE_ERROR),
    "dies": (forward("__import__('os')._exit(3)"), Status.RUNTIME_ERROR),
    "a thread left behind": (
        forward(
            "return y",
            top="import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        ),
        Status.PASSED,
    ),
}


def requests(task: Task, config: EvalConfig, to_beat: float | None) -> list[Request]:
    return [
        Request(task, Candidate(task.id, Language.TORCH, source), config, to_beat)
        for source, _ in CORPUS.values()
    ]


@pytest.fixture(scope="module")
def together(evaluator: LocalEvaluator) -> Iterator[list[Evaluation]]:
    asked = requests(task_of(SCALE), SEARCH, 1.0)
    yield list(evaluate_many(evaluator, asked, 3))
    assert evaluator._turns.idle


@pytest.mark.parametrize("name", CORPUS)
def test_a_verdict_does_not_depend_on_what_else_is_under_way(
    evaluator: LocalEvaluator, together: list[Evaluation], name: str
) -> None:
    number = list(CORPUS).index(name)
    request = requests(task_of(SCALE), SEARCH, 1.0)[number]
    alone = evaluator.evaluate(request.task, request.candidate, request.config, to_beat=1.0)
    found = together[number]
    expected = CORPUS[name][1]
    assert (found.candidate_id, found.status) == (alone.candidate_id, expected), found.detail
    assert alone.status is expected, alone.detail
    assert (found.timing is None) == (alone.timing is None)


def test_evaluations_come_in_the_order_of_the_requests(together: list[Evaluation]) -> None:
    asked = requests(task_of(SCALE), SEARCH, 1.0)
    assert [e.candidate_id for e in together] == [r.candidate.id for r in asked]


def test_seconds_tell_waiting_from_work(together: list[Evaluation]) -> None:
    timed = [e for e in together if e.timing is not None]
    assert timed
    for found in timed:
        assert {"load", "wait", "verify", "warm", "time"} <= found.seconds.keys()


def test_a_task_that_comes_in_the_middle_is_prepared_and_its_reference_refused_alike(
    evaluator: LocalEvaluator,
) -> None:
    good, bad = task_of(LINEAR, "test/linear"), task_of(SCALE.replace("+ 1.0", "* 0.0"), "test/0")
    asked = [
        Request(good, Candidate(good.id, Language.TORCH, renamed(LINEAR)), SEARCH, 1.0),
        Request(bad, Candidate(bad.id, Language.TORCH, forward("return y")), SEARCH, 1.0),
        Request(good, Candidate(good.id, Language.TORCH, "class ModelNew(:"), SEARCH, 1.0),
    ]
    found = [e.status for e in evaluate_many(evaluator, asked, 3)]
    assert found == [Status.PASSED, Status.INVALID_REFERENCE, Status.COMPILE_ERROR]


@pytest.mark.slow
def test_a_stream_leaves_no_candidate_behind(cache, one_core) -> None:  # type: ignore[no-untyped-def]
    lane = LocalEvaluator("cpu", cache_dir=cache)
    assert all(evaluate_many(lane, requests(task_of(SCALE), SEARCH, 1.0)[:4], 2))
    lane.close()
    assert workers_alive(lane) == []


@pytest.mark.slow
def test_a_worker_kept_ready_serves_once_and_another_takes_its_place(cache, one_core) -> None:  # type: ignore[no-untyped-def]
    lane = LocalEvaluator("cpu", cache_dir=cache, ready=1)
    task = task_of(SCALE)
    sources = [forward(f"print({n}, __import__('os').getpid())", "return y") for n in range(3)]
    found = [
        lane.evaluate(task, Candidate(task.id, Language.TORCH, source), SEARCH, to_beat=1.0)
        for source in sources
    ]
    assert [e.status for e in found] == [Status.PASSED] * 3, [e.detail for e in found]
    pids = {e.stdout.split()[1] for e in found}
    assert len(pids) == 3
    lane.close()
    assert workers_alive(lane) == []


def test_limits_and_folders_reach_a_worker_kept_ready(zygote: Zygote, tmp_path: Path) -> None:
    stand, task = Stand(zygote, Quiet(same_cores=False), ready=1), task_of(SCALE)
    stand.ready.expect("candidate")
    deadline = time.monotonic() + 30
    while not stand.ready._waiting.get("candidate") and time.monotonic() < deadline:
        time.sleep(0.02)
    (waiting,) = stand.ready._waiting["candidate"]
    (tmp_path / "file").write_text("print('x' * 1000)\nclass ModelNew: pass\n")
    source = f"exec(open({str(waiting.scratch / 'home/given/file')!r}).read())"
    candidate = Candidate(task.id, Language.TORCH, source)
    config = replace(FAST, log_limit_bytes=20)
    subject = stand.candidate(task, candidate, config, [(tmp_path, "home/given")])
    assert subject.worker is waiting
    stand.retire(subject).result()
    stand.ready.close()
    assert waiting.memory_limit_bytes == config.memory_limit_bytes
    assert "bytes left out" in waiting.stdout()


@pytest.mark.slow
def test_parameters_come_on_top_of_what_a_candidate_may_hold(evaluate: Evaluate) -> None:
    """KernelBench's level3/2 has 8 GiB of them, as much as a worker may hold by default."""
    large = LINEAR.replace("torch.randn(n, n) / n**0.5", "torch.zeros(1 << 24)").replace(
        "x @ self.weight.T", "x * self.weight[:33]"
    )
    hog = renamed(large).replace("super().__init__()", "super().__init__(); self.hog = HOG")
    config = replace(FAST, memory_limit_bytes=80 << 20)
    found = evaluate(renamed(large), large, config=config)
    assert found.status is Status.PASSED, found.detail
    hog = "HOG = bytearray(b'x') * (1 << 30)\n" + hog
    found = evaluate(hog, large, config=config)
    assert found.status is Status.OUT_OF_MEMORY, found.detail


def test_a_candidate_loaded_before_its_reference_may_hold_as_much(zygote: Zygote) -> None:
    stand, task = Stand(zygote, Quiet(same_cores=False)), task_of(LINEAR)
    reference, signature = stand.reference(task, FAST, Opening())
    candidate = Candidate(task.id, Language.TORCH, renamed(LINEAR))
    late, early = (stand.candidate(task, candidate, FAST, first=f) for f in (signature, None))
    limits = [s.worker.memory_limit_bytes for s in (late, early)]
    assert limits == [FAST.memory_limit_bytes + 2 * signature.state_bytes, FAST.memory_limit_bytes]
    stand.begin(early, signature)
    assert early.worker.memory_limit_bytes == limits[0]
    assert reference.worker.memory_limit_bytes > limits[0]
    for subject in (reference, late, early):
        stand.retire(subject)
    stand.settle()


@pytest.mark.slow
def test_one_worker_whose_profiler_has_begun_is_kept_ready(zygote: Zygote) -> None:
    stand, task = Stand(zygote, Quiet(same_cores=False), ready=2), task_of(SCALE)
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    first = stand.candidate(task, candidate, FAST, role=PROFILED)  # none is ready: it begins here
    deadline = time.monotonic() + 30
    while not stand.ready._waiting[PROFILED] and time.monotonic() < deadline:
        time.sleep(0.02)
    (waiting,) = stand.ready._waiting[PROFILED]
    second = stand.candidate(task, candidate, FAST, role=PROFILED)
    assert second.worker is waiting
    assert first.worker.living
    for subject in (first, second):
        stand.retire(subject)
    stand.settle()
    stand.ready.close()


def about_to_begin(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> tuple[Ready, Worker]:
    """A profiler takes so long to begin, and this worker was just asked to let it."""
    asked, request = threading.Event(), Worker.request
    source = f"import time\ntime.sleep({seconds})\nclass ModelNew: pass\n"

    def slowly(worker: Worker, op: str, **fields: Any) -> dict[str, Any]:
        if op == "arm":
            asked.set()
            op, fields["source"] = "load", source
        return request(worker, op, **fields)

    monkeypatch.setattr(Worker, "request", slowly)
    ready = Ready(zygote, Quiet(same_cores=False), 1)
    ready.expect(PROFILED)
    assert asked.wait(30)
    (making,) = ready._making
    return ready, making


def test_who_needs_a_profiler_has_the_one_that_is_about_to_begin(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, making = about_to_begin(zygote, monkeypatch, 1)
    worker = ready.take(PROFILED)
    assert worker is making
    ready.close()
    worker.close()


def test_no_end_waits_for_a_profiler_to_begin(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, making = about_to_begin(zygote, monkeypatch, 60)
    begin = time.monotonic()
    ready.close()
    assert time.monotonic() < begin + 30
    assert not making.living
    assert ready.take(PROFILED) is None


def test_a_candidate_is_loaded_while_another_holds_the_device(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    evaluator.prepare(task, SEARCH)
    candidate = Candidate(task.id, Language.TORCH, forward("return y", top="print('loaded')"))
    with ThreadPoolExecutor(1) as pool:
        with evaluator._turns.hold("another candidate"):
            asked = pool.submit(evaluator.evaluate, task, candidate, SEARCH, to_beat=1.0)
            deadline = time.monotonic() + 20
            while not evaluator._turns._waiting and time.monotonic() < deadline:
                time.sleep(0.01)
            assert evaluator._turns._waiting, "prepared and loaded, it waits for its turn"
            time.sleep(0.3)
        found = asked.result(60)
    assert found.status is Status.PASSED, found.detail
    assert found.seconds["wait"] >= 0.3


def test_what_waits_while_another_task_is_prepared_alone_is_told_to_have_waited(
    evaluator: LocalEvaluator,
) -> None:
    task = task_of(SCALE)
    evaluator.prepare(task, SEARCH)
    candidate = Candidate(task.id, Language.TORCH, forward("return y", top="print('later')"))
    with ThreadPoolExecutor(1) as pool:
        with evaluator._turns.alone():
            asked = pool.submit(evaluator.evaluate, task, candidate, SEARCH, to_beat=1.0)
            time.sleep(0.5)
        found = asked.result(60)
    assert found.seconds["wait"] >= 0.3
    told_s = sum(s for stage, s in found.seconds.items() if stage != "total")
    assert found.seconds["total"] - told_s < 0.3


def test_a_slow_constructor_does_not_hold_the_device(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    source = forward("return y").replace(
        "self.factor = factor", "self.factor = factor; __import__('time').sleep(0.4)"
    )
    candidate = Candidate(task.id, Language.TORCH, source)
    found = evaluator.evaluate(task, candidate, SEARCH, to_beat=1.0)
    assert found.status is Status.PASSED, found.detail
    assert found.seconds["load"] >= 0.4
    assert found.seconds["open"] < 0.4


def test_a_constructor_that_fails_is_told_without_a_turn(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    source = forward("return y").replace("self.factor = factor", "raise KeyError('no factor')")
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, source), SEARCH)
    assert found.status is Status.RUNTIME_ERROR
    assert "no factor" in found.detail
    assert "open" not in found.seconds


def test_who_waits_for_a_profiler_hears_when_none_can_be_started(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as without a descriptor left: to wait on would be for ever."""
    tried = threading.Event()

    def no_descriptor(*args: object) -> Worker:
        tried.set()
        raise OSError(24, "too many open files")

    ready = Ready(zygote, Quiet(same_cores=False), 1)
    monkeypatch.setattr(ready, "_make", no_descriptor)
    ready.expect(PROFILED)
    assert tried.wait(30)
    assert ready.take(PROFILED) is None
    ready.close()
