"""The feature search: never repeats itself, deterministic, drops what fails, finite."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from agent.features import cuda_pool
from agent.features.proposer import FeatureProposer
from agent.types import Attempt, Proposal
from rewards.types import Reward
from sandbox.figures import Interval, Timing
from sandbox.types import Evaluation, Status
from tests.agent.features_references import proposer, task, traced


def judged(proposal: Proposal, status: Status = Status.PASSED) -> Attempt:
    """A verdict as a function of the features alone: streaming stores and fast math help."""
    features = proposal.features
    speedup = 1.0 + 0.2 * (features.get("math") == "fast") + 0.1 * (features.get("keep") == 1)
    speedup += 0.05 * (features.get("stores") == "streaming")
    timing = Timing(1.0, 1.0 / speedup, Interval(speedup, speedup, speedup), 0.01, (), 1)
    passed = timing if status is Status.PASSED else None
    made = proposal.candidate
    return Attempt(
        proposal, Evaluation(made.task_id, made.id, "c", status, timing=passed), Reward(1.0)
    )


def campaign(device: str, rounds: int, failing: tuple[str, str] | None = None) -> list[Attempt]:
    history = list[Attempt]()
    for _ in range(rounds):
        for proposal in proposer(3).propose(task("softmax", device), history, 3):
            bad = failing is not None and proposal.features.get(failing[0]) == failing[1]
            history.append(judged(proposal, Status.COMPILE_ERROR if bad else Status.PASSED))
    return history


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_proposal_repeats(device: str) -> None:
    ids = [a.proposal.candidate.id for a in campaign(device, 12)]
    assert len(ids) == len(set(ids)) >= 12


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_random_search_draws_from_the_whole_pool_and_learns_nothing(device: str) -> None:
    subject = task("softmax", device)
    drawn = FeatureProposer(3, "random").propose(subject, [], 12)
    ids = [p.candidate.id for p in drawn]
    assert len(set(ids)) == 12
    assert not any(p.parents for p in drawn)
    searched = {p.candidate.id for p in proposer(3).propose(subject, [], 12)}
    assert len(searched & set(ids)) < 6
    again = FeatureProposer(3, "random").propose(subject, [], 12)
    assert [p.candidate.id for p in again] == ids
    history = [judged(p, Status.PASSED) for p in drawn]
    more = FeatureProposer(3, "random").propose(subject, history, 6)
    assert not {p.candidate.id for p in more} & set(ids)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("sigmoid", 1, 1 << 24), ("softmax", 8192, 4096), ("softmax", 8, 1 << 21)],
)
def test_no_thread_has_thousands_of_elements_in_turn(name: str, rows: int, columns: int) -> None:
    found = traced(task(name, "cuda"))
    program = replace(found.programs[found.main], row_count=rows, column_count=columns)
    values = itertools.product(*(cuda_pool.POOL[f] for f in ("form", "threads", "groups")))
    points = [
        {**cuda_pool.default(program), "form": f, "threads": t, "groups": g, "items": 1}
        for f, t, g in values
    ]
    fitting = [p for p in points if cuda_pool.fits(program, p)]
    assert cuda_pool.fits(program, cuda_pool.default(program))
    assert {p["form"] for p in fitting} == ({"rows", "tiles"} if rows > 8 else {"tiles"})
    assert all(columns <= 1024 * int(p["threads"]) for p in fitting if p["form"] == "rows")


@pytest.mark.parametrize(("dtype", "loads"), [("float32", 4), ("bfloat16", 1), ("float16", 1)])
def test_a_thread_of_half_precision_begins_with_one_load(dtype: str, loads: int) -> None:
    found = traced(task("sigmoid", "cuda", dtype))
    program = replace(found.programs[found.main], row_count=1, column_count=1 << 24)
    start = cuda_pool.default(program)
    assert start["form"] == "tiles"
    assert start["unroll"] == loads
    assert all(cuda_pool.fits(program, other) for other in cuda_pool.others(program))


def test_equal_histories_give_equal_proposals() -> None:
    one, two = campaign("cuda", 4), campaign("cuda", 4)
    assert [a.proposal.candidate.id for a in one] == [a.proposal.candidate.id for a in two]
    again = proposer(3).propose(task("softmax", "cuda"), one, 5)
    resumed = FeatureProposer(seed=3).propose(task("softmax", "cuda"), two, 5)
    assert [p.candidate.id for p in again] == [p.candidate.id for p in resumed]


def test_first_proposals_are_distinct_defaults() -> None:
    proposals = proposer().propose(task("softmax", "cuda"), [], 3)
    assert len({p.candidate.source for p in proposals}) == 3
    assert not any(p.parents for p in proposals)


def test_search_climbs_to_the_better_features() -> None:
    best = max((a for a in campaign("cuda", 10)), key=lambda a: a.evaluation.speedup.value)  # type: ignore[union-attr]
    assert (best.proposal.features["math"], best.proposal.features["stores"]) == (
        "fast",
        "streaming",
    )


def test_a_value_that_only_fails_is_dropped() -> None:
    history = campaign("cuda", 12, failing=("loads", "streaming"))
    assert sum(not a.evaluation.passed for a in history) <= 3


def test_the_neighbourhood_runs_out() -> None:
    history = list[Attempt]()
    while found := proposer().propose(task("row_sum"), history, 8):
        history += [judged(p) for p in found]
        assert len(history) < 400
    assert history
