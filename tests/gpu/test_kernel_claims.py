"""A CUDA candidate's registers and spills reach its evaluation."""

from contextlib import closing

import pytest

from agent.prompts.feedback import kernel_claims
from agent.prompts.render import example
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Task

pytestmark = pytest.mark.gpu


def test_registers_of_a_cupy_kernel_are_told():
    task = Task("test/bias_relu", example("reference"), "cuda")
    candidate = Candidate(task.id, Language.CUDA, example("cuda"))
    with closing(LocalEvaluator("cuda")) as evaluator:
        found = evaluator.evaluate(task, candidate, EvalConfig(baselines=()))
    assert found.passed, found.detail
    [line] = kernel_claims(found)
    assert line.startswith("kernel KERNEL: ")
    assert "no local memory" in line
    assert int(line.split()[2]) > 0
