"""Seconds by stage add up to what a block took."""

from dataclasses import dataclass

import pytest

from sandbox.stages import OTHER, Stages


@dataclass
class Clock:
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("sandbox.stages.time", found)
    return found


def test_what_no_stage_accounts_for_is_a_stage_of_its_own(clock: Clock) -> None:
    stage = Stages()
    with stage("before"):
        clock.sleep(2.0)
    with stage.other():
        clock.sleep(5.0)
        with stage("inside"):
            clock.sleep(10.0)
    assert stage.seconds == {"before": 2.0, "inside": 10.0, OTHER: 5.0}


def test_it_is_told_of_a_block_that_fails(clock: Clock) -> None:
    stage = Stages()

    def fails() -> None:
        with stage.other():
            clock.sleep(2.0)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fails()
    assert stage.seconds[OTHER] == 2.0
