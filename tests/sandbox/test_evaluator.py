"""What an evaluator remembers, measures and shares between evaluations."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.baselines.baselines import DEVICE_BASELINES, NULL, Baselines
from sandbox.baselines.compiling import Ahead
from sandbox.baselines.race import Races
from sandbox.errors import DeviceError, InvalidReference, SandboxFault
from sandbox.evaluator import LocalEvaluator
from sandbox.figures import Baseline
from sandbox.judging import judge
from sandbox.judging.invalid import NoRoom
from sandbox.judging.statistics import Null
from sandbox.machine import memory
from sandbox.machine.cores import common_cores
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.proc import count_processes
from sandbox.machine.ready import Ready
from sandbox.observation import (
    CaseObservation,
    Failure,
    FailureKind,
    Observation,
    RoundObservation,
)
from sandbox.pairs.pair import ProcessPair
from sandbox.prepare import LESS_SHARE, Preparation
from sandbox.prepared import Refused
from sandbox.records import from_record, to_record
from sandbox.stages import Stages
from sandbox.subjects.plan import LEAST_SETS, SLOW, Plan, plan
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task
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

Pids = list[tuple[int, int]]


@pytest.fixture
def as_on_a_gpu(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ready]:
    """Where references wait between races, and their processes for other tasks."""
    ready = evaluator._stand.ready
    monkeypatch.setattr("sandbox.baselines.race_room.stays", lambda *_: True)
    monkeypatch.setattr("sandbox.prepare.stays", lambda *_: True)
    monkeypatch.setattr(ready, "_most_used", 8)
    yield ready
    evaluator.cool()
    while (worker := ready.take_used()) is not None:
        worker.close()


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> Pids:
    """Processes of the reference and its rival, pair by pair."""
    pids = Pids()
    start = ProcessPair.start

    def started(pair: ProcessPair, *more: Any, **options: Any) -> Plan:
        pids.append((pair.reference.worker.pid, pair.candidate.worker.pid))
        return start(pair, *more, **options)

    monkeypatch.setattr(ProcessPair, "start", started)
    return pids


def test_a_task_is_prepared_once_per_config(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    assert evaluator.prepare(task, FAST) is evaluator.prepare(task, FAST)
    assert evaluator.prepare(task, replace(FAST, rounds=4)) is not evaluator.prepare(task, FAST)


def test_verifying_only_times_nothing(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessPair, "round", None)  # none is run
    task, config = task_of(SCALE.replace("3.0", "3.85")), replace(FAST, verify_only=True)
    right = Candidate(task.id, Language.TORCH, forward("return y"))
    wrong = Candidate(task.id, Language.TORCH, forward("return y * 1.5"))
    passed, failed = (evaluator.evaluate(task, each, config) for each in (right, wrong))
    assert (passed.status, failed.status) == (Status.PASSED, Status.WRONG_VALUE), passed.detail
    assert passed.timing is None
    assert not evaluator.prepare(task, config).null.log_ratios
    # A figure is never taken for one of a protocol that took it.
    assert passed.config_id != FAST.id == replace(config, verify_only=False).id


def test_an_invalid_reference_is_remembered(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(SCALE.replace("+ 1.0", "+ torch.rand_like(x)"))
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    first = evaluator.evaluate(task, candidate, FAST)
    assert first.status is Status.INVALID_REFERENCE
    monkeypatch.setattr(evaluator._zygote, "spawn", None)  # no worker is started any more
    second = evaluator.evaluate(task, candidate, FAST)
    assert (first.status, first.detail) == (second.status, second.detail)


def test_the_first_candidate_after_a_cold_preparation_finds_a_reference_open(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, config = task_of(SCALE.replace("3.0", "7.75")), replace(FAST, search_pairs=1)
    evaluator.prepare(task, config)
    monkeypatch.setattr(evaluator._stand, "reference", None)  # no other one is started
    # No noise asks for one, nor does a pair whose rounds were all disturbed.
    monkeypatch.setattr("sandbox.timing.doubted", lambda *_, **__: False)
    monkeypatch.setattr(ProcessPair, "why_void", lambda *_: "")
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    found = evaluator.evaluate(task, candidate, config, to_beat=1.0)
    assert found.status is Status.PASSED, found.detail


def test_a_reference_that_another_one_replaces_ends(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    warm, stand = evaluator._preparer.warm, evaluator._stand
    first, second = (stand.start_reference(task, FAST) for _ in range(2))
    warm.keep(task, FAST, first)
    warm.keep(task, FAST, second)
    stand.settle()
    assert (first.worker.living, second.worker.living) == (False, True)
    evaluator.cool()


def test_a_task_that_was_valid_does_not_become_invalid(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(SCALE.replace("3.0", "3.25"))
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    assert evaluator.evaluate(task, candidate, FAST).status is Status.PASSED
    evaluator._prepared.forget_cases()

    def no_room(*args: object) -> None:
        raise NoRoom("not now")

    monkeypatch.setattr(evaluator._preparer, "prepare", no_room)
    found = evaluator.evaluate(task, candidate, FAST)
    assert found.status is Status.SANDBOX_ERROR, found.detail
    assert "not now" in found.detail


def test_a_task_that_was_timed_before_finds_no_room_for_a_while_only(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(SCALE.replace("3.0", "3.5"))
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    evaluator.prepare(task, FAST)
    evaluator._prepared.forget_cases()
    evaluator._admitted.clear()  # as in another process

    def no_room(*args: object) -> None:
        raise WorkerFailed(Failure("load", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room"))

    with monkeypatch.context() as patch:
        patch.setattr(evaluator._stand, "start_reference", no_room)
        found = evaluator.evaluate(task, candidate, FAST)
        assert found.status is Status.SANDBOX_ERROR, found.detail
    assert evaluator.evaluate(task, candidate, FAST).status is Status.PASSED


def test_a_task_that_never_had_room_says_so_and_one_that_is_wrong_does_not(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Candidate("test/one", Language.TORCH, forward("return y"))
    large, wrong = task_of(SCALE.replace("3.0", "17.75")), task_of(SCALE.replace("x)", "0 * x)"))
    with monkeypatch.context() as patch:
        patch.setattr("sandbox.prepare.free_bytes", lambda _: 20_000)  # one set takes 25 kB
        for _ in range(2):  # the second is told from what is kept
            found = evaluator.evaluate(large, kernel, FAST)
            assert (found.status, found.no_room) == (Status.INVALID_REFERENCE, True), found.detail
    found = evaluator.evaluate(wrong, kernel, FAST)
    assert (found.status, found.no_room) == (Status.INVALID_REFERENCE, False), found.detail


@pytest.mark.parametrize("before", [False, True])
def test_our_shortage_speaks_of_a_task_that_was_never_prepared(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """As where the cases of a task, which are ours to keep, do not fit on a GPU."""
    task = task_of(SCALE.replace("3.0", "18.25" if before else "18.5"))
    kernel = Candidate(task.id, Language.TORCH, forward("return y"))
    if before:
        evaluator.prepare(task, FAST)
        evaluator._prepared.forget_cases()

    def no_room(*args: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("sandbox.prepare.build_pool", no_room)
    found = evaluator.evaluate(task, kernel, FAST)
    assert (found.status, found.no_room) == (Status.SANDBOX_ERROR, not before), found.detail


@pytest.mark.parametrize("language", [Language.CUDA, Language.TORCH])
def test_a_fault_of_ours_names_the_device_that_met_it(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, language: Language
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise SandboxFault("no reply")

    monkeypatch.setattr(evaluator, "_evaluate", fail)
    found = evaluator.evaluate(task_of(SCALE), Candidate("t", language, ""), FAST)
    assert found.status is Status.SANDBOX_ERROR
    assert found.environment == evaluator.facts.environment


def test_room_is_made_once_nothing_holds_a_tasks_cases(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cases:
        """Gigabytes."""

    held: list[weakref.ref[Cases]] = []
    alive: list[object] = []

    def evaluate(*args: object, **options: object) -> None:
        cases = Cases()
        held.append(weakref.ref(cases))
        raise torch.OutOfMemoryError("no room")

    def make_room(*, cases: bool) -> None:
        alive.extend(each() for each in held)

    monkeypatch.setattr(evaluator, "device", "cuda")
    monkeypatch.setattr(evaluator, "_evaluate", evaluate)
    monkeypatch.setattr(evaluator, "_settle", lambda: None)
    monkeypatch.setattr(evaluator, "_make_room", make_room)
    found = evaluator.evaluate(task_of(SCALE), Candidate("t", Language.TORCH, ""), FAST)
    assert found.status is Status.SANDBOX_ERROR
    assert alive == [None]


def test_a_task_for_which_we_run_out_of_memory_is_planned_smaller(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    known = evaluator.prepare(task_of(SCALE), FAST)

    def prepare(task: Task, config: EvalConfig, started: object, share: float) -> Preparation:
        shares.append(share)
        if share == 1.0:
            raise memory.OutOfMemoryError("no room")
        return known

    monkeypatch.setattr(evaluator._preparer, "_prepare", prepare)
    assert evaluator._preparer.prepare(task_of(SCALE), FAST).pools is known.pools
    assert shares == [1.0, LESS_SHARE]


def test_facts_and_null_experiments_are_kept_on_disk(
    evaluator: LocalEvaluator, cache: Path
) -> None:
    evaluator.prepare(task_of(LINEAR), FAST)
    (facts,) = (cache / "devices").glob("*.json")
    assert json.loads(facts.read_text())["copy_bytes_s"] == evaluator.facts.copy_bytes_s
    assert evaluator.facts.copy_bytes_s > 1e8
    assert list((cache / "baselines").glob("*.json"))


def test_what_preparing_told_is_told_without_it_the_next_time(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(SCALE.replace("+ 1.0", "+ 1.25"))
    prepared = evaluator.prepare(task, FAST)

    def refuse(*_: object) -> None:
        raise AssertionError("prepared again")

    monkeypatch.setattr(evaluator._preparer, "prepare", refuse)
    again = evaluator.figures(task, FAST)
    assert again == replace(prepared.figures, seconds={})
    assert again.latency_s > 0
    with pytest.raises(AssertionError, match="prepared again"):
        evaluator.figures(task, replace(FAST, rounds=FAST.rounds + 1))


@pytest.mark.parametrize(
    ("wide", "age_s", "kept"), [(0, 1e6, True), (1, 60, True), (1, 1e6, False)]
)
def test_a_disturbed_measurement_is_kept_for_a_while(
    evaluator: LocalEvaluator, cache: Path, wide: int, age_s: float, kept: bool
) -> None:
    task = task_of(SCALE)
    evaluator.prepare(task, FAST)
    path = evaluator._preparer.baselines._path(task, FAST, NULL)
    record = json.loads(path.read_text()) | {"wide": bool(wide), "at": time.time() - age_s}
    path.write_text(json.dumps(record))
    assert evaluator._preparer.is_timed(task, FAST) is kept
    path.write_text(json.dumps(record | {"wide": False}))


def as_given(
    ratios: tuple[float, ...], failure: Failure | None
) -> Callable[..., list[RoundObservation]]:
    """The null experiment's race; a baseline's fails so, or every round of it was void."""

    def race(races: Races, wrap: str | None, *_: Any, **__: Any) -> list[RoundObservation]:
        if wrap is not None and failure is not None:
            raise WorkerFailed(failure)
        void = "" if wrap is None else "drift"
        return [
            RoundObservation(n, False, 1, 1.0, ratio, void=void) for n, ratio in enumerate(ratios)
        ]

    return race


UNSUPPORTED = Failure("reference", FailureKind.CLAIMED, ("Unsupported",))
SHORT_OF_MEMORY = Failure("reference", FailureKind.CLAIMED, ("OutOfMemoryError",))


@pytest.mark.parametrize(
    ("failure", "ratios", "for_good"),
    [
        (UNSUPPORTED, (1.0, 1.01), True),
        (Failure("reference", FailureKind.TIMEOUT), (1.0, 1.01), False),
        (SHORT_OF_MEMORY, (1.0, 1.01), False),
        (None, (1.0, 1.01), False),
        (UNSUPPORTED, (1.0, 2.0), False),
        (UNSUPPORTED, (), False),
    ],
    ids=["cannot", "time-out", "memory", "every round void", "loud null", "no null"],
)
def test_only_what_will_stay_so_is_kept_for_good(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Failure | None,
    ratios: tuple[float, ...],
    for_good: bool,
) -> None:
    monkeypatch.setattr(Races, "race", as_given(ratios, failure))
    monkeypatch.setattr(Ahead, "_make", lambda *_, **__: None)
    stand, task = SimpleNamespace(retire=None), task_of(SCALE)
    baselines = Baselines(stand, stand, "cpu", tmp_path, lambda: None)  # type: ignore[arg-type]
    config = replace(FAST, baselines=("compile",))
    signature = SimpleNamespace(mutates=False, input_bytes=4, output_bytes=4, state_bytes=0)
    _, (baseline,) = baselines.measured(
        task,
        config,
        signature,  # type: ignore[arg-type]
        Plan(1, 1),
        Stages(),
        lambda _: None,
    )
    assert baseline.speedup is None
    for name in (NULL, "compile"):
        path = baselines._path(task, config, name)
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"at": record["at"] - 1e6}))
    assert (baselines.known(task, config) is not None) is for_good


def test_a_baseline_asked_for_later_is_timed_beside_the_same_null_experiment(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    race, raced = Races.race, list[str | None]()

    def seen(races: Races, wrap: str | None, *given: Any, **more: Any) -> list[RoundObservation]:
        raced.append(wrap)
        return race(races, wrap, *given, **more)

    monkeypatch.setattr(Races, "race", seen)
    monkeypatch.setitem(DEVICE_BASELINES, "cpu", ("cuda_graph",))  # which a CPU has none of
    task = task_of(SCALE.replace("1.0", "1.875"))
    first = evaluator.prepare(task, FAST)
    more = evaluator.prepare(task, replace(FAST, baselines=("cuda_graph",)))
    assert raced == [None, "cuda_graph"]
    assert more.null == first.null
    assert more.baselines[0].speedup is None
    evaluator._prepared.forget_cases()
    evaluator.prepare(task, replace(FAST, baselines=("cuda_graph",)))
    assert len(raced) == 2


@pytest.mark.parametrize(
    ("few", "killed", "large"),
    [
        (True, False, False),
        (False, False, False),
        (False, True, False),
        (False, False, True),
    ],
)
@pytest.mark.slow
def test_races_share_their_processes_and_the_pairs_of_a_race_do_not(
    evaluator: LocalEvaluator,
    as_on_a_gpu: Ready,
    paired: Pids,
    monkeypatch: pytest.MonkeyPatch,
    few: bool,
    killed: bool,
    large: bool,
) -> None:
    monkeypatch.setattr("sandbox.baselines.race_room.BESIDE_BYTES", 0 if large else 1 << 30)
    task = task_of(SCALE.replace("1.0", "2.125"))
    prepared = evaluator.prepare(task, FAST)
    evaluator._stand.settle()
    as_on_a_gpu.end_used()  # what is still coming back from preparing would serve the second race
    paired.clear()
    baselines = evaluator._preparer.baselines
    with (
        pytest.MonkeyPatch.context() as patch,
        baselines.races(task, FAST, prepared.signature, prepared.plan) as races,
    ):
        patch.setattr("sandbox.baselines.race_room.KEPT_SHARE", 0.2 if few else 0.0)
        first = races.race(None, deque())
        evaluator._stand.settle()
        used = [worker.pid for worker in as_on_a_gpu._used]
        references = [reference.worker.pid for reference in races.references.values()]
        for pid in [*references, *used] if killed else ():
            os.kill(pid, signal.SIGKILL)
            while count_processes(pid):
                time.sleep(0.01)
        second = races.race(None, deque(), prepared.null)
    assert first
    assert second
    pids = [pid for pair in paired for pid in pair]
    assert len(paired) == 2 * FAST.min_pairs
    assert len(set(pids)) == (4 if killed else 2) * FAST.min_pairs
    assert len(set(pids[: 2 * FAST.min_pairs])) == 2 * FAST.min_pairs
    evaluator._stand.settle()
    used = {worker.pid for worker in as_on_a_gpu._used}
    assert set(pids) & set(workers_alive(evaluator)) == used


def test_a_process_whose_task_is_over_serves_the_next_but_no_reported_figure(
    evaluator: LocalEvaluator, as_on_a_gpu: Ready, paired: Pids
) -> None:
    first, second = (task_of(SCALE.replace("1.0", f"2.{i}"), f"test/{i}") for i in (25, 75))
    evaluator.prepare(first, FAST)
    evaluator._stand.settle()
    evaluator.prepare(second, FAST)
    assert len(paired) == 2 * FAST.min_pairs
    served = [{pid for pair in pairs for pid in pair} for pairs in (paired[:2], paired[2:])]
    assert len(served[0]) == len(served[1]) == 2 * FAST.min_pairs
    assert served[0] & served[1]
    evaluator._stand.settle()
    assert as_on_a_gpu._used
    used = {worker.pid for worker in as_on_a_gpu._used}
    paired.clear()
    candidate = Candidate(second.id, Language.TORCH, renamed(second.source))
    found = evaluator.evaluate(second, candidate, FAST)
    assert found.status is Status.PASSED, found.detail
    assert not used & {pid for pair in paired for pid in pair}


@pytest.mark.parametrize(
    "left_behind",
    [
        "torch.set_default_dtype(torch.float64)",
        "torch.backends.cudnn.benchmark = True",
        "torch.relu = torch.sigmoid",
    ],
)
def test_a_process_that_a_task_has_changed_serves_no_other(
    evaluator: LocalEvaluator, as_on_a_gpu: Ready, left_behind: str
) -> None:
    sources = [
        SCALE.replace("import torch\n", f"import torch\n{x}\n", 1) for x in ("", left_behind)
    ]
    subjects = [evaluator._stand.start_reference(task_of(source), FAST) for source in sources]
    for subject in subjects:
        evaluator._stand.reuse(subject).result()
    assert [worker.pid for worker in as_on_a_gpu._used] == [subjects[0].worker.pid]


def test_a_process_that_served_is_placed_and_closed_as_any_other(
    evaluator: LocalEvaluator, as_on_a_gpu: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, reuse = evaluator._stand.start_reference, evaluator._stand.reuse
    placed, tired, broken = (start(task_of(SCALE), FAST) for _ in range(3))
    os.sched_setaffinity(placed.worker.pid, {min(os.sched_getaffinity(0))})
    with monkeypatch.context() as patch:
        patch.setattr(evaluator._zygote, "launching_core", object())  # as on a GPU
        reuse(placed).result()
    assert os.sched_getaffinity(placed.worker.pid) == common_cores()
    with monkeypatch.context() as patch:
        patch.setattr("sandbox.subjects.stand.USED_CPU_S", 0.0)
        reuse(tired).result()
    monkeypatch.setattr(broken, "leave", lambda: 1 / 0)
    assert isinstance(reuse(broken).exception(), ZeroDivisionError)
    evaluator._stand._closing.clear()  # whoever settles next is not to hear of it
    assert [worker.pid for worker in as_on_a_gpu._used] == [placed.worker.pid]
    assert not {tired.worker.pid, broken.worker.pid} & set(workers_alive(evaluator))


@pytest.mark.slow
def test_compilers_serve_the_next_task_with_what_they_have_compiled(
    evaluator: LocalEvaluator, as_on_a_gpu: Ready, calm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, config = evaluator._compilers.ready, replace(FAST, baselines=("compile",))
    monkeypatch.setattr(ready, "_most_used", 4)
    pids = []
    for i in (3, 7):
        task = task_of(SCALE.replace("1.0", f"4.{i}25"), f"test/compiled-{i}")
        [baseline] = evaluator.prepare(task, config).baselines
        assert baseline.speedup is not None, baseline.detail
        evaluator._compilers.settle()
        pids.append({worker.pid for worker in ready._used})
    assert pids[0] == pids[1]
    assert len(pids[0]) == FAST.min_pairs
    ready.end_used()


def test_verifying_only_remembers_a_reference_that_cannot_be_scored(
    evaluator: LocalEvaluator,
) -> None:
    dies = task_of(SCALE.replace("import torch\n", "import os; os._exit(3)\n", 1), "test/dies")
    with pytest.raises(InvalidReference, match="exited with code 3"):
        evaluator.prepare(dies, replace(FAST, verify_only=True))


def test_what_a_process_cannot_load_twice_is_loaded_in_a_fresh_one(
    evaluator: LocalEvaluator, as_on_a_gpu: Ready
) -> None:
    once = "\nimport builtins\nassert not hasattr(builtins, 'loaded')\nbuiltins.loaded = True\n"
    pids = []
    for name in ("test/one", "test/other"):
        subject = evaluator._stand.start_reference(task_of(SCALE + once, name), FAST)
        pids.append(subject.worker.pid)
        evaluator._stand.reuse(subject).result()
    assert len(set(pids)) == 2


@pytest.mark.parametrize("failures", [1, 2])
def test_a_reference_without_room_is_tried_once_more_with_less_beside_it(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    task = task_of(SCALE.replace("1.0", f"1.{failures}"))
    race, shares = Races.race, list[int]()

    def short_of_memory(*arguments: Any, **more: Any) -> list[RoundObservation]:
        if len(shares) <= 3 * failures:  # planned for confirmations, searches and quick candidates
            raise WorkerFailed(SHORT_OF_MEMORY)
        return race(*arguments, **more)

    def planned(signature: Signature, config: EvalConfig, free_bytes: int) -> Plan:
        shares.append(free_bytes)
        return plan(signature, config, free_bytes)

    monkeypatch.setattr(Races, "race", short_of_memory)
    monkeypatch.setattr("sandbox.prepare.plan", planned)
    if failures == 2:
        with pytest.raises(InvalidReference, match="OutOfMemoryError"):
            evaluator.prepare(task, FAST)
    else:
        evaluator.prepare(task, FAST)
        assert shares[3] < 0.7 * shares[0]


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.slow
def test_a_quick_candidate_has_longer_batches_in_every_pair_of_a_reported_figure(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, searched: bool
) -> None:
    calls: list[tuple[int, int]] = []
    round_ = ProcessPair.round

    def seen(pair: ProcessPair, *arguments: Any) -> tuple[RoundObservation, CaseObservation]:
        found, case = round_(pair, *arguments)
        if not found.single:
            calls.append((found.pair, found.calls))
        return found, case

    attempt = LocalEvaluator._evaluate

    def begun(*arguments: Any, **options: Any) -> Evaluation:
        calls.clear()  # of an attempt that ended in a fault of ours, on a busy machine
        return attempt(*arguments, **options)

    slow = "        for _ in range(1000):\n            x.sin()\n        return"
    config = replace(FAST, max_sets=64, batch_ms=12.0, search_batch_ms=12.0)
    task = task_of(SCALE.replace("        return", slow))
    # Beside other work making one set of inputs may take as long as several usually do.
    monkeypatch.setattr("sandbox.subjects.plan.FILL_S", 1.0)
    planned = evaluator.prepare(task, config).plan.sets
    monkeypatch.setattr(ProcessPair, "round", seen)
    monkeypatch.setattr(LocalEvaluator, "_evaluate", begun)
    quick = Candidate(task.id, Language.TORCH, forward("return y"))
    found = evaluator.evaluate(task, quick, config, to_beat=1.0 if searched else None)
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    first, later = calls[0][1], {sets for _, sets in calls if sets != calls[0][1]}
    assert first == planned
    if searched:
        assert not later
    else:
        assert later == {found.timing.sets}
        assert found.timing.sets > planned
        for number, pair in enumerate(found.timing.pairs):
            taken = sum(sets in later for at, sets in calls if at == number)
            assert pair.rounds + pair.voided == taken, calls


LATER = """
        self.calls = getattr(self, "calls", 0) + 1
        for _ in range({slow} if self.calls < {until} else 0):
            x.sin()
        return y"""


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("honest", [False, True])
@pytest.mark.slow
def test_a_slow_candidate_has_short_batches_as_long_as_it_is_slow_in_them(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, searched: bool, honest: bool
) -> None:
    calls: list[int] = []
    round_ = ProcessPair.round

    def seen(pair: ProcessPair, *arguments: Any) -> tuple[RoundObservation, CaseObservation]:
        found, case = round_(pair, *arguments)
        if not found.single:
            calls.append(found.calls)
        return found, case

    monkeypatch.setattr("sandbox.subjects.plan.SLOW_BATCH_S", 0.005)
    config = replace(FAST, max_sets=64, batch_ms=2.0, search_batch_ms=2.0)
    task = task_of(SCALE.replace("3.0", "3.35"))
    planned = evaluator.prepare(task, config).plan.sets
    assert planned > LEAST_SETS
    monkeypatch.setattr(ProcessPair, "round", seen)
    # A search's process has been verified; the others are asked for few calls before a timed one.
    until = 10**9 if honest else 25 if searched else 8
    body = LATER.format(slow=6000, until=until)
    candidate = Candidate(task.id, Language.TORCH, forward(body.strip()))
    found = evaluator.evaluate(task, candidate, config, to_beat=1.0 if searched else None)
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    assert calls[0] == LEAST_SETS
    if honest:
        assert set(calls) == {LEAST_SETS}
        assert found.timing.speedup.value < 1 / SLOW
        assert found.timing.noise_floor > evaluator.prepare(task, config).null.floor
    else:
        assert calls[-1] == found.timing.sets == planned
        assert found.timing.speedup.value > 1 / SLOW


def test_outputs_are_held_only_until_they_are_spoilt(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, spoilt = list[bool](), list[Subject]()
    collect, spoil = Subject.collect, Subject.spoil

    def collected(subject: Subject, sets: list[int], **more: Any) -> Any:
        held.append(bool(more.get("spoil")))
        return collect(subject, sets, **more)

    def spoils(subject: Subject) -> None:
        spoilt.append(subject)
        spoil(subject)

    monkeypatch.setattr(Subject, "collect", collected)
    monkeypatch.setattr(Subject, "spoil", spoils)
    task = task_of(SCALE.replace("1.0", "2.625"))
    evaluator.prepare(task, FAST)
    # A null experiment whose second side held its outputs found it two to eight times slower.
    assert len(held) > 2
    assert not any(held)
    candidate = Candidate(task.id, Language.TORCH, renamed(SCALE.replace("1.0", "2.625")))
    assert evaluator.evaluate(task, candidate, FAST).status is Status.PASSED
    assert 0 < sum(held) == len(spoilt)


def test_a_large_task_is_prepared_with_nothing_kept_of_others(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, large = task_of(SCALE), task_of(SCALE.replace("1.0", "1.75"))
    stochastic = task_of(SCALE.replace("+ 1.0", "+ torch.rand_like(x)"))
    kept = evaluator.prepare(other, FAST)
    with pytest.raises(InvalidReference):
        evaluator.prepare(stochastic, FAST)
    known = len(evaluator._prepared.values())
    monkeypatch.setattr("sandbox.prepare.ALONE_SHARE", 0.0)
    evaluator.prepare(large, FAST)
    assert kept not in evaluator._prepared.values()
    assert len(evaluator._prepared.values()) < known + 1
    assert any(isinstance(found, Refused) for found in evaluator._prepared.values())


@pytest.mark.parametrize("repeats", [True, False])
def test_who_is_accused_by_the_clock_is_judged_again(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, repeats: bool
) -> None:
    """By fresh processes: what disturbed the first ones is seldom there again."""
    real, seen = judge.judge, list[Observation]()

    def accusing(observation: Observation, *arguments: Any) -> Evaluation:
        seen.append(observation)
        slow = repeats or len(seen) == 1
        return real(replace(observation, floor_s=1e3 if slow else None), *arguments)

    monkeypatch.setattr(judge, "judge", accusing)
    # Nor was the machine busy when its bandwidth was measured, which would excuse the candidate.
    monkeypatch.setattr(evaluator, "_is_faster_than_known", lambda: False)
    task = task_of(SCALE)
    candidate = Candidate(
        task.id, Language.TORCH, forward("return torch.relu(x) * self.factor + 1.0")
    )
    found = evaluator.evaluate(task, candidate, FAST)
    assert len(seen) == 2
    assert seen[0].rounds != seen[1].rounds
    assert found.status is (Status.REWARD_HACK if repeats else Status.SANDBOX_ERROR)
    assert "compulsory bytes" in found.detail


def test_an_evaluation_names_its_environment_and_survives_json(evaluate: Evaluate) -> None:
    found = evaluate(forward("print('hello')", "return y"))
    assert found.environment["device"] == "cpu"
    assert found.environment["walls"] in ("full", "unprivileged", "weak")
    assert "hello" in found.stdout
    assert from_record(Evaluation, json.loads(json.dumps(to_record(found)))) == found


def test_equal_sources_have_equal_ids() -> None:
    one, same, other = (
        Candidate("t", Language.TORCH, source) for source in ("a = 1", "a = 1", "a = 2")
    )
    assert one.id == same.id != other.id
    assert replace(FAST).id == FAST.id != replace(FAST, rounds=9).id


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(DeviceError, match="tpu"):
        LocalEvaluator("tpu")


def test_timing_stops_early_for_a_candidate_that_cannot_win(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    slow = Candidate(task.id, Language.TORCH, forward("__import__('time').sleep(0.02)", "return y"))
    found = evaluator.evaluate(task, slow, replace(FAST, max_pairs=6), to_beat=1000.0)
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    assert len(found.timing.pairs) < 6
    assert found.timing.speedup.value < 0.5


@pytest.mark.slow
def test_two_evaluators_work_side_by_side(evaluator: LocalEvaluator, tmp_path: Path) -> None:
    other = LocalEvaluator("cpu", cache_dir=tmp_path)
    task = task_of(SCALE)
    found: list[Evaluation] = []

    def run(lane: LocalEvaluator) -> None:
        for number in range(5):
            source = forward(f"return y  # {number}")
            candidate = Candidate(task.id, Language.TORCH, source)
            found.append(lane.evaluate(task, candidate, FAST))

    lanes = [threading.Thread(target=run, args=(lane,)) for lane in (evaluator, other)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    other.close()
    # Lanes on one core disturb each other's clocks; no lane may end the other's workers.
    assert {f.status for f in found} <= {Status.PASSED, Status.REWARD_HACK}, found
    assert len(found) == 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_compile_baseline_is_timed(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    candidate = Candidate(task.id, Language.TORCH, renamed(SCALE))
    found = evaluator.evaluate(task, candidate, replace(FAST, baselines=("compile",)))
    (baseline,) = found.baselines
    assert baseline.name == "compile"
    assert baseline.speedup is not None, baseline.detail


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cores", [1, 1000], ids=["beside", "after"])
def test_workers_compiled_beside_the_null_experiment_or_after_it_serve_the_baseline(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    compiling, made = evaluator._preparer.baselines.compiling, list[Subject]()
    raced = Baselines.baseline

    def seen(
        baselines: Baselines, races: Races, name: str, null: Null, ready: deque[Subject]
    ) -> Baseline:
        made.extend(ready)
        return raced(baselines, races, name, null, ready)

    monkeypatch.setattr(Baselines, "baseline", seen)
    monkeypatch.setattr("sandbox.baselines.baselines.CORES_PER_COMPILER", cores)
    config = replace(FAST, baselines=("compile",))
    found = evaluator.prepare(task_of(SCALE.replace("+ 1.0", f"+ 1.25{cores}")), config)
    assert found.baselines[0].speedup is not None, found.baselines
    assert len(made) == config.min_pairs
    evaluator._stand.settle()
    assert not any(subject.worker.living for subject in made)
    assert found.seconds["baseline compile"] > 0
    assert any(compiling.kept.rglob("*.cpp"))


@pytest.mark.parametrize("busy", [True, False])
def test_who_is_quicker_than_a_busy_device_was_is_judged_by_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """Its bandwidth is kept for good, and was measured beside other work: an honest kernel was
    quicker than the device could be.
    """
    evaluator = LocalEvaluator("cpu", cache_dir=tmp_path)
    slow = "        for _ in range(1000):\n            x.sin()\n        return"
    task = task_of(SCALE.replace("        return", slow))
    try:
        signature = evaluator.prepare(task, FAST).signature
        bytes_ = sum(leaf.bytes for leaf in (*signature.inputs, *signature.outputs))
        told = replace(
            evaluator.facts, cache_bytes=0, copy_bytes_s=2 * bytes_ / signature.latency_s
        )
        evaluator._prepared.clear()
        evaluator._facts = evaluator._preparer.facts = told
        evaluator._bench = replace(evaluator._bench, facts=told)
        if not busy:
            monkeypatch.setattr("sandbox.evaluator.measured_again", lambda known, cache: known)
        quick = Candidate(task.id, Language.TORCH, forward("return y"))
        found = evaluator.evaluate(task, quick, FAST, to_beat=1.0)
        if busy:
            assert found.status is Status.PASSED, found.detail
            kept = LocalEvaluator("cpu", cache_dir=tmp_path)
            kept.close()
            assert kept.facts == evaluator.facts != told
        else:
            assert found.status is Status.REWARD_HACK
            assert "moving the compulsory bytes takes" in found.detail
    finally:
        evaluator.close()
