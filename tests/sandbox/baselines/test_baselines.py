"""What is done while baselines are timed, what is left out, and where room is short."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.baselines.compiling import Ahead, Compiling
from sandbox.baselines.race import Races
from sandbox.errors import InvalidReference
from sandbox.evaluator import LocalEvaluator
from sandbox.judging.statistics import Null
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import Failure, FailureKind, RoundObservation
from sandbox.subjects.signature import Opening
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task
from sandbox.worker.reference import ReferenceSession
from sandbox.worker.wrapped import THREADS, untuned
from tests.sandbox.conftest import FAST, SCALE, task_of

ALONE = replace(FAST, baselines_only=True)
SHORT_OF_MEMORY = Failure("time", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")


@pytest.mark.slow
def test_without_candidates_no_case_is_made(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("a case is made")

    monkeypatch.setattr("sandbox.prepare.build_pool", made)
    task = task_of(SCALE.replace("1.0", "4.125"))
    found = evaluator.figures(task, ALONE)
    assert found.latency_s > 0
    assert {"start", "examine", "null"} <= found.seconds.keys()
    assert "cases" not in found.seconds
    assert evaluator.figures(task, ALONE).latency_s == found.latency_s
    with pytest.raises(AssertionError, match="a case is made"):
        evaluator.figures(task, FAST)


@pytest.mark.slow
def test_what_a_search_chooses_from_is_compiled_side_by_side() -> None:
    """In a process of its own, where Inductor is yet to be imported."""
    script = """
import torch
from sandbox.worker.wrapped import wrapped
wrapped(torch.nn.Identity(), "max_autotune")
from torch._inductor import config, select_algorithm
print(config.compile_threads, select_algorithm.get_num_workers())
"""
    worker = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", script], env=worker, stdout=subprocess.PIPE)
    pools, threads = map(int, told.stdout.split())
    assert pools == 1
    assert threads == min(THREADS, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", "test/scale: forward\\(\\) returns no tensor: return what it updates"),
        ("return torch.rand_like(x)", "test/scale: stochastic"),
        ("raise ValueError('not this')", "test/scale: the reference failed with ValueError"),
    ],
)
def test_without_candidates_a_reference_that_cannot_be_scored_is_refused_as_ever(
    evaluator: LocalEvaluator, body: str, told: str
) -> None:
    source = SCALE.replace("        return", f"        {body}\n        return", 1)
    assert source != SCALE
    with pytest.raises(InvalidReference, match=f"^{told}"):
        evaluator.figures(task_of(source, "test/scale"), ALONE)


def test_a_model_whose_signature_is_known_is_opened_without_inputs(tmp_path: Path) -> None:
    session = ReferenceSession(tmp_path)
    source = SCALE.replace(
        "def get_inputs():", "MADE = []\n\n\ndef get_inputs():\n    MADE.append(1)"
    )
    assert source != SCALE
    session.do_load({"source": source}, [])
    asked = {"constants": [], "seed": 1, "state_seed": 2, "wrap": None}
    assert session.do_open(asked | {"describe": True}, [])["inputs"]["leaves"]
    assert session.module.MADE == [1]
    assert not session.do_open(asked | {"describe": False}, [])
    assert session.module.MADE == [1]
    assert session.model is not None


@pytest.mark.parametrize("beside", [True, False])
def test_a_race_that_is_short_of_memory_runs_again_with_nothing_beside_it(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    task = task_of(SCALE.replace("1.0", "4.25"))
    prepared = evaluator.prepare(task, FAST)
    rounds, asked = Races._rounds, list[int]()

    def short_of_memory(races: Races, *more: Any) -> list[RoundObservation]:
        asked.append(1)
        if len(asked) == 2:
            raise WorkerFailed(SHORT_OF_MEMORY)
        return rounds(races, *more)

    monkeypatch.setattr(Races, "_rounds", short_of_memory)
    races_of = evaluator._preparer.baselines.races
    with races_of(task, FAST, prepared.signature, prepared.plan) as races:
        left = [True] if beside else []
        races.alone = lambda: bool(left) and left.pop()
        if not beside:
            with pytest.raises(WorkerFailed, match="no room"):
                races.race(None, deque())
            return
        found = races.race(None, deque())
    assert not left
    assert len(asked) == 2 + FAST.min_pairs
    assert {seen.pair for seen in found} == set(range(FAST.min_pairs))


@pytest.mark.slow
def test_of_large_calls_only_what_is_being_compiled_is_waited_for(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what had not begun is made when its pair comes."""
    task = task_of(SCALE.replace("1.0", "4.375"))
    config = replace(FAST, baselines=("compile",))
    made, ready = list[bool](), threading.Event()
    raced = list[int]()

    def make(ahead: Ahead, *, keep: bool) -> None:
        assert ready.wait(30)
        made.append(keep)
        subject, _ = ahead.compiling.stand.reference(task, config, Opening(known=ahead.signature))
        ahead.ready.append(subject)

    race: Callable[..., list[RoundObservation]] = Races.race

    def seen(
        races: Races, wrap: str | None, mine: deque[Subject], *more: Any, **options: Any
    ) -> list[RoundObservation]:
        if wrap is None:
            found = race(races, wrap, mine, *more, **options)
            ready.set()
            return found
        raced.append(len(mine))
        return race(races, None, mine, *more, **options)

    begin = Ahead.begin
    monkeypatch.setattr(Ahead, "begin", lambda ahead, numbers, _: begin(ahead, numbers, 1))
    monkeypatch.setattr(Ahead, "_make", make)
    monkeypatch.setattr(Races, "race", seen)
    monkeypatch.setattr("sandbox.baselines.race_room.BESIDE_BYTES", 0)
    monkeypatch.setattr("sandbox.baselines.baselines.CORES_PER_COMPILER", 1)
    found = evaluator.prepare(task, config)
    assert found.baselines[0].speedup is not None
    assert made == [True]
    assert raced == [1]


@pytest.fixture
def compiled(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done for a compiled baseline, whose code is the reference's own."""
    done = list[str]()
    timed, kept = Races._rounds, Compiling.keep

    def start(compiling: Compiling, task: Task, config: EvalConfig, *more: Any) -> Subject:
        done.append("opened")
        return compiling.stand.reference(task, config, Opening(known=more[0]))[0]

    def keep(compiling: Compiling, subject: Subject, *, tuned: bool = True) -> None:
        done.append("kept" if tuned else "kept untuned")
        kept(compiling, subject, tuned=tuned)

    def rounds(races: Races, number: int, *more: Any) -> list[RoundObservation]:
        done.append(f"pair {number}")
        return timed(races, number, *more)

    def called(compiling: Compiling, subject: Subject) -> None:
        done.append("called")
        subject.request("call", 30.0, seed=0, tuned=False)

    def tuned(compiling: Compiling, subject: Subject) -> None:
        done.append("tuned")
        subject.request("call", 30.0, seed=0, tuned=True)

    monkeypatch.setattr(Compiling, "start", start)
    monkeypatch.setattr(Compiling, "keep", keep)
    monkeypatch.setattr(Compiling, "call", called)
    monkeypatch.setattr(Compiling, "tune", tuned)
    monkeypatch.setattr(Races, "_rounds", rounds)
    return done


@pytest.fixture
def raced(
    evaluator: LocalEvaluator, compiled: list[str], calm: None
) -> Iterator[tuple[Races, Null]]:
    """Of a task that was prepared."""
    task = task_of(SCALE.replace("1.0", "4.625"))
    prepared = evaluator.prepare(task, FAST)
    compiled.clear()
    baselines = evaluator._preparer.baselines
    with baselines.races(task, FAST, prepared.signature, prepared.plan) as races:
        yield races, prepared.null


def test_workers_compile_ahead_and_tune_in_their_pair(
    raced: tuple[Races, Null], compiled: list[str]
) -> None:
    races, null = raced
    ahead = Ahead(races.compiling, races.task, FAST, races.signature)
    with closing(ahead):
        ahead.begin(range(FAST.min_pairs), 1)
        ahead.finish()
        assert compiled[:3] == ["opened", "called", "kept untuned"]
        assert Counter(compiled)["called"] == len(ahead.ready) == FAST.min_pairs
        compiled.clear()
        races.race("compile", ahead.ready, null)
        assert compiled[:3] == ["pair 0", "tuned", "kept"]
        assert Counter(compiled) == Counter(
            ["kept"] + [f"pair {n}" for n in range(FAST.min_pairs)] + ["tuned"] * FAST.min_pairs
        )


def test_the_first_workers_code_serves_the_others(
    raced: tuple[Races, Null], compiled: list[str]
) -> None:
    races, null = raced
    races.race("compile", deque(), null)
    assert compiled[:3] == ["opened", "called", "kept untuned"]
    assert Counter(compiled)["tuned"] == FAST.min_pairs
    compiled.clear()
    races.race("max_autotune", deque(), null)
    # The second worker has what the first one found, which took minutes.
    assert compiled[:5] == ["opened", "pair 0", "tuned", "kept", "opened"]
    assert Counter(compiled)["called"] == 0


@pytest.mark.parametrize("disturbed", [{0}, {0, 2, 3}, set()])
def test_a_disturbed_baseline_has_more_pairs_until_they_agree(
    raced: tuple[Races, Null], monkeypatch: pytest.MonkeyPatch, disturbed: set[int]
) -> None:
    races, timed = raced[0], Races._rounds
    null = Null((0.01, -0.01))
    workers = list[int]()

    def rounds(races: Races, number: int, group: Any, *more: Any) -> Any:
        """As on a quiet machine, but for what is disturbed."""
        ((rival, subject),) = group.items()
        workers.append(subject.worker.pid)
        found = timed(races, number, group, *more)[rival]
        slow = 4.0 if number in disturbed else 1.0 + 0.001 * number
        calm = [
            replace(seen, reference_s=1.0, candidate_s=slow, candidate_collect_s=0.0, void="")
            for seen in found
        ]
        return {rival: calm}

    monkeypatch.setattr("sandbox.baselines.rival.DISTURBED", 2.0)
    monkeypatch.setattr(Races, "_rounds", rounds)
    found = races.race("compile", deque(), null)
    pairs = {seen.pair for seen in found}
    assert len(set(workers)) == len(workers) == len(pairs)
    assert pairs == set(range(2 * FAST.min_pairs if disturbed else FAST.min_pairs))


def test_a_further_pair_that_fails_leaves_a_baseline_as_it_was(
    raced: tuple[Races, Null], monkeypatch: pytest.MonkeyPatch
) -> None:
    races, timed = raced[0], Races._rounds

    def rounds(races: Races, number: int, *more: Any) -> Any:
        if number >= FAST.min_pairs:
            raise WorkerFailed(SHORT_OF_MEMORY)
        return timed(races, number, *more)

    monkeypatch.setattr("sandbox.baselines.rival.DISTURBED", 0.0)
    monkeypatch.setattr(Races, "_rounds", rounds)
    found = races.race("compile", deque(), raced[1])
    assert {seen.pair for seen in found} == set(range(FAST.min_pairs))


def test_a_worker_that_finds_no_room_beside_a_pair_compiles_in_its_own(
    raced: tuple[Races, Null], compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(compiling: Compiling, subject: Subject) -> None:
        raise WorkerFailed(SHORT_OF_MEMORY)

    monkeypatch.setattr(Compiling, "call", full)
    races, null = raced
    found = races.race("compile", deque(), null)
    assert {seen.pair for seen in found} == set(range(FAST.min_pairs))
    assert Counter(compiled)["opened"] == 2 * FAST.min_pairs
    assert Counter(compiled)["tuned"] == FAST.min_pairs


def test_a_kernel_that_is_not_to_be_tuned_yet_runs_in_its_first_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")

    class Kernel:
        """As torch's: it keeps the quickest of its configurations when it is run first."""

        def __init__(self, *launchers: str) -> None:
            self.launchers: list[str] = []
            self.compiled = list(launchers)
            self.ran: list[str] = []
            self._cached_launcher: str | None = None

        def precompile(self) -> None:
            self.launchers = self.compiled

        def run(self) -> None:
            if self._cached_launcher is not None:
                self.ran.append(self._cached_launcher)
                return
            if not self.launchers:
                self.precompile()
            if len(self.launchers) > 1:
                self.launchers = self.launchers[-1:]
            (launcher,) = self.launchers
            self.ran.append(launcher)
            self._cached_launcher = launcher

    monkeypatch.setattr(heuristics, "CachingAutotuner", Kernel)
    kernel, single, run = Kernel("slow", "quick"), Kernel("only"), Kernel.run
    with untuned():
        kernel.run()
        single.run()
    assert Kernel.run is run
    assert (kernel.ran, kernel.launchers) == (["slow"], ["slow", "quick"])
    kernel.run()
    assert (kernel.ran, kernel.launchers) == (["slow", "quick"], ["quick"])
    assert single.ran == ["only"]
