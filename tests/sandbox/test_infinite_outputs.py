"""Outputs that are infinite, or no number, by design are compared; what overflows is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sandbox.checking.unbounded import kinds
from sandbox.types import Status
from tests.sandbox.conftest import FAST, SCALE, Evaluate, forward, renamed

RESULT = "torch.relu(x) * self.factor + 1.0"
TRIANGLE = "torch.where(torch.ones_like(x).tril() > 0, {}, float('-inf'))"
VERIFIED = replace(FAST, verify_only=True)


def reference(result: str, inputs: str = "torch.randn(7, 129)") -> str:
    return SCALE.replace(RESULT, result).replace("torch.randn(7, 129)", inputs)


@pytest.mark.parametrize(
    ("result", "same"),
    [
        (
            TRIANGLE.format("x * 3"),
            "(x * 3).masked_fill(torch.ones_like(x).tril() == 0, -torch.inf)",
        ),
        ("torch.log(torch.relu(x))", "torch.log2(x.clamp(min=0)) * 0.6931471805599453"),
        ("torch.sqrt(x)", "x ** 0.5"),
        ("torch.where(x > 2, float('nan'), x * 2)", "(x + x).masked_fill(x > 2, torch.nan)"),
        ("1 / torch.relu(x)", "torch.relu(x).reciprocal()"),
    ],
    ids=["masked", "logarithm of zero", "root", "marks", "quotient"],
)
def test_what_is_infinite_by_design_is_compared(evaluate: Evaluate, result: str, same: str) -> None:
    found = evaluate(forward(f"return {same}"), reference(result))
    assert found.status is Status.PASSED, found.detail


@pytest.mark.parametrize(
    "wrong",
    [
        "torch.full_like(x, -torch.inf)",
        "x.relu() * 3",
        TRIANGLE.format("x.abs() * 3"),
        TRIANGLE.format("x.bfloat16().float() * 3"),
        TRIANGLE.format("x * 3").replace("tril()", "tril(1)"),
        TRIANGLE.format("x * 3").replace("-inf", "nan"),
    ],
    ids=["all", "none", "signs", "precision", "a column", "another kind"],
)
def test_infinities_excuse_nothing_beside_them(evaluate: Evaluate, wrong: str) -> None:
    given = reference(TRIANGLE.format("x * 3"))
    found = evaluate(forward(f"return {wrong}"), given, config=VERIFIED)
    assert found.status is Status.WRONG_VALUE, found.detail


def test_timed_rounds_compare_hidden_inputs_beside_infinities(evaluate: Evaluate) -> None:
    """Right of positive inputs alone, after sixty calls."""
    given = reference(TRIANGLE.format("torch.relu(x) * 3 + 1"), "torch.rand(64, 129)")
    body = f"y = torch.relu(x) if len(CALLS) < 60 else x\nreturn {TRIANGLE.format('y * 3 + 1')}"
    lines = ["CALLS.append(0)", *body.split("\n")]
    found = evaluate(forward(*lines, top="CALLS = []"), given)
    assert found.status is Status.WRONG_VALUE, found.detail
    assert found.detail.startswith("timed rounds")


@pytest.mark.parametrize(
    "result",
    ["torch.exp(x * 60)", "x / 0", "torch.where(torch.arange(129) < 1, x, float('-inf'))"],
)
def test_what_overflows_and_what_is_hardly_finite_is_no_design(
    evaluate: Evaluate, result: str
) -> None:
    given = reference(result)
    found = evaluate(renamed(given), given)
    assert found.status is Status.INVALID_REFERENCE, found.detail


INF, NAN = torch.inf, torch.nan


def test_both_must_hold_the_same_and_enough_that_is_finite() -> None:
    held = torch.tensor([1.0, -INF, NAN, 2.0])
    ints = torch.tensor([1, 2])
    assert kinds([held.double(), ints], [held, ints]) == [{"-inf", "nan"}, set()]
    for other in ([1.0, INF, NAN, 2.0], [1.0, -INF, 0.0, 2.0], [1.0, -INF, NAN, INF]):
        assert kinds([held], [torch.tensor(other)]) is None
        assert kinds([torch.tensor(other)], [held]) is None
    few = torch.full((256,), -INF)
    few[0] = 1.0
    assert kinds([few], [few]) is None
    few[1] = 1.0
    assert kinds([few], [few]) == [{"-inf"}]
