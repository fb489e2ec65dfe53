"""What a task does next, from its rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.journals.outcome import Stage
from agent.journals.recorded import Recorded
from agent.learner import POLICY_VERSION
from agent.loop.budget import CampaignConfig
from agent.loop.decisions import SEARCH_OVER, Await, Confirm, End, Propose, bar, next_step
from agent.loop.schedule import TaskRun
from agent.proposing.scripted import scripted_evaluation
from agent.types import Proposal
from rewards.speedup import reward
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import candidate, make_task, script

CONFIRMING = CampaignConfig()
SPENT = TaskRun(make_task("a"), 0, (), budget=2)
OPEN = TaskRun(make_task("a"), 0, (), budget=9)


def row(round: int, speedup: float, *, duplicate: bool = False) -> Recorded:
    proposal = Proposal(candidate("a", script(round)), "scripted")
    if duplicate:
        return Recorded(round, round, proposal, duplicate)
    found = scripted_evaluation(proposal.candidate, EvalConfig(), Status.PASSED, speedup)
    return Recorded(round, round, proposal, duplicate, found, reward(found))


SLOW, FAST, TOO_FAST = row(0, 0.7), row(1, 2.0), row(1, 5.0)
REPEATS = [row(n, 0.0, duplicate=True) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("run", "records", "searching", "step"),
    [
        (OPEN, [], True, Propose(0)),
        (OPEN, [SLOW, FAST], True, Propose(2)),
        (OPEN, [SLOW, TOO_FAST], True, Confirm(TOO_FAST)),
        (SPENT, [SLOW, FAST], True, Confirm(FAST)),
        (OPEN, [SLOW, FAST], False, Confirm(FAST)),
        (SPENT, [SLOW, row(1, 0.8)], True, End(Stage.DONE)),
        (OPEN, [SLOW, *REPEATS], True, End(Stage.DONE, "no new candidate in 3 rounds")),
        (OPEN, [SLOW], False, End(Stage.STOPPED, SEARCH_OVER)),
        (replace(OPEN, exhausted=True), [SLOW], True, End(Stage.DONE, "no more proposals")),
        (replace(OPEN, halted="no money"), [SLOW], True, End(Stage.STOPPED, "no money")),
    ],
)
def test_the_next_step_follows_from_the_rows(run, records, searching, step):
    assert next_step(run, records, CONFIRMING, searching=searching) == step


def test_to_a_policy_that_learns_repeats_are_rollouts_until_the_same_weights_have_nothing_new():
    def repeats(versions: list[int]) -> list[Recorded]:
        rows = [row(1 + n, 0.0, duplicate=True) for n in range(len(versions))]
        return [
            replace(r, proposal=replace(r.proposal, features={POLICY_VERSION: version}))
            for r, version in zip(rows, versions, strict=True)
        ]

    learning = CampaignConfig(learn=True)
    for versions, step in {
        (0,) * 15: Propose(16),
        tuple(range(40)): Propose(41),
        (0,) * 15 + (1,) * 15: Propose(31),
        (0,) * 16: End(Stage.DONE, "no new candidate in 16 rounds"),
        (0,) * 4 + (1,) * 16: End(Stage.DONE, "no new candidate in 16 rounds"),
    }.items():
        records = [SLOW, *repeats(list(versions))]
        assert next_step(OPEN, records, learning, searching=True) == step


def test_nothing_is_confirmed_where_the_config_says_so():
    step = next_step(SPENT, [SLOW, TOO_FAST], CampaignConfig(confirm=False), searching=True)
    assert step == End(Stage.DONE)


def test_a_task_whose_time_or_share_is_over_may_wait_for_more():
    assert next_step(OPEN, [], CONFIRMING, searching=True, late=True) == Propose(0)
    assert next_step(OPEN, [SLOW], CONFIRMING, searching=True, late=True).stage is Stage.STOPPED
    assert next_step(SPENT, [SLOW, FAST], CONFIRMING, searching=True, waves=True) == Await()
    assert next_step(SPENT, [SLOW, FAST], CONFIRMING, searching=False, waves=True) == Confirm(FAST)


def test_a_candidate_has_to_beat_the_best_of_earlier_rounds():
    assert bar([SLOW, FAST], 2, CONFIRMING) == pytest.approx(1.96, abs=0.01)
    assert bar([SLOW, FAST], 0, CONFIRMING) == 1.0
    assert bar([], 0, CampaignConfig(confirm=False)) is None
    assert bar([], 0, CampaignConfig(confirm=False, search_figures=True)) == 1.0
