"""The line through batches of different lengths."""

from __future__ import annotations

import pytest

from benchmarks.batch_cost import fitted, line

CALLS = (10, 25, 50, 100)


def test_what_batches_take_beyond_their_calls_is_told_from_the_calls() -> None:
    cost_s, call_s = fitted(CALLS, [0.00025 + n * 0.0002 for n in CALLS])
    assert cost_s == pytest.approx(0.00025)
    assert call_s == pytest.approx(0.0002)


def test_a_long_batch_that_is_off_by_a_hundredth_does_not_decide_what_is_left() -> None:
    seconds = [n * 0.0002 for n in CALLS]
    cost_s, _ = fitted(CALLS, [*seconds[:3], seconds[3] * 1.01])
    assert abs(cost_s) < 50e-6


def test_a_task_that_has_no_two_lengths_says_so() -> None:
    assert line({"task": "t", "batches": [[4, 1.0, 1.0]]}) == "t: no two lengths"
