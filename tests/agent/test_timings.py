"""How busy a campaign was: pulses in the journal, seconds by stage and device."""

import json
from dataclasses import replace

import pytest

from agent.journals.journal import Journal
from agent.journals.spending import spending
from agent.journals.timings import (
    BESIDE,
    EVENT,
    HELD,
    Pulse,
    call_lines,
    device_name,
    held_seconds,
    stages,
    timing_tables,
    timings,
)
from agent.loop.budget import CampaignConfig
from agent.proposing.scripted import scripted_evaluation
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import campaign, candidate, script

SOURCES = {"a": [script(1, speedup=2.0), script(2, status="TIMEOUT")], "b": [script(3)]}


def test_a_campaign_leaves_its_rate_and_held_share_in_the_journal(tmp_path):
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
    table, prepared, line = timing_tables(json.loads(json.dumps(found)))
    assert [str(cell) for cell in table.columns[0].cells] == ["verify", "time", "held"]
    assert prepared == "2 tasks known from an earlier run"
    found["prepared_s"] = {"a": {"null": 2.0, "cases": 0.4}, "b": {"null": 1.5, "cases": 0.4}}
    found["prepared_s"]["c"] = {}
    assert timing_tables(found)[1:3] == [
        "2 tasks prepared, the first time in 4 s (null 4)",
        "1 task known from an earlier run",
    ]
    assert "candidates/min" in line


def test_only_stages_that_hold_the_device_count_as_busy():
    done = scripted_evaluation(candidate("a", "x"), EvalConfig(), Status.PASSED, 1.0)
    beside = dict.fromkeys(BESIDE, 5.0)
    seconds = beside | dict.fromkeys(reversed(HELD), 0.1)
    done = replace(done, seconds=seconds, environment={"cpu": "some CPU", "gpu": "H200"})
    assert held_seconds(done) == pytest.approx(0.7)
    assert device_name(done) == "H200"
    assert list(stages([done])) == [*BESIDE, *HELD, "held"]


def test_what_no_stage_names_is_told_so_that_stages_add_up_to_the_total():
    done = scripted_evaluation(candidate("a", "x"), EvalConfig(), Status.PASSED, 1.0)
    done = replace(done, seconds={"wait": 2.0, "time": 1.0, "new": 0.5, "total": 5.0})
    found = {name: s["total_s"] for name, s in stages([done]).items()}
    assert list(found) == ["wait", "time", "new", "held", "rest", "total"]
    assert (found["held"], found["rest"], found["total"]) == (1.0, 1.5, 5.0)


def test_a_pulse_of_nothing_is_no_division_by_zero():
    assert str(Pulse()) == "0.0 candidates/min, devices held 0%"
    assert "3 to measure" in str(Pulse(10.0, 2, 5, 10.0, {"to measure": 3, "building": 0}))
    assert Pulse(10.0, 2, 5, 10.0).held_share == 0.5


def test_pulses_are_recorded_as_events(tmp_path):
    campaign(tmp_path, {"a": [script(1)]})
    with Journal(tmp_path, read_only=True) as journal:
        assert json.loads(journal.events(EVENT)[-1])["lanes"] == 1


def test_a_lane_is_paid_for_while_it_is_held(tmp_path):
    campaign(tmp_path, SOURCES)
    with Journal(tmp_path, read_only=True) as journal:
        [known] = timings(journal)["devices"].values()
        assert spending(journal).lane_seconds == pytest.approx(known["stages"]["held"]["total_s"])
    assert not set(HELD) & {*BESIDE, "total"}


def test_a_resume_with_nothing_to_do_hides_no_figures(tmp_path):
    for _ in range(2):
        with Journal(tmp_path) as journal:
            journal.record_config(CampaignConfig())  # begins a call
        campaign(tmp_path, SOURCES)
    with Journal(tmp_path, read_only=True) as journal:
        found = timings(journal)
    assert [pulse["evaluations"] for pulse in found["pulses"]] == [4, 0]
    *_, line = timing_tables(found)
    assert line.startswith("call 1: after 0 s on 1 lane: ")


def test_every_call_that_evaluated_anything_is_told_or_else_the_last():
    nothing, something = Pulse(1.0, 2), Pulse(60.0, 1, evaluations=3)
    told = call_lines([something, nothing, something])
    assert [line.partition(":")[0] for line in told] == ["call 1", "call 3"]
    assert call_lines([nothing, nothing])[0].startswith("call 2: after 1 s on 2 lanes")
    assert call_lines([something])[0].startswith("after 60 s on 1 lane: 3.0 candidates/min")
