"""Hidden inputs break what caches and thresholds rely on, and keep what honest kernels rely on."""

from __future__ import annotations

import random

import pytest
import torch

from sandbox.checking import hidden
from sandbox.checking.domain import domain_of
from sandbox.checking.pool import Case
from sandbox.checking.verify import order
from sandbox.machine.domains import Domain
from sandbox.types import Status
from tests.sandbox.conftest import Evaluate, forward

SECRET = random.Random(7)


@pytest.mark.parametrize(
    "kept",
    [
        torch.randn(9, 9).tril(),
        torch.randn(9, 9) + torch.randn(9, 9).T * 0 + torch.eye(9),
        (torch.randn(9, 9) + 1).sign(),
        torch.rand(5, 64),
        torch.full((4, 4), float("-inf")).triu(1),
    ],
    ids=["triangle", "dense", "signs", "unit interval", "mask"],
)
@pytest.mark.parametrize("change", hidden.CHANGES.values(), ids=list(hidden.CHANGES))
def test_zeros_signs_and_range_survive_every_change(
    kept: torch.Tensor, change: hidden.Change
) -> None:
    tensor = kept.clone()
    change([tensor], [domain_of(tensor)], SECRET)
    if change not in (hidden.permute, hidden.move_masks):
        assert torch.equal(tensor == 0, kept == 0)
    if change is hidden.negate_part:
        assert torch.equal(tensor.abs(), kept.abs())
    elif kept.isfinite().all() and kept.abs().max() <= 1:
        assert tensor.min() >= min(kept.min(), 0)
        assert tensor.max() <= 1
    if change is hidden.move_masks:
        assert torch.equal(tensor.flatten().sort().values, kept.flatten().sort().values)
    else:
        assert torch.equal(tensor.isinf(), kept.isinf())


def test_a_symmetric_matrix_stays_symmetric() -> None:
    for change in hidden.CHANGES.values():
        matrix = torch.randn(16, 16)
        matrix = matrix + matrix.T
        change([matrix], [Domain.REAL], SECRET)
        assert torch.allclose(matrix, matrix.T, rtol=1e-6)


def test_one_element_moves_far_and_no_other_moves() -> None:
    before = torch.randn(64, 65)
    after = before.clone()
    assert hidden.change_one([after], [Domain.REAL], SECRET)
    moved = (after != before).nonzero()
    assert len(moved) == 1
    assert (after - before).abs().max() > 2.0


def test_signs_change_in_a_stretch_that_few_elements_do_not_tell() -> None:
    seen = set()
    for _ in range(50):
        before = torch.rand(256, 512) + 0.5
        after = before.clone()
        assert hidden.negate_part([after], [Domain.REAL], SECRET)
        assert torch.equal(after.abs(), before)
        negated = after < 0
        seen.add((bool(negated.all(1).any()), bool(negated.all(0).any())))
        assert negated.double().mean() == 1 / 64
        assert negated.any(1).sum() in (4, 256)
    assert seen == {(True, False), (False, True)}


def test_samples_of_all_tensors_are_permuted_alike() -> None:
    x = torch.arange(40.0).reshape(8, 5) + 1
    y = torch.arange(16.0).reshape(8, 2) + 1
    weight = torch.arange(15.0).reshape(3, 5) + 1
    ours = [x.clone(), y.clone(), weight.clone()]
    assert hidden.permute(ours, [Domain.REAL] * 3, SECRET)
    rows = [int(v - 1) // 5 for v in ours[0][:, 0]]
    assert rows != list(range(8))
    assert torch.equal(ours[0], x[rows])
    assert torch.equal(ours[1], y[rows])
    assert torch.equal(ours[2], weight)


def case(name: str, made_from: str | None = None, *, alike: bool = False) -> Case:
    return Case(name, torch.empty(0), (), (), (), None, made_from=made_from, alike=alike)


def test_a_case_that_is_alike_is_called_beside_its_original() -> None:
    cases = [case("given"), case("fresh"), case("flattened", "given")]
    cases += [case("one changed", "given", alike=True), case("permuted", "given", alike=True)]
    orders = {tuple(order(cases)) for _ in range(200)}
    assert len(orders) > 8
    for calls in orders:
        assert sorted(calls) == [0, 1, 2, 3, 4]
        assert abs(calls.index(0) - calls.index(3)) == 1
        assert abs(calls.index(0) - calls.index(4)) == 1


def test_every_change_is_a_case_of_a_small_task(evaluate: Evaluate) -> None:
    found = evaluate(forward("return y"))
    assert all(c.passed for c in found.cases)
    names = " ".join(c.name for c in found.cases)
    assert all((name in names) is (name != hidden.MASKS_MOVED) for name in hidden.CHANGES)


SAMPLED_CACHE = """
cache = {}

def remembered(x, compute):
    key = (x.shape, x.flatten()[::64].sum().item())
    if key not in cache:
        cache[key] = compute(x)
    return cache[key].clone()
"""


def test_a_cache_by_a_sample_of_the_contents_is_wrong(evaluate: Evaluate) -> None:
    # The key misses 63 of 64 elements; two tasks have two secret cases.
    found = [
        evaluate(
            forward("return remembered(x, lambda x: torch.relu(x) * 3.0 + 1.0)", top=SAMPLED_CACHE),
            exact_float32=exact,
        ).status
        for exact in (False, True)
    ]
    assert Status.WRONG_VALUE in found


SUMMED_CACHE = SAMPLED_CACHE.replace(
    "x.flatten()[::64].sum().item()", "round(x.double().sum().item(), 6)"
)


def test_a_cache_by_the_sum_of_the_contents_is_wrong(evaluate: Evaluate) -> None:
    found = evaluate(
        forward("return remembered(x, lambda x: torch.relu(x) * 3.0 + 1.0)", top=SUMMED_CACHE)
    )
    assert found.status is Status.WRONG_VALUE, found.detail
    assert "samples permuted" in found.detail or "given" in found.detail


TOP = """
import torch
import torch.nn as nn


class {name}(nn.Module):
    def forward(self, x):
        return {value}


def get_inputs():
    return [torch.randn(16, 512)]


def get_init_inputs():
    return []
"""


def test_a_threshold_that_follows_the_scale_is_wrong(evaluate: Evaluate) -> None:
    reference = TOP.format(name="Model", value="x.topk(4, -1).values")
    thrifty = "torch.where(x > 1.6 * x[0].std(), x, 0.0).topk(4, -1).values"
    found = evaluate(TOP.format(name="ModelNew", value=thrifty), reference=reference)
    assert found.status is Status.WRONG_VALUE, found.detail
    assert "flattened" in found.detail


def test_a_softmax_without_its_maximum_is_wrong(evaluate: Evaluate) -> None:
    reference = TOP.format(name="Model", value="torch.softmax(x, -1)")
    naive = TOP.format(name="ModelNew", value="x.exp() / x.exp().sum(-1, keepdim=True)")
    found = evaluate(naive, reference=reference)
    assert found.status is Status.WRONG_VALUE, found.detail
    right = TOP.format(name="ModelNew", value="(x - x.amax(-1, True)).softmax(-1)")
    cases = evaluate(right, reference=reference).cases
    assert len(cases) > 5
    assert all(c.passed for c in cases)
