"""Episodes of several turns: what a repair earns counts for what it repaired, discounted."""

from dataclasses import replace

from agent.learner import POLICY_VERSION, Rollout
from agent.prompts.render import Scene
from agent.proposing.scripted import scripted_evaluation
from agent.strategies.contrastive import Contrastive
from agent.strategies.types import PROPOSE, REPAIR
from agent.types import Attempt, Proposal
from kernelbench.suite import load_tasks
from rewards import speedup
from rl.episodes import hacks_last, returns
from sandbox.types import Candidate, EvalConfig, Language, Status

[TASK] = load_tasks("builtin/relu", "cpu")
SCENE = Scene(TASK, Language.CPP)


def turn(name: str, status: Status = Status.WRONG_VALUE, of: str | None = None) -> Rollout:
    judged = scripted_evaluation(Candidate("t", Language.CPP, name), EvalConfig(), status, 2.0)
    parents = () if of is None else (of,)
    return Rollout("t", "[]", name, 0, judged, name, parents, repair=of is not None)


def test_a_failure_earns_what_its_repair_earns_discounted_turn_by_turn():
    rollouts = [turn("a"), turn("b"), turn("c", of="a"), turn("d", Status.PASSED, of="c")]
    assert returns(rollouts, [0.0, 0.0, 0.25, 1.0], 0.5) == [0.375, 0.0, 0.75, 1.0]


def test_several_repairs_of_one_failure_count_by_their_mean_and_our_faults_not_at_all():
    rollouts = [turn("a"), *(turn(name, of="a") for name in "bcd")]
    assert returns(rollouts, [0.0, 1.0, 0.0, None], 0.4) == [0.2, 1.0, 0.0, None]


def test_a_hack_earns_nothing_by_its_repair():
    rollouts = [turn("a", Status.REWARD_HACK), turn("b", Status.PASSED, of="a")]
    assert returns(rollouts, [-1.0, 3.0], 0.4) == [-1.0, 3.0]


def test_a_repair_that_came_back_unchanged_does_not_pay_itself():
    assert returns([turn("a"), turn("a", of="a")], [0.25, 0.25], 0.4) == [0.25, 0.25]


def test_a_hack_is_worth_no_more_than_the_least_and_our_faults_stay_nothing():
    rollouts = [turn("a"), turn("b", Status.REWARD_HACK), turn("c")]
    assert hacks_last(rollouts, [-2.1, -1.5, 0.0]) == [-2.1, -2.1, 0.0]
    assert hacks_last(rollouts, [0.0, -1.0, None]) == [0.0, -1.0, None]


def attempt(source: str, status: Status, version: int, of: tuple[str, ...] = ()) -> Attempt:
    candidate = Candidate(TASK.id, Language.CPP, source)
    strategy = f"contrastive {REPAIR if of else PROPOSE}"
    proposal = Proposal(candidate, "p", strategy, of, features={POLICY_VERSION: version})
    judged = scripted_evaluation(candidate, EvalConfig(), status, 2.0)
    return Attempt(proposal, judged, speedup.reward(judged))


def test_within_an_episode_failures_of_these_weights_are_repaired_once_each():
    strategy = Contrastive(turns=2, samples_per_prompt=4)
    history = [
        attempt("old", Status.WRONG_VALUE, 0),
        attempt("wrong", Status.WRONG_VALUE, 1),
        attempt("right", Status.PASSED, 1),
    ]
    wrong = history[1].proposal.candidate.id
    second = strategy.asks(SCENE, history, 4, 3)
    assert [ask.parents for ask in second if ask.step == REPAIR] == [(wrong,)]
    assert len(second) == 4
    repaired = [*history, attempt("still wrong", Status.WRONG_VALUE, 1, (wrong,))]
    assert REPAIR not in {ask.step for ask in strategy.asks(SCENE, repaired, 4, 3)}


def test_what_earlier_weights_wrote_is_not_repaired_where_these_wrote_known_programs_alone():
    strategy = Contrastive(turns=2, samples_per_prompt=4)
    history = [attempt("old", Status.WRONG_VALUE, 0)]
    known = replace(history[0].proposal, features={POLICY_VERSION: 1})
    scene = replace(SCENE, repeats=[known])
    assert REPAIR in {ask.step for ask in strategy.asks(SCENE, history, 4, 1)}
    assert REPAIR not in {ask.step for ask in strategy.asks(scene, history, 4, 1)}


def test_a_new_episode_begins_without_repairs():
    strategy = Contrastive(turns=2)
    history = [attempt("wrong", Status.WRONG_VALUE, 1)]
    assert {ask.step for ask in strategy.asks(SCENE, history, 4, 2)} == {PROPOSE}
    assert [ask.step for ask in strategy.asks(SCENE, history, 2, 1)] == [REPAIR, PROPOSE]
