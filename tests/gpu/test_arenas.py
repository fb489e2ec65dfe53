"""Arenas of a search's candidate."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.machine.memory import DeviceArena
from sandbox.pairs import arenas
from sandbox.run import Run
from sandbox.types import Candidate, EvalConfig, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.fixture
def config() -> EvalConfig:
    return EvalConfig(search_batch_ms=1.0)


@pytest.fixture
def softmax() -> Task:
    [task] = load_tasks("builtin/softmax", "cuda")
    assert len(task.shapes) > 1
    return task


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where every arena was made: as a candidate was loaded, or in its turn."""
    places: list[str] = []
    loading = threading.local()
    init, load = DeviceArena.__init__, Run.load

    def counted(self: DeviceArena, *arguments: Any) -> None:
        places.append("loading" if getattr(loading, "now", False) else "turn")
        init(self, *arguments)

    def noted(self: Run, *arguments: Any) -> None:
        loading.now = True
        try:
            load(self, *arguments)
        finally:
            loading.now = False

    monkeypatch.setattr(DeviceArena, "__init__", counted)
    monkeypatch.setattr(Run, "load", noted)
    return places


def passes(evaluator: LocalEvaluator, config: EvalConfig, task: Task, comment: str) -> None:
    own = task.source.replace("class Model(", "class ModelNew(")
    candidate = Candidate(task.id, Language.TORCH, f"{own}\n# {comment}")
    found = evaluator.evaluate(task, candidate, config, to_beat=1.0)
    assert found.status is Status.PASSED, found.detail


def test_a_searchs_candidate_has_its_arenas_before_its_turn(
    evaluator: LocalEvaluator,
    config: EvalConfig,
    softmax: Task,
    made: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arenas, "EARLY_SHARE", 1 / 4)
    monkeypatch.setattr(arenas, "EACH_SHARE", 1 / 4)
    passes(evaluator, config, softmax, "first")
    made.clear()
    passes(evaluator, config, softmax, "again")
    assert set(made) == {"loading"}
    assert len(made) in {3, 4}, "of its inputs, slots, state, and of lone calls' inputs"


def test_large_ones_it_has_in_its_turn_and_once(
    evaluator: LocalEvaluator,
    config: EvalConfig,
    softmax: Task,
    made: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arenas, "EACH_SHARE", 0.0)
    passes(evaluator, config, softmax, "large first")
    made.clear()
    passes(evaluator, config, softmax, "large again")
    assert set(made) == {"turn"}
    assert len(made) in {3, 4}
