"""What a policy learns from is measured again where it is too good to be true (CUDA-L1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.confirm import UNLIKELY_SPEEDUP, refuted
from agent.journals.journal import Journal
from agent.journals.recorded import Purpose
from agent.learner import POLICY_VERSION, Rollout, rollouts
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.proposing.scripted import ScriptedProposer, scripted_evaluation
from agent.types import FIRST_TURN, Proposal
from rewards import speedup
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import calls, campaign, candidate, local_engine, make_task, script


def measured_twice(log: Path, sources: Sequence[str]) -> list[bool]:
    done = calls(log, "evaluate")
    return [done.count(candidate("a", source).id) > 1 for source in sources]


@pytest.mark.parametrize("learn", [True, False])
def test_where_a_policy_learns_all_figures_above_three_times_are_confirmed(tmp_path, learn):
    """A search confirms the best one alone."""
    sources = [
        script(1, speedup=9.0, confirmed=9.0),
        script(2, speedup=5.0, confirmed=1.1),
        script(3, speedup=2.9),
    ]
    log = tmp_path / "log"
    campaign(tmp_path / "run", {"a": sources}, local_engine(log=log), learn=learn)
    assert measured_twice(log, sources) == [True, learn, False]


def test_three_refuted_figures_do_not_let_the_fourth_pass(tmp_path):
    sources = [script(n, speedup=20.0 - n, confirmed=1.1) for n in range(5)]
    log = tmp_path / "log"
    campaign(tmp_path / "run", {"a": sources}, local_engine(log=log), learn=True)
    assert all(measured_twice(log, sources))


def test_a_figure_above_twice_the_best_before_it_is_confirmed(tmp_path):
    sources = [script(1, speedup=1.2), script(2, speedup=2.6), script(3, speedup=2.7)]
    log = tmp_path / "log"
    engine = local_engine(log=log)
    campaign(tmp_path / "run", {"a": sources}, engine, learn=True, proposals_per_round=1)
    first, leap, last = (candidate("a", source).id for source in sources)
    assert calls(log, "evaluate")[:4] == [first, leap, leap, last]


def test_where_winners_are_not_confirmed_another_search_checks_what_is_learned_from(tmp_path):
    """As a training run's: its rewards are figures of a search, and so is what confirms them."""
    sources = [script(1, speedup=9.0), script(2, speedup=5.0), script(3, speedup=2.9)]
    log = tmp_path / "log"
    unconfirmed = {"confirm": False, "search_figures": True}
    campaign(tmp_path / "run", {"a": sources}, local_engine(log=log), learn=True, **unconfirmed)
    assert measured_twice(log, sources) == [True, True, False]
    told = [line.split()[-1] for line in log.read_text().splitlines() if "to_beat" in line]
    assert told == ["to_beat=1.0"] * 5
    with Journal(tmp_path / "run") as journal:
        assert not any(map(refuted, journal.proposals("test/a")))


class Policy(ScriptedProposer):
    """Writes the script with weights of version 0."""

    def propose(self, task, history, n, turn=FIRST_TURN):
        made = super().propose(task, history, n, turn)
        return [replace(p, features={POLICY_VERSION: 0}, reply=p.candidate.source) for p in made]


def learned(folder: Path, sources: Sequence[str], **config: object) -> list[Rollout]:
    """The rollouts of a run without a learner, as one would be handed them."""
    engine, folder = local_engine(), folder / "run"
    folder.mkdir()
    with Journal(folder) as journal:
        asked = [Policy({"test/a": sources})]
        settings = CampaignConfig(**config)  # type: ignore[arg-type]
        run_campaign([make_task("a")], asked, engine, journal, settings)
        found = rollouts(journal)
    engine.close()
    return found


def test_the_confirmed_figure_enters_the_gradient(tmp_path):
    sources = [script(1, speedup=9.0, confirmed=9.0), script(2, speedup=5.0, confirmed=1.1)]
    found = learned(tmp_path, sources, learn=True)
    assert [r.evaluation.speedup and r.evaluation.speedup.value for r in found] == [9.0, 1.1]


def test_what_could_not_be_confirmed_says_nothing(tmp_path):
    """Not the search's figure: it is as if the fault were ours, which TRL leaves out."""
    sources = [script(1, speedup=UNLIKELY_SPEEDUP + 1), script(2, speedup=1.5)]
    fast, honest = learned(tmp_path, sources, learn=False, confirm=False)
    assert fast.evaluation.status is Status.SANDBOX_ERROR
    assert not fast.evaluation.status.scored
    assert fast.evaluation.speedup is None
    assert honest.evaluation.passed


@pytest.mark.parametrize(
    "confirmed", [Status.REWARD_HACK, Status.WRONG_VALUE, Status.PASSED, Status.SANDBOX_ERROR]
)
def test_proposers_are_told_what_a_confirmation_found(tmp_path, confirmed):
    """Else a refuted cheat is the exemplar with the highest score, and a lesson for a policy."""
    source = candidate("a", script(1))
    first = scripted_evaluation(source, EvalConfig(), Status.PASSED, 9.0)
    again = scripted_evaluation(source, EvalConfig(), confirmed, 1.2)
    with Journal(tmp_path) as journal:
        journal.record_task(make_task("a"))
        journal.record_proposals(0, [Proposal(source, "scripted", "script")])
        journal.record_evaluation(make_task("a"), first, reward=speedup.reward(first))
        journal.record_evaluation(make_task("a"), again, purpose=Purpose.CONFIRM)
        [attempt] = journal.attempts("test/a")
    believed = again if confirmed.scored else first
    assert attempt.evaluation.status is believed.status
    assert attempt.evaluation.speedup == believed.speedup
