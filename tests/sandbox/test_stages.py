"""Seconds by stage add up to what a block took."""

import time

import pytest

from sandbox.stages import OTHER, Stages


def test_what_no_stage_accounts_for_is_a_stage_of_its_own() -> None:
    stage = Stages()
    with stage("before"):
        time.sleep(0.02)
    start = time.monotonic()
    with stage.other():
        time.sleep(0.05)
        with stage("inside"):
            time.sleep(0.1)
    took = time.monotonic() - start
    assert stage.seconds["inside"] + stage.seconds[OTHER] == pytest.approx(took, abs=0.01)
    assert 0.05 <= stage.seconds[OTHER] < 0.1


def test_it_is_told_of_a_block_that_fails() -> None:
    stage = Stages()

    def fails() -> None:
        with stage.other():
            time.sleep(0.02)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        fails()
    assert stage.seconds[OTHER] >= 0.02
