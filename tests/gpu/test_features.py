"""Generated CUDA candidates on a GPU: every kind of row program is right at every shape."""

from __future__ import annotations

from typing import Any

import pytest

from agent.features.assemble import candidate
from sandbox.types import Task
from tests.agent.features_references import (
    BOUNDS,
    CHAINED,
    GROUPED,
    LEARNING,
    NAMES,
    POOLED,
    STRIDED,
    chained,
    cuda_points,
    grouped,
    learning,
    pooled,
    proposer,
    strided,
    task,
    traced,
    worst_error,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.mark.parametrize("name", NAMES)
def test_generated_kernels_are_right_at_every_shape(name: str) -> None:
    problem = task(name, "cuda")
    found = traced(problem)
    for point in cuda_points(found, 4):
        module: dict[str, Any] = {"__name__": "candidate"}
        exec(candidate(problem, found, point).source, module)
        assert worst_error(problem, module, "cuda") < BOUNDS["float32"], point


@pytest.mark.parametrize(
    "problem",
    [
        *(grouped(n, "cuda") for n in GROUPED),
        *(strided(n) for n in STRIDED),
        *(pooled(n) for n in POOLED),
        *(learning(n) for n in LEARNING),
        *(chained(n) for n in CHAINED),
    ],
    ids=lambda problem: str(problem.id),
)
def test_kernels_of_images_are_right_at_every_shape(problem: Task) -> None:
    proposals = proposer().propose(problem, [], 4)
    assert len(proposals) == 4
    for proposal in proposals:
        module: dict[str, Any] = {"__name__": "candidate"}
        exec(proposal.candidate.source, module)
        assert worst_error(problem, module, "cuda") < BOUNDS["float32"], proposal.features
