"""Queues for kernels of a search's workers."""

from __future__ import annotations

import pytest

from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

TELLS = "import os\nprint(os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS'), flush=True)\n"
SIDES = """
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sides = [torch.cuda.Stream() for _ in range(4)]

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
    evaluator: LocalEvaluator, config: EvalConfig, softmax: Task
) -> None:
    source = TELLS + softmax.source.replace("class Model(", "class ModelNew(")
    for to_beat, said in ((1.0, "2"), (None, "None")):
        found = evaluator.evaluate(softmax, of(softmax, source), config, to_beat=to_beat)
        assert found.status is Status.PASSED, found.detail
        assert found.stdout.split() == [said]
    graphs = source + "\n# as a graph"
    found = evaluator.evaluate(softmax, of(softmax, graphs), config, to_beat=1.0)
    assert found.stdout.split() == ["None"]


def test_work_on_several_streams_is_verified_and_timed_in_a_search(
    evaluator: LocalEvaluator, config: EvalConfig, softmax: Task
) -> None:
    found = evaluator.evaluate(softmax, of(softmax, SIDES), config, to_beat=1.0)
    assert found.status is Status.PASSED, found.detail
