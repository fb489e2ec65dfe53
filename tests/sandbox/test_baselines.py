"""What is done while baselines are timed, what is left out, and where room is short."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.compiling import Ahead, Compiling
from sandbox.errors import InvalidReference
from sandbox.evaluator import LocalEvaluator
from sandbox.handle import WorkerFailed
from sandbox.observation import Failure, FailureKind, RoundObservation
from sandbox.pair import ProcessPair
from sandbox.plan import Plan
from sandbox.race import Races
from sandbox.subject import Opening, Subject
from sandbox.types import EvalConfig, Task
from sandbox.worker.reference import ReferenceSession
from tests.sandbox.conftest import FAST, SCALE, task_of

ALONE = replace(FAST, baselines_only=True)
SHORT_OF_MEMORY = Failure("time", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")


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
    monkeypatch.setattr("sandbox.race.BESIDE_BYTES", 0)
    monkeypatch.setattr("sandbox.baselines.CORES_PER_COMPILER", 1)
    found = evaluator.prepare(task, config)
    assert found.baselines[0].speedup is not None
    assert made == [True]
    assert raced == [1]


@pytest.fixture
def compiled(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done for a compiled baseline, whose code is the reference's own."""
    done = list[str]()
    called, opened = ProcessPair.start, Races._start_pair

    def start(compiling: Compiling, task: Task, config: EvalConfig, *more: Any) -> Subject:
        opening = Opening(known=more[0])
        done.append("opened")
        return compiling.stand.reference(task, config, opening)[0]

    def keep(compiling: Compiling, subject: Subject, *, tuned: bool = True) -> None:
        done.append("kept" if tuned else "kept untuned")

    def call(pair: ProcessPair, *arguments: Any, **options: Any) -> Plan:
        found = called(pair, *arguments, **options)
        done.append("called")
        return found

    def pair(races: Races, wrap: str | None, ready: deque[Subject], number: int) -> Subject:
        done.append(f"pair {number}")
        return opened(races, wrap, ready, number)

    monkeypatch.setattr(Compiling, "start", start)
    monkeypatch.setattr(Compiling, "keep", keep)
    monkeypatch.setattr(ProcessPair, "start", call)
    monkeypatch.setattr(Races, "_start_pair", pair)
    return done


def test_code_that_times_its_configurations_is_compiled_ahead_and_tuned_where_it_is_alone(
    evaluator: LocalEvaluator, compiled: list[str]
) -> None:
    task = task_of(SCALE.replace("1.0", "4.625"))
    signature = evaluator.prepare(task, FAST).signature
    ahead = Ahead(evaluator._preparer.baselines.compiling, task, FAST, signature)
    ahead.tunes = True
    compiled.clear()
    with closing(ahead):
        ahead.begin(range(3), 3)
        ahead.finish()
        assert compiled == ["opened", "kept untuned", "opened"]
        assert len(ahead.ready) == 1
        ahead.begin(range(1, 3), 3)  # the others have the first one's code, once it is tuned
        ahead.finish()
        assert len(ahead.ready) == 1


def test_the_first_pairs_code_serves_the_next_pair_which_is_opened_beside_its_rounds(
    evaluator: LocalEvaluator, compiled: list[str]
) -> None:
    task = task_of(SCALE.replace("1.0", "4.75"))
    prepared = evaluator.prepare(task, FAST)
    baselines = evaluator._preparer.baselines
    with baselines.races(task, FAST, prepared.signature, prepared.plan) as races:
        compiled.clear()
        races.race("compile", deque(), prepared.null)
    expected = ["pair 0", "opened", "called", "kept", "pair 1", "opened", "called"]
    assert compiled[: len(expected)] == expected
    assert compiled.count("kept") == 1
