"""How busy a campaign was: pulses in the journal, seconds by stage and device."""

import json
from dataclasses import replace

import pytest

from agent.journal import Journal
from agent.scripted import scripted_evaluation
from agent.spending import LANE_STAGES
from agent.timings import (
    BUSY,
    EVENT,
    Pulse,
    device_name,
    held_seconds,
    stages,
    timing_tables,
    timings,
)
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import campaign, candidate, script

SOURCES = {"a": [script(1, speedup=2.0), script(2, status="TIMEOUT")], "b": [script(3)]}


def test_a_campaign_leaves_its_rate_and_busy_share_in_the_journal(tmp_path):
    campaign(tmp_path, SOURCES)
    with Journal(tmp_path, read_only=True) as journal:
        found = timings(journal)
    last = found["pulses"][-1]
    assert last["evaluations"] == 4  # the winner of a is measured again
    assert last["per_minute"] == pytest.approx(60 * 4 / last["elapsed_s"])
    assert last["held_s"] == pytest.approx(4 * 0.03)
    assert set(last["queues"].values()) == {0}


def test_seconds_are_told_apart_by_stage_and_device(tmp_path):
    campaign(tmp_path, SOURCES)
    with Journal(tmp_path, read_only=True) as journal:
        found = timings(journal)
    known = found["devices"]["scripted"]
    assert known["evaluations"] == 4
    assert known["stages"]["time"] == {
        "count": 4,
        "total_s": pytest.approx(0.08),
        "median_s": 0.02,
        "most_s": 0.02,
    }
    table, line = timing_tables(json.loads(json.dumps(found)))
    assert [str(cell) for cell in table.columns[0].cells] == ["verify", "time"]
    assert "candidates/min" in line


def test_only_stages_that_hold_the_device_count_as_busy():
    done = scripted_evaluation(candidate("a", "x"), EvalConfig(), Status.PASSED, 1.0)
    seconds = {"build": 5.0, "load": 1.0, "wait": 2.0, "verify": 0.1, "warm": 0.2, "time": 0.3}
    done = replace(done, seconds=seconds, environment={"cpu": "some CPU", "gpu": "H200"})
    assert held_seconds(done) == pytest.approx(0.6)
    assert device_name(done) == "H200"
    assert list(stages([done])) == ["build", "load", "wait", "verify", "warm", "time"]


def test_a_pulse_of_nothing_is_no_division_by_zero():
    assert str(Pulse()) == "0.0 candidates/min, devices 0% busy"
    assert "3 to measure" in str(Pulse(10.0, 2, 5, 10.0, {"to measure": 3, "building": 0}))
    assert Pulse(10.0, 2, 5, 10.0).busy_share == 0.5


def test_pulses_are_recorded_as_events(tmp_path):
    campaign(tmp_path, {"a": [script(1)]})
    with Journal(tmp_path, read_only=True) as journal:
        assert json.loads(journal.events(EVENT)[-1])["lanes"] == 1


def test_a_lane_is_paid_for_while_it_holds_the_device_alone():
    assert set(BUSY) <= LANE_STAGES
    assert not LANE_STAGES & {"prepare", "build", "load", "wait", "total"}
