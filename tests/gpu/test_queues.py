"""Queues for kernels of a search's workers."""

from __future__ import annotations

from typing import Any

import pytest

from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.machine.queues import SEARCHED, role_of
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, EvalConfig, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

SIDES = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        made = getattr(torch.cuda, "Str" + "eam")
        self.sides = [made() for _ in range(4)]

    def forward(self, x):
        out, here = torch.empty_like(x), torch.cuda.current_stream()
        rows = torch.tensor_split(torch.arange(len(x)), len(self.sides))
        for side, part in zip(self.sides, rows):
            side.wait_stream(here)
            with torch.cuda.stream(side):
                first, last = int(part[0]), int(part[-1]) + 1
                torch.softmax(x[first:last], dim=-1, out=out[first:last])
            here.wait_stream(side)
        return out
"""


@pytest.fixture
def softmax() -> Task:
    return load_tasks("builtin/softmax", "cuda")[0]


def of(task: Task, source: str) -> Candidate:
    return Candidate(task.id, Language.TORCH, source)


def test_a_search_has_few_queues_and_a_reported_figure_all(
    evaluator: LocalEvaluator, config: EvalConfig, softmax: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    candidate = Stand.candidate

    def noted(self: Stand, *arguments: Any, role: str = "candidate", **options: Any) -> Subject:
        used.append(role)
        return candidate(self, *arguments, role=role, **options)

    monkeypatch.setattr(Stand, "candidate", noted)
    source = softmax.source.replace("class Model(", "class ModelNew(")
    for number, (to_beat, comment) in enumerate(((1.0, ""), (None, ""), (1.0, "a graph"))):
        used.clear()
        told = f"{source}\n# {number} {comment}"
        found = evaluator.evaluate(softmax, of(softmax, told), config, to_beat=to_beat)
        assert found.status is Status.PASSED, found.detail
        first, *further = used
        assert first == ("candidate" if comment else SEARCHED)
        assert SEARCHED not in further
        assert further or to_beat is not None


def test_work_on_more_streams_than_queues_is_verified_and_timed_in_a_search(
    evaluator: LocalEvaluator, config: EvalConfig, softmax: Task
) -> None:
    assert role_of(SIDES, "cuda") == SEARCHED, "it hides that it makes streams"
    found = evaluator.evaluate(softmax, of(softmax, SIDES), config, to_beat=1.0)
    assert found.status is Status.PASSED, found.detail
