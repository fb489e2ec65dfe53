"""The figures: failures count, luck and selection do not."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbench.metrics import (
    Score,
    best_figure,
    bootstrap,
    fast_p,
    figure,
    geometric_mean,
    mean_over_all,
    only_kind,
    pass_at_k,
    score_of,
    summarise,
)
from kernelbench.published_flaws import is_degenerate
from sandbox.evidence import Kind
from sandbox.figures import Baseline
from sandbox.types import Status
from tests.kernelbench.bench_records import row

ratios = st.one_of(st.none(), st.floats(0.05, 20.0))
FEW = settings(max_examples=25, deadline=None)


def scored(task: str, speedup: float | None, sample: int = 0, **rest) -> Score:
    return Score(task, sample, correct=speedup is not None, speedup=speedup, **rest)


def test_a_failure_and_a_missing_kernel_both_count_one():
    found = summarise(["a", "b", "c"], [scored("a", 8.0), scored("b", None)])
    assert found.headline.value == pytest.approx(2.0)
    assert found.conditional == pytest.approx(8.0)
    assert (found.tasks, found.without_kernel, found.correct) == (3, 1, 1)
    assert found.correctness == pytest.approx(1 / 3)
    assert found.fast["1.5"] == pytest.approx(1 / 3)


def test_a_slower_kernel_lowers_the_headline_against_eager_but_not_against_b_star():
    found = summarise(["a"], [scored("a", 0.5, against_best=0.4)])
    assert found.headline.value == pytest.approx(0.5)
    assert found.headline_best.value == 1.0
    assert found.conditional_best == pytest.approx(0.4)
    assert found.fast_best["0.5"] == 0.0


def test_figures_against_b_star_are_absent_where_no_baseline_was_timed():
    found = summarise(["a", "b"], [scored("a", 2.0), scored("b", None)])
    assert found.headline_best is found.conditional_best is found.fast_best is None
    assert (found.without_best, found.best_left_out, best_figure(found)) == (1, "", "-")


def test_a_task_without_a_timed_baseline_is_left_out_of_what_is_against_b_star_and_counted():
    """One failed baseline does not blank the figures of the whole suite."""
    rest = [scored("a", 9.0, against_best=4.0), scored("c", None)]
    found = summarise(["a", "b", "c"], [scored("b", 2.0), *rest])
    assert found.headline.value == pytest.approx(18 ** (1 / 3))
    assert found.headline_best.value == pytest.approx(2.0)
    assert found.conditional_best == pytest.approx(4.0)
    assert (found.fast["1.5"], found.fast_best["1.5"]) == (pytest.approx(2 / 3), 0.5)
    assert (found.without_best, found.best_left_out) == (1, "1 task left out")
    assert best_figure(found).endswith("1 task left out")
    alone = summarise(["a", "c"], rest)
    assert (found.headline_best, found.fast_best) == (alone.headline_best, alone.fast_best)


def test_where_nothing_was_timed_the_headline_against_b_star_is_one():
    found = summarise(["a", "b"], [scored("a", None)])
    assert (found.headline_best.value, found.conditional_best, found.without_best) == (1.0, None, 0)


def test_the_first_sample_counts_not_the_best():
    found = summarise(["a"], [scored("a", 9.0, sample=3), scored("a", 2.0, sample=1)])
    assert found.headline.value == pytest.approx(2.0)


@FEW
@given(st.lists(ratios, min_size=1, max_size=12))
def test_the_headline_lies_in_its_interval_and_between_one_and_the_conditional(found):
    names = [str(i) for i in range(len(found))]
    summary = summarise(names, [scored(n, r) for n, r in zip(names, found, strict=True)])
    headline = summary.headline
    assert headline.low <= headline.value <= headline.high
    conditional = summary.conditional or 1.0
    low, high = sorted((1.0, conditional))
    assert low * (1 - 1e-9) <= headline.value <= high * (1 + 1e-9)
    assert list(summary.fast.values()) == sorted(summary.fast.values(), reverse=True)
    assert max(summary.fast.values()) <= summary.correctness


@given(st.lists(ratios, min_size=1, max_size=30), st.floats(0.1, 5.0))
def test_fast_p_counts_what_is_strictly_faster(found, p):
    assert fast_p(found, p) * len(found) == pytest.approx(sum((r or 0) > p for r in found))
    present = [r for r in found if r is not None]
    if present:
        assert fast_p(present, min(present)) < 1.0


@given(st.lists(st.floats(0.05, 20.0), min_size=1, max_size=20), st.floats(0.5, 2.0))
def test_a_geometric_mean_scales_with_its_ratios(found, factor):
    scaled = geometric_mean(r * factor for r in found)
    assert scaled == pytest.approx(factor * geometric_mean(found))


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_the_share_of_drawings_with_a_correct_sample(drawn):
    n, correct = drawn
    for k in range(1, n + 1):
        draws = list(itertools.combinations([i < correct for i in range(n)], k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize("k", [0, 4])
def test_pass_at_k_needs_k_samples(k):
    with pytest.raises(ValueError, match="3 samples"):
        pass_at_k(3, 1, k)


def test_pass_at_k_leaves_out_tasks_with_too_few_samples_but_not_those_with_none():
    scores = [scored("a", 2.0, 0), scored("a", None, 1), scored("b", 2.0)]
    table = summarise(["a", "b", "c"], scores).pass_at
    assert (table["1"].value, table["1"].tasks) == (pytest.approx(0.5), 3)
    assert (table["2"].value, table["2"].tasks) == (pytest.approx(0.5), 2)


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says():
    import random

    random.seed(1)
    inside = 0
    for _ in range(60):
        found = bootstrap([random.gauss(0.2, 0.3) for _ in range(40)])
        inside += found.low <= math.exp(0.2) <= found.high
    assert inside >= 51  # 57 expected; fewer than 51 has a chance below 1 %


def test_the_same_scores_give_the_same_interval():
    assert bootstrap([0.1, 0.5, -0.2]) == bootstrap([0.1, 0.5, -0.2])


def test_a_kind_alone_counts_the_others_as_failures():
    scores = [scored("a", 4.0, kind=Kind.KERNEL), scored("b", 9.0, kind=Kind.FLAGS)]
    assert summarise(["a", "b"], scores).kinds == {"custom kernel": 1, "flags": 1}
    found = summarise(["a", "b"], only_kind(scores, Kind.KERNEL))
    assert found.headline.value == pytest.approx(2.0)
    assert found.correct == 1


def test_a_score_is_what_the_evaluation_says():
    found = score_of("a", 0, row("a", 2.0, compiled=1.25).evaluation)
    assert (found.correct, found.speedup, found.kind) == (True, 2.0, Kind.KERNEL)
    assert found.against_best == pytest.approx(1.6)
    assert found.roofline == pytest.approx(0.5)
    slow = score_of("a", 0, row("a", 2.0, compiled=0.5).evaluation)
    assert slow.against_best == 2.0  # eager is the best of both
    assert score_of("a", 0, row("a", 2.0, compiled=None).evaluation).against_best is None


def test_peak_memory_is_told_beside_the_references_where_both_are_known():
    plain = row("a", 2.0).evaluation
    scores = [
        score_of("a", 0, replace(plain, peak_bytes=4 << 20, reference_peak_bytes=1 << 20)),
        score_of("b", 0, replace(plain, peak_bytes=1 << 20, reference_peak_bytes=1 << 20)),
        score_of("c", 0, plain),
    ]
    assert [s.memory for s in scores] == [4.0, 1.0, None]
    assert summarise(["a", "b", "c"], scores).memory == pytest.approx(2.0)
    assert summarise(["c"], scores).memory is None


def test_where_every_baseline_failed_b_star_is_not_known():
    found = replace(row("a", 2.0).evaluation, baselines=(Baseline("compile", None, None, "why"),))
    assert score_of("a", 0, found).against_best is None
    assert summarise(["a"], [score_of("a", 0, found)]).headline_best is None


@pytest.mark.parametrize("status", [Status.SANDBOX_ERROR, Status.INVALID_REFERENCE])
def test_a_fault_that_is_not_the_candidates_is_no_score(status):
    with pytest.raises(ValueError, match="says nothing"):
        score_of("a", 0, row("a", status=status).evaluation)


def test_no_tasks_have_no_figures():
    with pytest.raises(ValueError, match="at least one"):
        summarise([], [])


def test_published_degenerate_problems_are_known_by_their_task_ids():
    assert is_degenerate("kernelbench/level1/23_Softmax")
    assert not is_degenerate("kernelbench/level1/2_Standard")
    assert not is_degenerate("builtin/softmax")


def test_the_mean_of_one_task_is_told_without_an_interval_since_resampling_it_has_no_width():
    alone, two = mean_over_all([3.1]), mean_over_all([3.1, 1.0])
    assert figure(alone, 1) == "3.10x"
    assert figure(two, 2) == str(two)
    assert figure(None, 2) == "-"
