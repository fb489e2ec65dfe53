"""What counts as a disturbed GPU: judged from two looks, without a GPU."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest

from sandbox.errors import SandboxFault
from sandbox.machine.gpu_state import GpuState, GpuWatch, disturbance, undisturbed

QUIET = GpuState(
    taken_s=100.0,
    foreign=frozenset(),
    at_work=frozenset(),
    throttling=0,
    thermal_ns=5_000,
    memory_errors=3,
)
LATER = replace(QUIET, taken_s=101.0)
IDLE_NEIGHBOUR = frozenset({4321})


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(LATER, foreign=IDLE_NEIGHBOUR, at_work=IDLE_NEIGHBOUR), "4321"),
        (replace(LATER, foreign=IDLE_NEIGHBOUR, at_work=None), "4321"),
        (replace(LATER, throttling=0x40), "hardware thermal slowdown"),
        (replace(LATER, throttling=0x88), "hardware slowdown, power brake"),
        (replace(LATER, thermal_ns=5_000 + 50_000_000), "50 ms"),
        (replace(LATER, memory_errors=4), "1 uncorrectable"),
    ],
)
def test_a_disturbed_gpu_is_named(after: GpuState, words: str) -> None:
    assert words in disturbance(QUIET, after)


@pytest.mark.parametrize(
    "after",
    [
        LATER,
        replace(LATER, foreign=IDLE_NEIGHBOUR),
        replace(LATER, throttling=0x01 | 0x02 | 0x04),
        replace(LATER, thermal_ns=5_000 + 10_000_000),
        GpuState(101.0, None, None, None, None, None),
    ],
    ids=["quiet", "an idle context", "idle, set clocks, power cap", "a short dip", "not told"],
)
def test_what_both_sides_meet_alike_is_no_disturbance(after: GpuState) -> None:
    assert disturbance(QUIET, after) == ""


def test_a_neighbour_that_ended_meanwhile_counts_where_use_is_not_told() -> None:
    before = replace(QUIET, foreign=IDLE_NEIGHBOUR, at_work=None)
    assert "4321" in disturbance(before, replace(LATER, at_work=None))


class Throttled(GpuWatch):
    """Hot from its second look on, as a GPU that heats up under load."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self, since: GpuState | None = None) -> GpuState:
        self.looks += 1
        return QUIET if self.looks == 1 else replace(LATER, throttling=0x20)


def test_what_was_timed_on_a_disturbed_gpu_is_our_fault() -> None:
    with pytest.raises(SandboxFault, match="thermal"), undisturbed(Throttled()):
        pass


def test_a_look_that_was_begun_before_is_the_first_one() -> None:
    looking: Future[GpuState] = Future()
    looking.set_result(replace(QUIET, throttling=0x40))
    calm = Throttled()
    with pytest.raises(SandboxFault, match="hardware thermal"), undisturbed(calm, looking):
        pass
    assert calm.looks == 1


def test_an_error_inside_comes_before_the_disturbance() -> None:
    with pytest.raises(KeyError), undisturbed(Throttled()):
        raise KeyError


def test_without_a_gpu_nothing_is_asked() -> None:
    with undisturbed(None):
        pass
