"""What each strategy asks next, from the attempts alone."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent.features.proposer import FeatureProposer
from agent.model import ScriptedModel
from agent.prompts.hints import CPU_FEATURES
from agent.prompts.render import Scene
from agent.proposing.model_proposer import ModelProposer, SeededProposer
from agent.proposing.scripted import scripted_evaluation
from agent.strategies.best_of_n import BestOfN
from agent.strategies.contrastive import Contrastive, buckets, draw, probabilities
from agent.strategies.evolve import Evolve
from agent.strategies.fsr import FEATURE, Fsr, feature_gains
from agent.strategies.portfolio import Portfolio
from agent.strategies.types import ARM, Strategy
from agent.types import Attempt, Proposal, Turn
from kernelbench.suite import load_tasks
from rewards.types import Reward
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task

TASK = Task("t", "class Model: ...", "cpu")
SCENE = Scene(TASK, Language.CPP)


def attempt(
    name: str,
    speedup: float | None = None,
    status: Status = Status.WRONG_VALUE,
    *,
    strategy: str = "fsr propose",
    parents: tuple[str, ...] = (),
    feature: str | None = None,
) -> Attempt:
    """Passed with a speedup, or failed with a status."""
    candidate = Candidate(TASK.id, Language.CPP, f"# {name}\nclass ModelNew: ...\n")
    passed = speedup is not None
    evaluation = scripted_evaluation(
        candidate, EvalConfig(), Status.PASSED if passed else status, speedup or 1.0
    )
    features = {} if feature is None else {FEATURE: feature}
    proposal = Proposal(candidate, "m", strategy, parents, features)
    return Attempt(proposal, evaluation, Reward(None))


def ids(*attempts: Attempt) -> tuple[str, ...]:
    return tuple(a.proposal.candidate.id for a in attempts)


def steps(strategy: Strategy, history: Sequence[Attempt], n: int, round: int = 1) -> list[str]:
    return [ask.step for ask in strategy.asks(SCENE, history, n, round)]


def test_best_of_n_asks_the_same_whatever_happened():
    history = [attempt("a", 2.0), attempt("b")]
    asks = BestOfN().asks(SCENE, history, 3, 1)
    assert asks == BestOfN().asks(SCENE, [], 3, 0)
    assert asks[0].messages == asks[2].messages
    assert [ask.parents for ask in asks] == [()] * 3


def test_fsr_repairs_what_came_furthest_first_until_one_has_passed():
    compile_error = attempt("newest", status=Status.COMPILE_ERROR)
    wrong = attempt("older", status=Status.WRONG_VALUE)
    asks = Fsr().asks(SCENE, [wrong, compile_error], 3, 1)
    assert [ask.step for ask in asks] == ["repair", "repair", "propose"]
    assert [ask.parents for ask in asks[:2]] == [ids(wrong), ids(compile_error)]
    assert "scripted WRONG_VALUE" in asks[0].messages[1]["content"]


def test_fsr_searches_a_different_untried_feature_with_each_question():
    best = attempt("best", 2.0)
    tried = attempt("next", 1.5, parents=ids(best), feature="tiling")
    asks = Fsr().asks(SCENE, [best, tried], 3, 1)
    assert [ask.features[FEATURE] for ask in asks] == ["fusion", "vectorisation", "accumulators"]
    assert {ask.parents for ask in asks} == {ids(best)}
    assert CPU_FEATURES["fusion"] in asks[0].messages[1]["content"]
    assert CPU_FEATURES["fusion"] not in asks[1].messages[1]["content"]
    assert "tiling: correct, 1.50x" in asks[0].messages[1]["content"]


def test_fsr_comes_back_to_the_features_that_gained_most():
    best = attempt("best", 1.0)
    tried = [
        attempt(name, 1.0 + i / 10, parents=ids(best), feature=name)
        for i, name in enumerate(CPU_FEATURES)
    ]
    [ask] = Fsr().asks(SCENE, [best, *tried], 1, 1)
    assert ask.features[FEATURE] == list(CPU_FEATURES)[-1]
    assert ask.parents == ids(tried[-1])


def test_a_feature_that_failed_loses_and_our_own_fault_says_nothing():
    best = attempt("best", 2.0)
    lost = attempt("lost", parents=ids(best), feature="tiling")
    fault = attempt("f", status=Status.SANDBOX_ERROR, parents=ids(best), feature="threads")
    gained = attempt("g", 4.0, parents=ids(best), feature="fusion")
    gains = feature_gains([best, lost, fault, gained])
    assert gains == {"tiling": -0.3, "fusion": pytest.approx(math.log(2))}


def test_a_feature_whose_answer_was_a_known_program_was_tried():
    best = attempt("best", 2.0)
    same = replace(best.proposal, parents=ids(best), features={FEATURE: "fusion"})
    assert feature_gains([best], [same]) == {"fusion": 0.0}
    asks = Fsr().asks(replace(SCENE, repeats=[same]), [best], 2, 1)
    assert [ask.features[FEATURE] for ask in asks] == ["tiling", "vectorisation"]


def test_fsr_keeps_part_of_a_round_for_repairs_once_one_has_passed():
    failures = [attempt(str(i)) for i in range(5)]
    history = [attempt("best", 2.0), *failures]
    assert steps(Fsr(), history, 4) == ["repair", "repair", "improve", "improve"]
    assert steps(Fsr(repair_share=0.0), history, 4) == ["improve"] * 4


def test_fsr_ends_after_its_depth():
    assert steps(Fsr(depth=2), [], 1, round=1) == ["propose"]
    assert steps(Fsr(depth=2), [], 1, round=2) == []


def test_buckets_hold_distinct_passed_candidates_by_log_speedup():
    same = attempt("b", 1.2)
    found = buckets([attempt("a", 2.0), same, same, attempt("c", 1.21), attempt("d")], 0.15)
    assert [len(bucket.attempts) for bucket in found] == [2, 1]
    assert found[0].mean == pytest.approx((math.log(1.2 * 0.98) + math.log(1.21 * 0.98)) / 2)


def test_the_softmax_over_buckets_is_the_papers():
    found = buckets([attempt("a", 1.0), attempt("b", 2.0), attempt("c", 4.0)], 0.15)
    means = [bucket.mean for bucket in found]
    mu, tau = sum(means) / 3, 0.5
    expected = [math.exp((mean - mu) / tau) for mean in means]
    assert probabilities(found, tau) == pytest.approx([e / sum(expected) for e in expected])
    spread = probabilities(found, None)
    assert spread == sorted(spread)
    assert probabilities(found, 1e-6) == pytest.approx([0.0, 0.0, 1.0])


def test_exemplars_come_from_distinct_buckets_the_faster_ones_more_often():
    history = [attempt(f"{i}{j}", 1.0 + i) for i in range(3) for j in range(3)]
    found, dice = buckets(history, 0.15), random.Random(0)
    drawn: Counter[float] = Counter()
    for _ in range(2000):
        slower, faster = draw(found, 2, 0.5, dice)
        assert slower.evaluation.speedup.value < faster.evaluation.speedup.value
        drawn.update(a.evaluation.speedup.value for a in (slower, faster))
    assert drawn[1.0] < drawn[2.0] < drawn[3.0]


def test_random_exemplars_are_any_passed_ones_slowest_first():
    history = [attempt("alone", 3.0), attempt("failed"), *(attempt(f"s{i}", 1.0) for i in range(8))]
    strategy = Contrastive(selection="random", repair_share=0.0)
    asked = strategy.asks(SCENE, history, 400, 1)
    assert {len(set(ask.parents)) for ask in asked} == {2}
    [alone, failed, *_] = ids(*history)
    shown = sum(alone in ask.parents for ask in asked)
    assert 50 < shown < 110, "2 of 9, as likely as any other"
    assert all(ask.parents[1] == alone for ask in asked if alone in ask.parents)
    assert not any(failed in ask.parents for ask in asked)
    same_speed = sum(alone not in ask.parents for ask in asked)
    assert same_speed > 0, "of one bucket as well"


def test_the_contrastive_prompt_shows_both_with_scores_and_demands_three_sections():
    history = [attempt("slow", 1.1), attempt("fast", 3.0)]
    [ask] = Contrastive().asks(SCENE, history, 1, 1)
    text = ask.messages[1]["content"]
    places = [
        text.index(words)
        for words in (
            "(score: 1.10x)",
            "# slow",
            "(score: 3.00x)",
            "# fast",
            "## Performance Analysis",
            "## Algorithm Design",
            "## Code Implementation",
        )
    ]
    assert places == sorted(places)
    assert ask.parents == ids(*history)


def test_a_group_shares_its_prompt_and_groups_draw_their_own():
    history = [attempt(f"{i}{j}", 1.0 + i) for i in range(4) for j in range(4)]
    asked = Contrastive(samples_per_prompt=3, repair_share=0.0).asks(SCENE, history, 6, 1)
    assert asked[0] == asked[1] == asked[2] != asked[3] == asked[4] == asked[5]


def test_a_share_of_groups_is_asked_without_exemplars_whole_group_by_whole_group():
    history = [attempt("slow", 1.1), attempt("fast", 3.0)]
    strategy = Contrastive(samples_per_prompt=4, repair_share=0.0, unshown_share=0.5)
    asked = strategy.asks(SCENE, history, 400, 1)
    groups = [asked[first : first + 4] for first in range(0, 400, 4)]
    assert all(group == [group[0]] * 4 for group in groups)
    plain = [group[0] for group in groups if group[0].step == "propose"]
    assert 30 < len(plain) < 70
    assert plain[0] == BestOfN().asks(SCENE, [], 1, 0)[0]


def test_contrastive_begins_like_fsr_and_works_with_a_single_bucket():
    assert steps(Contrastive(), [attempt("a")], 2) == ["repair", "propose"]
    [ask] = Contrastive().asks(SCENE, [attempt("a", 2.0)], 1, 1)
    assert (ask.step, len(ask.parents)) == ("contrast", 1)
    assert "What makes this implementation" in ask.messages[1]["content"]


@pytest.mark.parametrize(
    "strategy", [Fsr(), Contrastive(), Contrastive(turns=2), Evolve(), Portfolio()]
)
def test_a_repair_that_came_back_as_a_known_program_is_not_asked_for_again(strategy):
    failed = attempt("a")
    failed = replace(failed, proposal=replace(failed.proposal, features={ARM: "fsr"}))
    unchanged = replace(failed.proposal, strategy="x repair", parents=ids(failed))
    asked = [ask.step.split()[-1] for ask in strategy.asks(SCENE, [failed], 1, 1)]
    again = strategy.asks(replace(SCENE, repeats=[unchanged]), [failed], 1, 1)
    assert (asked, [ask.step.split()[-1] for ask in again]) == (["repair"], ["propose"])


@pytest.mark.parametrize("strategy", [BestOfN(), Fsr(), Contrastive(), Evolve(), Portfolio()])
def test_equal_attempts_give_equal_questions(strategy):
    history = [attempt("a", 1.0), attempt("b"), attempt("c", 1.9), attempt("d", 3.0)]
    assert strategy.asks(SCENE, history, 4, 2) == strategy.asks(SCENE, history, 4, 2)
    if strategy.kind in ("contrastive", "evolve"):
        assert strategy.asks(SCENE, history, 4, 2) != strategy.asks(SCENE, history, 4, 3)


def test_the_built_in_proposer_can_seed_a_strategys_population():
    [task] = load_tasks("builtin/sigmoid", "cpu")
    fence = "```python\nclass ModelNew: ...\n```"
    model = ModelProposer(ScriptedModel([fence]), {})
    proposer = SeededProposer(FeatureProposer(), model, 2)
    seeds = list(proposer.propose(task, [], 3))
    assert [p.proposer for p in seeds] == ["features", "features"]
    history = [
        Attempt(p, Evaluation(task.id, p.candidate.id, "c", Status.WRONG_VALUE), Reward(None))
        for p in seeds
    ]
    [repair] = proposer.propose(task, history, 1, Turn(1))
    assert (repair.proposer, repair.strategy) == ("scripted", "fsr repair")
    assert repair.parents[0] in {p.candidate.id for p in seeds}
    correct = [
        Attempt(p, scripted_evaluation(p.candidate, EvalConfig(), Status.PASSED, s), Reward(1))
        for p, s in zip(seeds, (1.2, 3.0), strict=True)
    ]
    for strategy in (Fsr(), Contrastive(), Evolve(islands=1), Portfolio()):
        [ask] = strategy.asks(Scene(task, Language.CPP), correct, 1, 1)
        assert {*ask.parents} & {p.candidate.id for p in seeds}, strategy.kind


def test_a_task_the_built_in_proposer_does_not_cover_is_not_seeded():
    fence = "```python\nclass ModelNew: ...\n```"
    proposer = SeededProposer(FeatureProposer(), ModelProposer(ScriptedModel([fence]), {}), 2)
    [proposal] = proposer.propose(TASK, [], 1)
    assert proposal.proposer == "scripted"
