"""Outputs stay what they are after later calls, over the rounds of a pair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.types import Status
from tests.sandbox.conftest import FAST, Evaluate, forward

SEVERAL = replace(FAST, rounds=6)

BY_ADDRESS = """
buffers = {}

def buffer(x):
    return buffers.setdefault((x.data_ptr(), x.shape), torch.empty_like(x))
"""


def test_a_buffer_that_comes_round_after_the_batch_is_wrong(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sandbox.checking.verify.HASTY_BYTES", 0
    )  # verification would see it before
    source = forward("return buffer(x).copy_(y)", top=BY_ADDRESS)
    found = evaluate(source, config=SEVERAL)
    assert found.status is Status.WRONG_VALUE, found.detail
    assert "changed after later calls" in found.detail


def test_fresh_outputs_and_kept_workspaces_stay_right(evaluate: Evaluate) -> None:
    source = forward("return buffer(x).copy_(y).clone()", top=BY_ADDRESS)
    found = evaluate(source, config=SEVERAL)
    assert found.status is not Status.WRONG_VALUE, found.detail
    assert all(case.passed for case in found.cases)
