"""kill -9 at any moment, then the same command."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.idle import Deferred
from agent.journal import Journal
from sandbox.errors import ConfigError
from tests.agent.run_scripted import OPTIONS, SOURCES
from tests.agent.scripts import calls, campaign, local_engine, script

COMMAND = [sys.executable, "-m", "tests.agent.run_scripted"]
ROOT = Path(__file__).parents[2]
START_S = 0.35
"""Until the process has imported what it needs, about."""


def evaluated(folder: Path) -> set[str]:
    """Candidates whose evaluation the journal holds."""
    try:
        with Journal(folder, read_only=True) as journal:
            rows = [r for t in journal.tasks() for r in journal.proposals(t.id)]
    except ConfigError:
        return set()
    return {r.proposal.candidate.id for r in rows if r.evaluation is not None}


def run_and_kill(folder: Path, after_s: float) -> bool:
    """True if the campaign ended before it could be killed."""
    process = subprocess.Popen([*COMMAND, str(folder)], cwd=ROOT)
    try:
        assert process.wait(after_s) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return False
    return True


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_finished_is_repeated_or_lost(tmp_path, seed):
    dice = random.Random(seed)
    log, ended, kills = tmp_path / "log", False, 0
    while not ended:
        safe = evaluated(tmp_path)
        log.unlink(missing_ok=True)
        ended = run_and_kill(tmp_path, 30.0 if kills == 6 else START_S + 0.4 * dice.random())
        kills += not ended
        assert safe <= evaluated(tmp_path), "a finished evaluation was lost"
        assert not safe & set(calls(log, "start")), "a finished evaluation was repeated"
    assert kills > 0
    assert len(evaluated(tmp_path)) == sum(len(s) for s in SOURCES.values())


def test_a_killed_campaign_decides_as_if_it_had_not_been(tmp_path):
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    killed.mkdir()
    run_and_kill(killed, START_S + 0.3)
    campaign(killed, SOURCES, **OPTIONS)
    campaign(straight, SOURCES, **OPTIONS)
    for name in SOURCES:
        with Journal(killed) as one, Journal(straight) as other:
            assert one.attempts(f"test/{name}") == other.attempts(f"test/{name}")


def test_what_was_proposed_but_not_evaluated_comes_first(tmp_path):
    log = tmp_path / "log"
    run_and_kill(tmp_path, START_S + 0.2)
    with Journal(tmp_path) as journal:
        pending = [r.proposal.candidate.id for r in journal.proposals("test/a") if r.pending]
    log.unlink(missing_ok=True)
    assert run_and_kill(tmp_path, 30.0)
    in_a = [c for c in calls(log, "start") if c in evaluated(tmp_path)]
    assert set(pending) <= set(in_a[: 2 * len(pending) + 3])


def test_a_campaign_that_is_over_starts_no_engine(tmp_path):
    sources = {"a": [script(1, speedup=2.0), script(2)], "b": [script(3)], "none": []}
    first = campaign(tmp_path, sources, max_candidates_per_task=1)
    engine = Deferred("local", local_engine)
    again = campaign(tmp_path, sources, engine, max_candidates_per_task=1)
    assert engine.started is None
    assert [task.verdict for task in again.tasks] == ["win", "no win", "unsupported"]
    assert [task.verdict for task in first.tasks] == [task.verdict for task in again.tasks]
    engine.close()


@pytest.mark.parametrize("left", [{"max_candidates_per_task": 2}, {"confirm": True}])
def test_an_engine_is_started_for_whatever_is_left(tmp_path, left):
    sources = {"a": [script(1, speedup=2.0), script(2)], "b": [script(3)]}
    campaign(tmp_path, sources, max_candidates_per_task=1, confirm=False)
    engine = Deferred("local", local_engine)
    settings = {"max_candidates_per_task": 1, "confirm": False} | left
    result = campaign(tmp_path, sources, engine, **settings)
    assert engine.started is not None
    assert engine.lanes == 1
    assert (result.tried, result.tasks[0].confirmed) == (
        (3, False) if "confirm" not in left else (2, True)
    )
    engine.close()
