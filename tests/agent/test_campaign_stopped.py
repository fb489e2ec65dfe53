"""A campaign that is stopped prepares no task that nobody will use."""

import threading

import pytest

from agent.engines.engine import LocalEngine
from agent.journals.journal import Journal
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.loop.decisions import SEARCH_OVER
from agent.proposing.scripted import ScriptedEvaluator, ScriptedProposer
from agent.types import FIRST_TURN, Measured
from tests.agent.scripts import campaign, local_engine, make_task, script


class Preparing(LocalEngine):
    """Tasks are under preparation until `ends`; whether that can be left is told to it."""

    def __init__(self, *, leaves: bool, ends: threading.Event) -> None:
        super().__init__(ScriptedEvaluator)
        self.leaves, self.ends = leaves, ends

    def submit_prepare(self, task, config):
        return self._builders.submit(lambda _: self.ends.wait() and Measured())

    def abandon(self):
        return self.leaves


@pytest.mark.parametrize("leaves", [True, False])
def test_when_the_time_is_over_preparing_is_left_where_an_engine_can_end_it(tmp_path, leaves):
    ends = threading.Event()
    engine = Preparing(leaves=leaves, ends=ends)
    later = threading.Timer(30.0 if leaves else 1.5, ends.set)
    later.start()
    result = campaign(tmp_path, {"a": [script(1)]}, engine, max_seconds=0.5)
    assert ends.is_set() == (not leaves)
    assert result.tasks[0].reason == "max_seconds (0.5) is over"
    later.cancel()
    ends.set()
    engine.close()


def test_no_task_is_prepared_on_a_lane_that_is_open_when_the_time_is_over(tmp_path):
    ends, opened = threading.Event(), threading.Event()

    def slowly(_: int) -> ScriptedEvaluator:
        ends.wait(30)
        opened.set()
        return ScriptedEvaluator(log=tmp_path / "log")

    engine = LocalEngine(slowly)
    campaign(tmp_path / "run", {"a": [script(1)]}, engine, max_seconds=0.3)
    assert not opened.is_set()
    ends.set()
    engine.close()
    assert opened.is_set()
    assert not (tmp_path / "log").exists()


def test_a_winner_is_confirmed_while_proposals_are_still_awaited(tmp_path, clock):
    confirmed = threading.Event()

    class Late(ScriptedProposer):
        def propose(self, task, history, n, turn=FIRST_TURN):
            if history:
                clock.sleep(90)  # The time for searching is over, that for confirming is not.
                confirmed.wait(5)
                clock.sleep(20)
            return super().propose(task, history, n, turn)

    def on_event(row):
        if row.confirmed:
            confirmed.set()

    engine, config = local_engine(), CampaignConfig(max_seconds=100, proposals_per_round=1)
    proposer = Late({"test/a": [script(1, speedup=2.0), script(2)]})
    with Journal(tmp_path) as journal:
        [row] = run_campaign([make_task("a")], [proposer], engine, journal, config, on_event).tasks
        late = [record.pending for record in journal.proposals("test/a")]
    engine.close()
    assert (row.verdict, row.reason) == ("win", SEARCH_OVER)
    assert late == [False, True], "what comes after all is recorded for the next call"
