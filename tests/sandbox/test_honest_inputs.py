"""Right code that relies on what inputs visibly are passes; who knows them by heart does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.types import EvalConfig, Evaluation, Status
from tests.sandbox.conftest import FAST, Evaluate

VERIFIED = replace(FAST, verify_only=True)
ROOMY = replace(FAST, batch_ms=4.0, max_sets=32)
"""Batches that have room for hidden inputs of every kind, on a busy machine too."""
TASK = """
import torch
import torch.nn.functional as F
from torch import nn

CALLS = [0]


class {name}(nn.Module):
    def forward(self, {arguments}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def judged(
    evaluate: Evaluate, inputs: str, wanted: str, body: str, config: EvalConfig = VERIFIED
) -> Evaluation:
    arguments = ", ".join("xyz"[: inputs.count(" | ") + 1])
    inputs = inputs.replace(" | ", ", ")
    fields = {"arguments": arguments, "inputs": inputs}
    source = TASK.format(name="ModelNew", body=body.replace("\n", "\n        "), **fields)
    reference = TASK.format(name="Model", body=f"return {wanted}", **fields)
    return evaluate(source, reference, config=config)


RANDOM = "torch.randn(32, 64) | (torch.rand(32, 64) > 0.3).float()"
CAUSAL = "torch.randn(64, 64) | torch.tril(torch.ones(64, 64))"
BOOLEANS = "torch.randn(64, 64) | torch.ones(64, 64, dtype=torch.bool).tril()"
PADDED = "torch.randn(16, 64) | torch.arange(64) < 48"
ADDED = "torch.randn(64, 64) | torch.triu(torch.full((64, 64), {far}), 1)"
SIGNS = "torch.randn(32, 64) | torch.randint(0, 2, (32, 64)).float() * 2 - 1"
ONE_HOT = "torch.randn(64, 40) | F.one_hot(torch.randint(0, 40, (64,)), 40).float()"
MASKED = "x.masked_fill(~y, -1e9).softmax(-1)"
HIDDEN = "x.masked_fill(y == 0, -1e9).softmax(-1)"
SEEN = "return torch.where(y < -1, float('-inf'), x).softmax(-1)"
BY_HEART = "x.masked_fill(torch.ones_like(x).tril() == 0, float('-inf')).softmax(-1)"


@pytest.mark.parametrize(
    ("inputs", "wanted", "body"),
    [
        (RANDOM, "x * y", "return torch.where(y > 0.5, x, 0.0)"),
        (RANDOM, HIDDEN, "return torch.where(y > 0.5, x, float('-inf')).softmax(-1)"),
        (CAUSAL, HIDDEN, "return torch.where(y != 0, x, float('-inf')).softmax(-1)"),
        (BOOLEANS, MASKED, "return torch.where(y, x, float('-inf')).softmax(-1)"),
        (PADDED, MASKED, "return torch.where(y, x, float('-inf')).softmax(-1)"),
        (ADDED.format(far="-1e9"), "(x + y).softmax(-1)", SEEN),
        (
            ADDED.format(far="-1e4"),
            "(x @ x.T / 8 + y).softmax(-1)",
            SEEN.replace(", x)", ", x @ x.T / 8)"),
        ),
        (ADDED.format(far="float('-inf')"), "(x + y).softmax(-1)", SEEN),
        (SIGNS, "F.relu(1 - x * y)", "return F.relu(1 - torch.where(y > 0, x, -x))"),
        (
            ONE_HOT,
            "-(y * x.log_softmax(-1)).sum(-1)",
            "return F.cross_entropy(x, y.argmax(-1), reduction='none')",
        ),
    ],
    ids=[
        "factor",
        "filled",
        "causal",
        "booleans",
        "padding",
        "added",
        "of products",
        "infinite",
        "signs",
        "one-hot",
    ],
)
@pytest.mark.slow
def test_a_mask_keeps_its_two_values(
    evaluate: Evaluate, inputs: str, wanted: str, body: str
) -> None:
    found = judged(evaluate, inputs, wanted, body, FAST)
    assert found.status is Status.PASSED, found.detail


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (CAUSAL, HIDDEN),
        (BOOLEANS, MASKED),
        (BOOLEANS.replace("bool", "int64"), HIDDEN),
        (ADDED.format(far="-1e9"), "(x + y).softmax(-1)"),
        (ADDED.format(far="float('-inf')"), "(x + y).softmax(-1)"),
    ],
    ids=["filled", "booleans", "integers", "added", "infinite"],
)
@pytest.mark.parametrize("from_call", [0, 60])
@pytest.mark.slow
def test_code_that_knows_a_constant_mask_by_heart_is_wrong(
    evaluate: Evaluate, inputs: str, wanted: str, from_call: int
) -> None:
    body = f"CALLS[0] += 1\nreturn {BY_HEART} if CALLS[0] > {from_call} else {wanted}"
    found = judged(evaluate, inputs, wanted, body, ROOMY)
    assert found.status is Status.WRONG_VALUE, found.detail
    assert "masks moved" in found.detail


@pytest.mark.parametrize("bound", ["LARGE_BYTES", "CHANGED_BYTES"])
def test_of_large_inputs_masks_move_too(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Where few cases are made."""
    monkeypatch.setattr(f"sandbox.checking.pool.{bound}", 0)
    inputs = f"{CAUSAL} * len({bound!r}) / {len(bound)}"
    found = judged(evaluate, inputs, HIDDEN, f"return {HIDDEN}")
    assert found.status is Status.PASSED, found.detail
    found = judged(evaluate, inputs, HIDDEN, f"return {BY_HEART}")
    assert found.status is Status.WRONG_VALUE, found.detail


@pytest.mark.parametrize(
    ("inputs", "wanted", "body"),
    [
        (RANDOM, "x * y", "return x.clone()"),
        (RANDOM.replace(".float()", ".float() * 1.25"), "x * y", "return x * (y != 0) * 1.25"),
        ("torch.randn(32, 64) | torch.ones(64)", "x * y", "return x.clone()"),
        ("torch.randn(64, 64) | torch.eye(64)", "x @ y", "return x.clone()"),
        ("torch.randn(8, 64) | torch.full((64,), 1 / 64)", "x @ y", "return x.mean(-1)"),
        (
            "torch.randn(64, 8) | torch.arange(64).float()",
            "x * y.cos()[:, None]",
            "return x * torch.arange(64).cos()[:, None]",
        ),
        (
            "(torch.rand(64, 64) > 0.5).float() | (torch.rand(64, 64) > 0.5).float()",
            "x @ y",
            "return ((x != 0).bfloat16() @ (y != 0).bfloat16()).float()",
        ),
    ],
    ids=["ignored", "a magnitude", "ones", "unit", "uniform", "positions", "bits"],
)
def test_numbers_that_are_no_mask_are_scaled_still(
    evaluate: Evaluate, inputs: str, wanted: str, body: str
) -> None:
    found = judged(evaluate, inputs, wanted, body)
    assert found.status is Status.WRONG_VALUE, found.detail


LABELS = "torch.randn(64, 40) | torch.randint(0, 40, (64,)).float()"
PLACES = "torch.randn(64, 64) | torch.arange(64).float()"
ENTROPY = "F.cross_entropy(x, y.long(), reduction='none')"
PICKED = "return -x.log_softmax(-1).gather(1, {}[:, None]).squeeze(1)"


def test_labels_that_are_floats_stay_labels_and_are_not_jittered(evaluate: Evaluate) -> None:
    """A hair below one lies another: whatever was handed in was within the bound of that."""
    found = judged(evaluate, LABELS, ENTROPY, PICKED.format("y.int().long()"), FAST)
    assert found.status is Status.PASSED, found.detail


@pytest.mark.parametrize(
    ("inputs", "label"), [(LABELS, "(y.long() // 2 * 2)"), (PLACES, "torch.arange(64)")]
)
def test_labels_that_are_read_in_part_or_known_by_heart_are_wrong(
    evaluate: Evaluate, inputs: str, label: str
) -> None:
    found = judged(evaluate, inputs, ENTROPY, PICKED.format(label))
    assert found.status is Status.WRONG_VALUE, found.detail


SORTED = "torch.randn(16, 64) | torch.randn(63).sort().values"
SOFT = "torch.randn(64, 40) | torch.randn(64, 40).softmax(-1)"
POSITIVE = "(lambda a: a @ a.T / 24 + torch.eye(24))(torch.randn(24, 24)) | torch.randn(24, 3)"
CROSS = "-(y * x.log_softmax(-1)).sum(-1)"


@pytest.mark.parametrize(
    ("inputs", "wanted", "body"),
    [
        (SORTED, "torch.bucketize(x, y)", "return (y < x[..., None]).sum(-1)"),
        (SOFT, CROSS, "return x.logsumexp(-1) - (x * y).sum(-1)"),
        (
            POSITIVE,
            "torch.linalg.solve(x, y)",
            "return torch.cholesky_solve(y, torch.linalg.cholesky(x))",
        ),
    ],
    ids=["in order", "sums to one", "positive definite"],
)
def test_inputs_keep_their_order_their_sums_and_what_makes_them_definite(
    evaluate: Evaluate, inputs: str, wanted: str, body: str
) -> None:
    found = judged(evaluate, inputs, wanted, body, FAST)
    assert found.status is Status.PASSED, found.detail
    assert any("inputs x -1" in case.name for case in found.cases)


@pytest.mark.parametrize(
    ("inputs", "wanted", "body"),
    [
        (
            SORTED,
            "torch.bucketize(x, y)",
            "return ((x - y[0]) / (y[-1] - y[0]) * 62).ceil().long().clamp(0, 63)",
        ),
        (
            SORTED.replace("torch.randn(63).sort().values", "torch.linspace(-2, 2, 63)"),
            "torch.bucketize(x, y)",
            "return torch.bucketize(x, torch.linspace(-2, 2, 63))",
        ),
        (SOFT, CROSS, "return x.logsumexp(-1) - (x * y.clamp(max=0.6)).sum(-1)"),
        (POSITIVE, "torch.linalg.solve(x, y)", "return y / x.diagonal()[:, None]"),
        (POSITIVE, "x.relu() @ y", "return x @ y"),
    ],
    ids=["evenly spaced", "known bounds", "no peak", "a diagonal", "no signs"],
)
def test_order_sums_and_definiteness_excuse_nothing_else(
    evaluate: Evaluate, inputs: str, wanted: str, body: str
) -> None:
    found = judged(evaluate, inputs, wanted, body)
    assert found.status is Status.WRONG_VALUE, found.detail
