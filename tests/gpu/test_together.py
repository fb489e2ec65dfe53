"""Baselines without candidates: in groups, beside the next task, and one that is no graph."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from sandbox.baselines.bare import BarePair
from sandbox.baselines.baselines import TOGETHER
from sandbox.evaluator import LocalEvaluator
from sandbox.pairs.turn import Turn
from sandbox.prepare import Figures
from sandbox.types import EvalConfig, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

NO_GRAPH = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * float(x.abs().sum().item() > 0.0) + 1.0


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return []
"""

PRODUCTS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.{name}(x @ y)


def get_inputs():
    return [torch.randn(2048, 2048), torch.randn(2048, 2048)]


def get_init_inputs():
    return []
"""
"""Of which batches of 4 ms for four sides have room anywhere, at 30 us a call."""


@pytest.fixture
def alone(config: EvalConfig) -> EvalConfig:
    both = ("compile", "cuda_graph")
    return replace(config, baselines=both, baselines_only=True, batch_ms=4.0)


def test_a_model_that_is_no_graph_has_its_other_figures(
    evaluator: LocalEvaluator, alone: EvalConfig
) -> None:
    found = evaluator.figures(Task("test/no_graph", NO_GRAPH, "cuda"), alone)
    compiled, graph = found.baselines
    assert compiled.speedup is not None, compiled.detail
    assert graph.speedup is None
    assert graph.detail


def test_groups_share_the_references_batches_and_the_next_task_is_begun(
    evaluator: LocalEvaluator, alone: EvalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, turns = BarePair.turn, Counter[bool]()

    def seen(pair: BarePair, side: Any, sets: list[int]) -> Turn:
        turns[side is pair.reference] += 1
        return turn(pair, side, sets)

    monkeypatch.setattr(BarePair, "turn", seen)
    futures = list[Future[Figures]]()
    with ThreadPoolExecutor(2) as pool:
        for name in ("relu", "tanh"):
            task = Task(f"test/{name}", PRODUCTS.format(name=name), "cuda")
            futures.append(pool.submit(evaluator.figures, task, alone))
            while not (evaluator._turns._held or futures[0].done()):
                time.sleep(0.001)
    first, second = (future.result() for future in futures)
    for found in (first, second):
        assert all(one.speedup is not None for one in found.baselines), found.baselines
        assert found.seconds[TOGETHER] > 0
        assert "null" not in found.seconds
    assert turns[False] > 1.4 * turns[True]
    assert "start" in first.seconds
    assert "start" not in second.seconds  # its process has been begun
