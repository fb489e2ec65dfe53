"""A CUDA candidate's registers and spills reach its evaluation."""

from __future__ import annotations

import pytest

from agent.prompts.feedback import kernel_claims
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language
from tests.gpu.test_languages import TASK, source

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_registers_of_a_cupy_kernel_are_told(evaluator: LocalEvaluator, config: EvalConfig) -> None:
    found = evaluator.evaluate(TASK, Candidate(TASK.id, Language.CUDA, source("cuda")), config)
    assert found.passed, found.detail
    [line] = kernel_claims(found)
    assert line.startswith("kernel KERNEL: ")
    assert "no local memory" in line
    assert int(line.split()[2]) > 0
