"""Training's rewards: levels that cannot be passed by, CUDA-L1's rounding and smoothing."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proposing.scripted import scripted_evaluation
from rewards.robust import Robust, robust_speedup, smooth, toward_one
from rewards.terms import SECTIONS, RewardConfig, format_share, score
from rewards.types import Reward
from sandbox.figures import Baseline, Interval, Pair
from sandbox.types import Candidate, CaseResult, EvalConfig, Evaluation, Language, Status

CANDIDATE = Candidate("t", Language.CPP, "source")
MILESTONES = RewardConfig(partial=0.3, format_weight=0.2)
LOG = RewardConfig(kind="log")
L1 = RewardConfig(kind="cuda-l1")
CONFIGS = [MILESTONES, LOG, L1]
FAILURES = [s for s in Status if s.scored and s not in (Status.PASSED, Status.REWARD_HACK)]
REPLY = "\n\n".join(SECTIONS)


def judged(status: Status, speedup: float = 1.0, compiled: float | None = None) -> Evaluation:
    found = scripted_evaluation(CANDIDATE, EvalConfig(), status, speedup)
    if compiled is None:
        return replace(found, baselines=())
    known = Interval(compiled, compiled * 0.98, compiled * 1.02)
    return replace(found, baselines=(Baseline("compile", 1.0, known),))


def value(status: Status, config: RewardConfig, speedup: float = 1.0, **more: float) -> float:
    found = score(judged(status, speedup, **more), config, REPLY).value
    assert found is not None
    return found


def paired(*ratios: float) -> Evaluation:
    found = judged(Status.PASSED, 2.0)
    assert found.timing is not None
    pairs = tuple(Pair(1.0, 1 / r, math.log(r), rounds=4) for r in ratios)
    return replace(found, timing=replace(found.timing, pairs=pairs))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
@pytest.mark.parametrize("status", [Status.SANDBOX_ERROR, Status.INVALID_REFERENCE])
def test_a_fault_of_ours_has_no_value(config, status):
    assert score(judged(status), config) == Reward(None)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.kind)
@pytest.mark.parametrize("status", FAILURES)
@given(speedup=st.floats(1e-3, 1e3))
def test_a_hack_is_worth_less_than_a_failure_and_that_less_than_a_kernel(config, status, speedup):
    hack, failure = value(Status.REWARD_HACK, config), value(status, config)
    assert hack == config.hack < failure
    if config.kind != "cuda-l1" or speedup >= 0.01:
        assert failure < value(Status.PASSED, config, speedup)


@given(st.floats(0, 1), st.floats(0, 1))
@pytest.mark.parametrize("kind", ["milestones", "log"])
def test_a_kernel_that_does_more_of_the_work_itself_is_worth_more(kind, one, other):
    config = RewardConfig(kind=kind, coverage_weight=0.5)
    plain = score(judged(Status.PASSED, 2.0), replace(config, coverage_weight=0.0)).value
    worth = [
        score(replace(judged(Status.PASSED, 2.0), own_share=share), config).value
        for share in (one, other)
    ]
    assert worth[0] - worth[1] == pytest.approx(0.5 * (one - other))
    assert min(worth) >= plain
    hack = replace(judged(Status.REWARD_HACK), own_share=one)
    assert score(hack, config).value == config.hack


def test_a_kernel_whose_share_is_not_known_is_left_out_where_that_is_paid_for():
    config = RewardConfig(coverage_weight=0.5)
    assert score(judged(Status.PASSED, 2.0), config) == Reward(None)
    assert score(judged(Status.WRONG_VALUE), config).value == config.wrong
    with pytest.raises(ValueError, match="speed alone"):
        RewardConfig(kind="cuda-l1", coverage_weight=0.5)


def test_partial_credit_is_for_the_cases_passed_and_never_reaches_a_correct_kernel():
    cases = (CaseResult("a", True), CaseResult("b", True), CaseResult("c", False))
    wrong = replace(judged(Status.WRONG_VALUE), cases=cases)
    found = score(wrong, RewardConfig(partial=0.3))
    assert found.value == pytest.approx(0.2)
    with pytest.raises(ValueError, match="as much as a correct one"):
        RewardConfig(kind="log", partial=0.3)


@pytest.mark.parametrize(
    ("speedup", "compiled", "level"),
    [(0.5, 2.0, 1), (1.5, 2.0, 2), (2.5, 2.0, 3), (2.5, None, 2), (1.01, None, 1), (2.0, 2.0, 2)],
)
def test_milestones_are_reached_by_whole_intervals(speedup, compiled, level):
    assert value(Status.PASSED, RewardConfig(), speedup, compiled=compiled) == level


@given(st.floats(1e-3, 1e3), st.floats(1.0, 10.0))
@pytest.mark.parametrize("config", [MILESTONES, LOG], ids=lambda c: c.kind)
def test_a_faster_kernel_is_never_worth_less(config, speedup, factor):
    slow, fast = (value(Status.PASSED, config, s) for s in (speedup, speedup * factor))
    assert slow <= fast


@given(st.floats(0.01, 100.0))
def test_rounding_moves_toward_one_by_less_than_a_hundredth(ratio):
    rounded = toward_one(ratio)
    assert min(ratio, 1.0) - 1e-9 <= rounded <= max(ratio, 1.0) + 1e-9
    assert abs(rounded - ratio) < 0.01 + 1e-9
    assert (rounded - 1) * (ratio - 1) >= 0


@pytest.mark.parametrize(("ratio", "wanted"), [(1.118, 1.11), (0.992, 1.0), (1.15, 1.15), (1, 1)])
def test_rounding_follows_the_paper(ratio, wanted):
    assert toward_one(ratio) == wanted


def test_the_central_value_is_the_median_of_the_buckets():
    timing = paired(1.50, 1.51, 1.52, 1.53, 1.54, 1.55, 1.70).timing
    assert timing is not None
    assert robust_speedup(timing) == 1.53
    assert robust_speedup(timing, Robust(variance=0.001)) is None


def test_a_figure_whose_buckets_disagree_says_nothing():
    assert score(paired(1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0), L1) == Reward(None)


@given(
    st.lists(st.floats(-1, 50) | st.none(), min_size=1),
    st.lists(st.floats(-1, 50), max_size=50),
)
def test_smoothing_bounds_every_reward_and_keeps_their_order(rewards, seen):
    found = smooth(rewards, seen)
    assert [r is None for r in found] == [r is None for r in rewards]
    pairs = [(a, b) for a, b in zip(rewards, found, strict=True) if a is not None and b is not None]
    assert all(abs(b) <= 1.5 for _, b in pairs)
    assert all(a[1] <= b[1] for a in pairs for b in pairs if a[0] <= b[0])


def test_one_fake_moves_a_smoothed_reward_no_further_than_the_clip():
    seen = [1.0, 1.1, 0.9, 1.2]
    assert smooth([50.0, 1.05], seen)[0] == 1.5


def test_sections_count_only_in_their_order():
    assert format_share(REPLY) == 1.0
    assert format_share("\n".join(reversed(SECTIONS))) == pytest.approx(1 / 3)
    assert format_share("code only") == 0.0


def test_rewards_of_different_settings_have_different_names():
    assert len({c.name for c in (*CONFIGS, RewardConfig(), RewardConfig(margin=1.05))}) == 5
