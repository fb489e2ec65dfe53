"""A GPU at work behind "done": when it is charged, and when it convicts."""

from __future__ import annotations

import pytest

from sandbox.observation import RoundObservation
from sandbox.overrun import convicted
from sandbox.statistics import summarise

IDLE_S = 0.0002
"""What an idle GPU takes to come back to our context."""


def batch(left_s: float, reference_left_s: float = IDLE_S) -> RoundObservation:
    return RoundObservation(
        0, False, 10, 0.01, 0.005,
        reference_collect_s=0.003 + reference_left_s, candidate_collect_s=0.003 + left_s,
        reference_left_s=reference_left_s, candidate_left_s=left_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("left", "guilty"),
    [
        ([0.005] * 4, True),
        ([0.005, 0.0045, 0.006], True),
        ([0.005] * 2, False),
        ([0.005, 0.005, 0.005, IDLE_S], False),
        ([IDLE_S + 0.0001] * 4, False),
        ([IDLE_S] * 4, False),
    ],
    ids=["always", "about", "in two rounds", "but for one", "a little", "idle"],
)
def test_a_gpu_that_works_on_behind_every_batch_convicts(left: list[float], guilty: bool) -> None:
    found = convicted([batch(seconds) for seconds in left])
    assert found is not None
    assert found[0] is guilty
    assert f"{sorted(left)[len(left) // 2] * 1e6:.0f} us after a batch" in found[1] or not guilty


def test_a_neighbour_on_the_gpu_convicts_nobody() -> None:
    found = convicted([batch(0.005, 0.006), batch(0.005), batch(0.005)])
    assert found is not None
    assert not found[0]


def test_on_a_cpu_there_is_nothing_to_see() -> None:
    assert convicted([RoundObservation(0, False, 10, 0.01, 0.005)]) is None
    assert convicted([RoundObservation(0, True, 8, 0.01, 0.005, 1, 1, 1, 1)]) is None


def test_what_was_left_running_is_paid_for() -> None:
    (pair,) = summarise([batch(IDLE_S + 0.005)] * 4)
    assert pair.candidate_ms == pytest.approx(1.0)
