"""The first reward: a gate, then the log of the lower bound."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proposing.scripted import scripted_evaluation
from rewards.speedup import CORRECT, FAILURE, FASTEST, HACK, SLOWEST, reward
from rewards.types import Reward
from sandbox.types import Candidate, EvalConfig, Language, Status

CANDIDATE = Candidate("t", Language.CPP, "source")
FAILURES = [s for s in Status if s.scored and s not in (Status.PASSED, Status.REWARD_HACK)]


def reward_of(status: Status, speedup: float = 1.0) -> Reward:
    return reward(scripted_evaluation(CANDIDATE, EvalConfig(), status, speedup))


def value_of(status: Status, speedup: float = 1.0) -> float:
    value = reward_of(status, speedup).value
    assert value is not None
    return value


@pytest.mark.parametrize("status", [Status.SANDBOX_ERROR, Status.INVALID_REFERENCE])
def test_a_fault_that_is_not_the_candidates_has_no_value(status):
    assert reward_of(status) == Reward(None)


@pytest.mark.parametrize("status", FAILURES)
def test_every_failure_is_worth_the_same(status):
    assert value_of(status) == FAILURE


def test_a_hack_is_worse_than_any_failure():
    assert value_of(Status.REWARD_HACK) == HACK < FAILURE


@given(st.floats(1e-6, 1e6))
def test_a_correct_candidate_beats_every_failure(speedup):
    assert FAILURE < value_of(Status.PASSED, speedup) <= CORRECT + FASTEST


@given(st.floats(0.5, 18.0))
def test_the_speed_term_is_the_log_of_the_lower_bound(speedup):
    terms = {t.name: t.value for t in reward_of(Status.PASSED, speedup).terms}
    assert terms["log_speedup_low"] == pytest.approx(math.log(speedup * 0.98))


@given(st.floats(1e-3, 1e3), st.floats(1.0, 10.0))
def test_a_faster_candidate_is_never_worth_less(speedup, factor):
    assert value_of(Status.PASSED, speedup) <= value_of(Status.PASSED, speedup * factor)


def test_the_value_is_the_weighted_sum_of_its_terms():
    result = reward_of(Status.PASSED, 1e-9)
    assert result.value == pytest.approx(CORRECT + SLOWEST)
    assert result.value == pytest.approx(sum(t.weight * t.value for t in result.terms))
