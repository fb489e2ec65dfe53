"""What a batch costs beyond its calls is taken off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Task
from tests.gpu import test_disturbed

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

REFERENCE = test_disturbed.REFERENCE.replace("1024, 4096", "4096, 4096")
CANDIDATE = REFERENCE.replace("class Model(", "class ModelNew(")


def test_a_call_takes_as_long_in_short_batches_as_in_long_ones(
    evaluator: LocalEvaluator, config: EvalConfig
) -> None:
    """What lies beyond the calls is 0.6 ms on an H200, 15 % of the short ones."""
    task = Task("test/turns", REFERENCE, "cuda")
    candidate = Candidate(task.id, Language.TORCH, CANDIDATE)
    found = []
    for batch_ms in (4.0, 24.0):
        result = evaluator.evaluate(task, candidate, replace(config, batch_ms=batch_ms))
        assert result.timing is not None, result.detail
        found.append(result.timing)
    short, long = found
    assert short.sets < long.sets / 3
    assert short.reference_ms == pytest.approx(long.reference_ms, rel=0.025)
    assert short.candidate_ms == pytest.approx(long.candidate_ms, rel=0.025)
