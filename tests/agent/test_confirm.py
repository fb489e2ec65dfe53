"""What is measured again, when, where, and what must come of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.confirm import agree, upheld
from agent.engines.engine import LocalEngine
from agent.engines.lanes import LanePool, NoLane
from agent.journals.journal import Journal
from agent.proposing.scripted import ScriptedEvaluator, parse_script, scripted_evaluation
from sandbox.figures import Interval
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import calls, campaign, candidate, local_engine, script


def evaluation(speedup: float, status: Status = Status.PASSED):
    return scripted_evaluation(candidate("a", script(1)), EvalConfig(), status, speedup)


@pytest.mark.parametrize(
    ("search", "confirmation", "agrees"),
    [(2.0, 2.0, True), (2.0, 1.8, True), (2.0, 1.7, False), (2.0, 2.2, True), (2.0, 2.4, False)],
)
def test_figures_agree_within_ten_per_cent_of_their_intervals(search, confirmation, agrees):
    assert agree(evaluation(search).speedup, evaluation(confirmation).speedup) is agrees
    assert upheld(evaluation(search), evaluation(confirmation)) is agrees


@pytest.mark.parametrize(
    ("search", "confirmation", "agrees"),
    [
        ((13.1, 11.9, 14.5), (9.2, 7.0, 12.2), True),
        ((2.0, 1.8, 2.2), (1.2, 1.01, 1.6), False),
        ((1.5, 1.4, 1.6), (2.5, 1.74, 3.6), True),
        ((1.5, 1.4, 1.6), (2.5, 1.77, 3.6), False),
    ],
)
def test_a_confirmation_agrees_as_far_as_it_is_sure_itself(search, confirmation, agrees):
    first, second = (
        replace(found, timing=replace(found.timing, speedup=Interval(*interval)))
        for interval in (search, confirmation)
        if (found := evaluation(2.0)).timing is not None
    )
    assert agree(first.speedup, second.speedup) is agrees


def test_a_confirmation_that_fails_upholds_nothing():
    assert not upheld(evaluation(2.0), evaluation(2.0, Status.WRONG_VALUE))
    assert not upheld(evaluation(1.02), evaluation(1.0))


def test_a_best_that_is_not_confirmed_gives_way_to_the_next(tmp_path: Path):
    sources = [
        script(1, speedup=2.5, confirmed=1.2),
        script(2, speedup=2.0, confirmed=2.0),
        script(3, speedup=1.5),
    ]
    result = campaign(tmp_path / "run", {"a": sources})
    row = result.tasks[0]
    assert row.best is not None
    assert row.best.proposal.candidate.source == sources[1]
    assert row.confirmed
    assert row.verdict == "win"


def test_nothing_is_promoted_where_every_confirmation_disagrees(tmp_path: Path):
    sources = [script(n, speedup=2 + n / 10, confirmed=1.1) for n in range(6)]
    log = tmp_path / "log"
    result = campaign(tmp_path / "run", {"a": sources}, local_engine(log=log))
    row = result.tasks[0]
    assert row.verdict == "no win (not confirmed)" or not row.confirmed
    again = [name for name in calls(log, "evaluate") if calls(log, "evaluate").count(name) > 1]
    assert len(set(again)) == 3, "a task has three tries"


class FaultyAgain(ScriptedEvaluator):
    """Cannot measure a second time what says `fault`."""

    def evaluate(self, task, candidate, config, *, to_beat=None):
        if to_beat is None and "fault" in parse_script(candidate.source):
            return scripted_evaluation(candidate, config, Status.SANDBOX_ERROR, 1.0)
        return super().evaluate(task, candidate, config, to_beat=to_beat)


@pytest.mark.parametrize(
    ("others", "place", "verdict"),
    [((), 0, "unconfirmed win"), ((0.9,), 0, "unconfirmed win"), ((1.5,), 1, "win")],
    ids=["alone", "beside a slower one", "beside a lesser win"],
)
def test_a_fault_of_ours_refutes_no_winner(tmp_path: Path, others, place, verdict):
    slower = [script(n, speedup=speedup) for n, speedup in enumerate(others, 2)]
    sources = [script(1, speedup=2.0, fault="yes"), *slower]
    engine = LocalEngine(FaultyAgain)
    row = campaign(tmp_path / "run", {"a": sources}, engine).tasks[0]
    engine.close()
    assert row.best is not None
    assert row.best.proposal.candidate.source == sources[place]
    assert row.verdict == verdict
    assert row.speedup is not None


def test_what_nothing_may_confirm_any_more_does_not_hide_the_confirmed_best(tmp_path: Path):
    lucky = [script(n, speedup=4.0 + n, confirmed=1.1) for n in (1, 2, 3)]
    sources = [script(0, speedup=3.5), *lucky, script(4, speedup=9.0)]
    row = campaign(tmp_path / "run", {"a": sources}, proposals_per_round=1).tasks[0]
    assert row.best is not None
    assert row.best.proposal.candidate.source == sources[0]
    assert row.verdict == "win"


def test_a_confirmed_winner_is_not_lost_where_a_better_one_waits_for_its_confirmation(
    tmp_path: Path,
):
    sources = [script(0, speedup=3.5), script(1, speedup=3.6)]
    log, engine = tmp_path / "log", local_engine(log=tmp_path / "log")
    stopped = campaign(
        tmp_path / "run",
        {"a": sources},
        engine,
        interrupted=lambda: len(calls(log, "evaluate")) == 3,
        proposals_per_round=1,
    ).tasks[0]
    engine.close()
    assert (stopped.tried, stopped.verdict) == (2, "win")
    resumed = campaign(tmp_path / "run", {"a": sources}).tasks[0]
    assert resumed.best is not None
    assert resumed.best.proposal.candidate.source == sources[1]
    assert resumed.verdict == "win"


def test_three_times_is_confirmed_before_the_search_goes_on(tmp_path: Path):
    sources = [script(1, speedup=9.0, confirmed=1.1), script(2, speedup=1.5)]
    log = tmp_path / "log"
    campaign(tmp_path / "run", {"a": sources}, local_engine(log=log), proposals_per_round=1)
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("evaluate")]
    first, second = (candidate("a", source).id for source in sources)
    assert [line[1] for line in lines] == [first, first, second, second]
    assert lines[1][3] == "to_beat=None"
    # What was refuted is no bar for those that follow.
    assert lines[2][3] == "to_beat=1.0"


def test_a_modest_win_is_confirmed_once_at_the_end(tmp_path: Path):
    sources = [script(1, speedup=1.5), script(2, speedup=2.0), script(3, speedup=1.2)]
    log = tmp_path / "log"
    campaign(tmp_path / "run", {"a": sources}, local_engine(log=log), proposals_per_round=1)
    done = calls(log, "evaluate")
    assert done[-1] == done[1]
    assert len(done) == 4


def test_a_confirmed_best_gives_way_only_to_what_the_search_put_above_it(tmp_path: Path):
    near = [script(1, speedup=2.0, confirmed=1.9), script(2, speedup=1.95)]
    log = tmp_path / "near"
    campaign(tmp_path / "one", {"a": near}, local_engine(log=log), proposals_per_round=1)
    first, second = (candidate("a", source).id for source in near)
    assert calls(log, "evaluate") == [first, second, first]

    better = [script(1, speedup=4.0, confirmed=3.9), script(2, speedup=4.1)]
    log = tmp_path / "better"
    result = campaign(tmp_path / "two", {"a": better}, local_engine(log=log), proposals_per_round=1)
    first, second = (candidate("a", source).id for source in better)
    assert calls(log, "evaluate") == [first, first, second, second]
    assert result.tasks[0].best is not None
    assert result.tasks[0].best.proposal.candidate.id == second


def test_a_resumed_search_confirms_what_it_had_not(tmp_path: Path):
    sources = [script(1, speedup=9.0, confirmed=9.0), script(2, speedup=1.5)]
    campaign(tmp_path / "run", {"a": sources[:1]}, confirm=False, max_candidates_per_task=1)
    log = tmp_path / "log"
    campaign(tmp_path / "run", {"a": sources}, local_engine(log=log), proposals_per_round=1)
    assert calls(log, "evaluate")[0] == candidate("a", sources[0]).id
    with Journal(tmp_path / "run", read_only=True) as journal:
        assert journal.proposals("test/a")[0].confirmation is not None


class Numbered(NoLane):
    """A lane that knows which it is."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_a_confirmation_goes_to_another_lane():
    pool = LanePool("test", [lambda n=n: Numbered(n) for n in range(2)])
    for subject in ("a", "b", "c"):
        first = pool.submit(lambda lane: lane.number, subject=subject).result(10)
        again = pool.submit(lambda lane: lane.number, subject=subject, elsewhere=True).result(10)
        assert first != again
    pool.close()


def test_a_single_lane_confirms_its_own():
    pool = LanePool("test", [lambda: Numbered(0)])
    assert pool.submit(lambda lane: lane.number, subject="a").result(10) == 0
    assert pool.submit(lambda lane: lane.number, subject="a", elsewhere=True).result(10) == 0
    pool.close()


def test_both_lanes_of_an_engine_measure_a_winner(tmp_path: Path):
    log = tmp_path / "log"
    engine = LocalEngine(lambda index: ScriptedEvaluator(index, log=log), lanes=2)
    campaign(tmp_path / "run", {"a": [script(1, speedup=2.0)]}, engine)
    engine.close()
    assert len(calls(log, "evaluate")) == 2
