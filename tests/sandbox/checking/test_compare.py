"""Distances between outputs and truth, against numpy's own arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sandbox.checking.compare import (
    QUIET_ROW,
    SHORT_ROW,
    errors,
    identical,
    row_shape,
    ties_explain,
)
from sandbox.observation import Errors

EXACT = Errors()
matrices = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(SHORT_ROW, 40)),
    elements=st.floats(-100, 100, width=32),
)


@given(matrices, st.integers(0, 2**31))
def test_errors_are_the_numpy_formulas(truth: np.ndarray, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=truth.shape) * 1e-3
    found = errors(torch.tensor(truth + noise), torch.tensor(truth))
    difference = (truth + noise) - truth
    if not truth.any():
        assert found == Errors(math.inf, math.inf, math.inf)
        return
    typical = np.sqrt((truth**2).mean())
    scale = np.maximum(np.sqrt((truth**2).mean(1)), QUIET_ROW * typical)
    rows = np.sqrt((difference**2).mean(1)) / scale
    norm = np.linalg.norm(difference) / np.linalg.norm(truth)
    assert found.norm == pytest.approx(norm, rel=1e-9)
    assert found.row == pytest.approx(rows.max(), rel=1e-9)
    quiet = (scale == QUIET_ROW * typical)[:, None]
    size = np.where(quiet, scale[:, None], np.maximum(scale[:, None], np.abs(truth)))
    assert found.element == pytest.approx((np.abs(difference) / size).max(), rel=1e-9)


def test_a_peak_may_carry_the_relative_error_of_its_rows_sum() -> None:
    truth = torch.softmax(20 * torch.randn(64, 4096, generator=torch.manual_seed(1)), 1)
    assert errors(truth * (1 + 4e-6), truth).element == pytest.approx(4e-6, rel=0.1)


@given(matrices, st.integers(0, 2**31), st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2]))
def test_with_a_bound_the_verdict_is_the_same(truth: np.ndarray, seed: int, size: float) -> None:
    noise = np.random.default_rng(seed).normal(size=truth.shape) * size
    out, wanted = torch.tensor(truth + noise).float(), torch.tensor(truth).float()
    bound = Errors(5e-6, 2e-5, 8e-5)
    exact, found = errors(out, wanted), errors(out, wanted, bound)
    assert found.within(bound) == exact.within(bound)
    assert (found.norm, found.row, found.misplaced) == (exact.norm, exact.row, exact.misplaced)
    limited = exact.element <= found.element <= bound.element
    assert limited or found.element == pytest.approx(exact.element, rel=1e-6)


def test_only_a_limit_beyond_the_bound_is_looked_at_closely() -> None:
    truth = torch.softmax(20 * torch.randn(64, 4096, generator=torch.manual_seed(1)), 1)
    out = truth * (1 + 4e-6)
    exact = errors(out, truth).element
    limit = errors(out, truth, Errors(1, 1, 1)).element
    assert limit > 10 * exact
    assert errors(out, truth, Errors(1, 1, 2 * exact)).element == exact


@given(matrices)
def test_equal_tensors_have_no_error(truth: np.ndarray) -> None:
    assert errors(torch.tensor(truth), torch.tensor(truth)) == EXACT


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((), (1, 1)),
        ((5,), (1, 5)),
        ((3, 100), (3, 100)),
        ((4, 3, 5), (1, 60)),
        ((64, 2, 8), (64, 16)),
        ((7, 1, 1), (1, 7)),
    ],
)
def test_short_rows_are_joined(shape: tuple[int, ...], rows: tuple[int, int]) -> None:
    assert row_shape(torch.zeros(shape)) == rows


def test_a_dropped_last_element_hides_from_the_norm_alone() -> None:
    truth = torch.rand(1000, 1000, dtype=torch.float64) + 0.5
    out = truth.clone()
    out[-1, -1] = 0
    found = errors(out, truth)
    assert found.norm < 2e-3
    assert found.element > 0.4


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("out", "truth", "misplaced"),
    [
        ([1.0, INF], [1.0, INF], 0),
        ([1.0, NAN], [1.0, NAN], 0),
        ([1.0, -INF], [1.0, INF], 1),
        ([1.0, NAN], [1.0, INF], 1),
        ([NAN, NAN], [1.0, 2.0], 2),
        ([INF, 2.0], [1.0, NAN], 2),
        ([1.0, 2.0], [1.0, 2.0], 0),
    ],
)
def test_places_that_are_not_finite_must_agree(
    out: list[float], truth: list[float], misplaced: int
) -> None:
    found = errors(torch.tensor(out), torch.tensor(truth, dtype=torch.float64))
    assert found.misplaced == misplaced
    assert found.within(EXACT) == (misplaced == 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_counted_not_measured(dtype: torch.dtype) -> None:
    truth = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    out = truth.clone()
    out[1, 1] = 1
    assert errors(out, truth) == Errors(misplaced=1)


def test_nothing_differs_in_an_empty_tensor() -> None:
    assert errors(torch.empty(0, 3), torch.empty(0, 3)) == EXACT


def test_anything_but_zero_is_infinitely_far_from_zero() -> None:
    zeros = torch.zeros(4, dtype=torch.float64)
    assert errors(torch.full((4,), 1e-30), zeros).norm == INF
    assert errors(torch.zeros(4), zeros) == EXACT


@given(st.binary(min_size=1, max_size=40), st.integers(0, 319), st.integers(1, 255))
def test_identical_sees_every_byte(data: bytes, place: int, flip: int) -> None:
    left = torch.frombuffer(bytearray(data * 8), dtype=torch.uint8)
    right = left.clone()
    assert identical(left, right)
    right[place % len(left)] ^= flip
    assert not identical(left, right)


VALUES = torch.tensor([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 0.0]])


@pytest.mark.parametrize(
    ("indices", "expected", "explained"),
    [
        ([2, 1], [0, 0], True),
        ([1, 1], [0, 0], False),
        ([0, 3], [0, 0], False),
        ([0, 4], [0, 0], False),
        ([0, -1], [0, 0], False),
        ([[2, 0], [2, 1]], [[0, 2], [0, 1]], True),
        ([[0, 0], [0, 1]], [[0, 2], [0, 1]], False),
        ([[0], [0]], [[2], [2]], True),
        ([0, 0, 0], [0, 0, 0], False),
    ],
    ids=["tie", "smaller", "no tie", "outside", "negative", "topk", "repeat", "keepdim", "shape"],
)
def test_only_ties_explain_other_indices(
    indices: list[object], expected: list[object], explained: bool
) -> None:
    found = ties_explain(torch.tensor(indices), torch.tensor(expected), [VALUES])
    assert found is explained


def test_what_a_constant_would_pick_as_well_is_no_tie() -> None:
    """How long padded rows are, told as their last place: both hold the padding."""
    lengths = torch.arange(3, 19)
    padded = (torch.arange(20) < lengths[:, None]).float()
    assert not ties_explain(torch.full((16,), 19), lengths, [padded])
    assert not ties_explain(lengths - 2, torch.zeros(16, dtype=torch.int64), [padded])
    assert ties_explain(torch.full((16,), 19), lengths, [torch.ones(16, 20)]), "all are equal"
    largest = padded.flip(1).argmax(1)
    assert not ties_explain(torch.full((16,), 18), largest, [padded.flip(1)])
    found = torch.rand(16, 20).index_fill(1, torch.tensor([5, 9]), 2.0)
    assert ties_explain(torch.full((16,), 9), torch.full((16,), 5), [found])


def test_whole_numbers_tell_where_no_floating_ones_do() -> None:
    tokens = torch.arange(64).view(2, 32)
    mask, levels = torch.ones(2, 32), torch.arange(64).view(2, 32) // 2
    picks, other = torch.tensor([0, 0]), torch.tensor([1, 1])
    assert ties_explain(other, picks, [levels, mask])
    assert not ties_explain(other, picks, [tokens, mask])
    assert not ties_explain(other, picks, [torch.arange(99), mask]), "the mask alone says nothing"
    assert ties_explain(other, picks, [tokens, levels.float()]), "labels beside data are not asked"


def test_ties_in_another_input_or_dimension_count_too() -> None:
    columns = torch.tensor([[1.0, 2.0], [1.0, 3.0], [0.0, 3.0]])
    assert ties_explain(torch.tensor([1, 2]), torch.tensor([0, 1]), [torch.rand(7), columns])
    assert not ties_explain(torch.tensor([True]), torch.tensor([False]), [torch.zeros(2, 1)])
