"""kill -9 at any moment, then the same command."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agent.engines.engine import LocalEngine
from agent.engines.idle import Deferred
from agent.journals.journal import Journal
from agent.loop.allocation import GRANTED
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.errors import ConfigError
from tests.agent.killable import Killable
from tests.agent.run_scripted import OPTIONS, SOURCES
from tests.agent.scripts import FullDisk, calls, campaign, local_engine, script

MODULE = "tests.agent.run_scripted"


@pytest.fixture(scope="module")
def killable() -> Iterator[Killable]:
    with Killable(MODULE) as made:
        yield made


def evaluated(folder: Path) -> set[str]:
    """Candidates whose evaluation the journal holds."""
    try:
        with Journal(folder, read_only=True) as journal:
            rows = [r for t in journal.tasks() for r in journal.proposals(t.id)]
    except ConfigError:
        return set()
    return {r.proposal.candidate.id for r in rows if r.evaluation is not None}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_finished_is_repeated_or_lost(killable, tmp_path, seed):
    dice = random.Random(seed)
    log, ended, kills, begun = tmp_path / "log", False, 0, False
    while not ended:
        safe = evaluated(tmp_path)
        log.unlink(missing_ok=True)
        ended = killable.run(
            str(tmp_path), kill_after_s=30.0 if kills == 6 else 0.1 + 0.4 * dice.random()
        )
        kills += not ended
        assert safe <= evaluated(tmp_path), "a finished evaluation was lost"
        assert not safe & set(calls(log, "start")), "a finished evaluation was repeated"
        begun |= not ended and len(evaluated(tmp_path)) > 0
    assert begun, "a kill met a campaign, not its beginning"
    assert len(evaluated(tmp_path)) == sum(len(s) for s in SOURCES.values())


def test_a_killed_campaign_decides_as_if_it_had_not_been(killable, tmp_path):
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    killed.mkdir()
    killable.run(str(killed), kill_after_s=0.3)
    campaign(killed, SOURCES, **OPTIONS)
    campaign(straight, SOURCES, **OPTIONS)
    for name in SOURCES:
        with Journal(killed) as one, Journal(straight) as other:
            assert one.attempts(f"test/{name}") == other.attempts(f"test/{name}")


def test_what_was_proposed_but_not_evaluated_comes_first(killable, tmp_path):
    log = tmp_path / "log"
    killable.run(str(tmp_path), kill_after_s=0.2)
    with Journal(tmp_path) as journal:
        pending = [r.proposal.candidate.id for r in journal.proposals("test/a") if r.pending]
    log.unlink(missing_ok=True)
    assert killable.run(str(tmp_path), kill_after_s=30.0)
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


def test_a_campaign_that_is_interrupted_before_its_engine_starts_starts_none(tmp_path):
    engine = Deferred("local", local_engine)
    result = campaign(tmp_path, {"a": [script(1)]}, engine, interrupted=lambda: True)
    assert engine.started is None
    assert (result.interrupted, result.tasks[0].verdict) == (True, "not tried")
    engine.close()


def test_what_a_fault_of_ours_kept_from_being_judged_is_judged_by_the_next_call(tmp_path):
    log, found = tmp_path / "log", []
    sources = {"a": [script(i, speedup=1.0 + i) for i in range(4)]}
    for make in (
        FullDisk,
        partial(ScriptedEvaluator, log=log),
        partial(ScriptedEvaluator, log=log),
    ):
        engine = LocalEngine(make)
        options = {"proposals_per_round": 2, "max_candidates_per_task": 4}
        [row] = campaign(tmp_path / "run", sources, engine, **options).tasks
        found.append((row.verdict, row.faults))
        engine.close()
    # The second round was proposed by what the first one came to, which therefore stays.
    assert found == [("none judged", 4), ("win", 2), ("win", 2)]
    with Journal(tmp_path / "run") as journal:
        [*_, one, best] = [r.proposal.candidate.id for r in journal.proposals("test/a")]
    assert calls(log, "start") == [one, best, best], "each once, and the best confirmed"


@pytest.mark.parametrize("detail", ['{"test/a": 2}', None])
def test_what_a_wave_was_decided_by_is_not_judged_again(tmp_path, detail):
    sources, engine = {"a": [script(1)]}, LocalEngine(FullDisk)
    campaign(tmp_path, sources, engine, max_candidates_per_task=1)
    engine.close()
    if detail is not None:
        with Journal(tmp_path) as journal:
            journal.record_event(GRANTED, detail=detail)
    engine = local_engine()
    [row] = campaign(tmp_path, sources, engine, max_candidates_per_task=1).tasks
    engine.close()
    assert row.faults == (0 if detail is None else 1)


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
