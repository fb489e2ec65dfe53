"""A candidate with more digits than the reference passes, where the reference has few."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

import sandbox.pair
import sandbox.timing
from sandbox import second_look
from sandbox.bounds import timed_bounds
from sandbox.evaluator import LocalEvaluator
from sandbox.given import Given
from sandbox.observation import CaseObservation, Errors
from sandbox.pool import Case
from sandbox.subject import Opening
from sandbox.trees import Layout
from sandbox.types import Candidate, Evaluation, Language, Status
from tests.sandbox.conftest import FAST, task_of

QUOTIENT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x / x.sum(-1, keepdim=True)


def get_inputs():
    return [torch.randn(64, 48)]


def get_init_inputs():
    return []
"""
"""Of 64 sums one in a batch is near zero: its row carries the sum's error."""
TASK = task_of(QUOTIENT, "test/quotient")
EXACT = "x = x.double(); return (x / x.sum(-1, keepdim=True)).float()"
COARSE = "return (x / x.sum(-1, keepdim=True)) * 1.01"


def candidate(body: str) -> Candidate:
    source = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
    return Candidate(TASK.id, Language.TORCH, f"{source}        {body}\n")


def judged(evaluator: LocalEvaluator, body: str) -> Evaluation:
    config = replace(FAST, baselines=(), scales=(), changes=(), max_sets=second_look.MOST)
    return evaluator.evaluate(TASK, candidate(body), config)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a second look found a round right, by turns: of most rounds, so little is allowed at
    the first.
    """

    def strict(case: Case) -> tuple[Errors, ...]:
        return tuple(bound.times(0.02) for bound in timed_bounds(case))

    monkeypatch.setattr(sandbox.timing, "timed_bounds", strict)
    found: list[bool] = []

    def look(*arguments: object) -> CaseObservation:
        case = second_look.second_look(*arguments)  # type: ignore[arg-type]
        found.append(case.within)
        return case

    monkeypatch.setattr(sandbox.pair, "second_look", look)
    return found


def test_more_digits_than_the_reference_has_are_right(
    evaluator: LocalEvaluator, looked: list[bool]
) -> None:
    assert judged(evaluator, EXACT).status is Status.PASSED
    assert looked
    assert all(looked)


def test_what_is_further_off_than_the_reference_stays_wrong(
    evaluator: LocalEvaluator, looked: list[bool]
) -> None:
    late = f"self.n = self.__dict__.get('n', 0) + 1\n        if self.n < 40:\n            {EXACT}"
    found = judged(evaluator, f"{late}\n        {COARSE}")
    assert found.status is Status.WRONG_VALUE
    assert looked
    assert not looked[-1]


def test_a_second_look_is_at_the_inputs_of_the_round_that_was(evaluator: LocalEvaluator) -> None:
    signature = evaluator.prepare(TASK, FAST).signature
    reference, _ = evaluator._stand.reference(TASK, FAST, Opening(known=signature))
    with closing(reference):
        reference.attach("inputs", Layout(signature.inputs, 4), signature.input_tree)
        given = Given(reference, reference, signature, FAST, lambda: None, new_weights=True)

        def values() -> torch.Tensor:
            return reference.set_bytes("inputs", 0, 4).clone()

        given.fill(4)
        used = values()
        with given.meanwhile_filled(3):
            pass
        assert not torch.equal(values(), used)
        given.refill()
        assert torch.equal(values(), used)
        given.fill(3)  # the next round does not have them again
        assert not torch.equal(values()[: 3 * len(used) // 4], used[: 3 * len(used) // 4])
