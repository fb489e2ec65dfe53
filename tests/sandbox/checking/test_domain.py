"""Inputs keep what they visibly are, whatever else is done to them."""

from __future__ import annotations

import random

import pytest
import torch

from sandbox.checking import hidden
from sandbox.checking.domain import direction, domain_of, movable, move, rescale, symmetric
from sandbox.machine.domains import Domain

SECRET = random.Random(5)
SCALES = (3.0, 0.01, -1.0, 128.0, -3.0)
NORMAL = torch.randn(24, 24, generator=torch.Generator().manual_seed(3))
CAUSAL = torch.tril(torch.ones(24, 24))
DEFINITE = NORMAL @ NORMAL.T + torch.eye(24)


@pytest.mark.parametrize(
    ("tensor", "domain"),
    [
        (CAUSAL, Domain.MASK),
        ((NORMAL > 0).float(), Domain.MASK),
        (NORMAL.sign(), Domain.MASK),
        (torch.full((24, 24), -torch.inf).triu(1), Domain.MASK),
        ((1 - CAUSAL) * -1e9, Domain.MASK),
        ((1 - CAUSAL) * torch.finfo(torch.float16).min, Domain.MASK),
        ((1 - CAUSAL).half() * -1e4, Domain.MASK),
        (torch.nn.functional.one_hot(torch.arange(24) % 7).float(), Domain.MASK),
        (CAUSAL.bool(), Domain.MASK),
        (CAUSAL.long(), Domain.MASK),
        (torch.arange(24) < 16, Domain.MASK),
        (torch.ones(24, dtype=torch.bool), Domain.UNIFORM),
        (torch.tensor(False), Domain.UNIFORM),
        (torch.ones(24, dtype=torch.int64), Domain.UNIFORM),
        (torch.zeros(24, dtype=torch.int64), Domain.REAL),
        (torch.ones(3, dtype=torch.int64), Domain.REAL),
        (torch.eye(24).bool(), Domain.REAL),
        (CAUSAL.int() * 2, Domain.REAL),
        (torch.tensor([0, 1]), Domain.REAL),
        (torch.ones(0, dtype=torch.int64), Domain.REAL),
        ((NORMAL > 0).float() * 1.25, Domain.REAL),
        (torch.ones(24), Domain.UNIFORM),
        (torch.zeros(24), Domain.UNIFORM),
        (torch.full((24,), -torch.inf), Domain.REAL),
        (torch.eye(24), Domain.REAL),
        (NORMAL.softmax(-1), Domain.DISTRIBUTION),
        (NORMAL.bfloat16().softmax(-1), Domain.DISTRIBUTION),
        (NORMAL.log_softmax(-1), Domain.LOG_DISTRIBUTION),
        (torch.full((24, 24), 1 / 24), Domain.UNIFORM),
        (CAUSAL / CAUSAL.sum(-1, keepdim=True), Domain.REAL),
        (NORMAL.flatten().sort().values, Domain.ORDERED),
        (torch.linspace(1, 0, 65), Domain.ORDERED),
        (torch.arange(24).float(), Domain.ORDERED),
        (torch.rand(8, 24).cumsum(-1), Domain.ORDERED),
        (torch.tensor([1.0, 2.0]), Domain.REAL),
        (DEFINITE, Domain.DEFINITE),
        (-DEFINITE, Domain.REAL),
        (torch.diag(torch.rand(24) + 1), Domain.REAL),
        (NORMAL, Domain.REAL),
        (torch.rand(24, 24), Domain.REAL),
        (torch.arange(24), Domain.REAL),
        (torch.tensor(2.0), Domain.REAL),
        (torch.full((24,), torch.nan), Domain.REAL),
        (torch.rand(24).to(torch.float8_e4m3fn), Domain.REAL),
    ],
)
def test_a_domain_is_what_all_values_agree_on(tensor: torch.Tensor, domain: Domain) -> None:
    assert domain_of(tensor) is domain


KEPT = {
    Domain.DISTRIBUTION: NORMAL.softmax(-1),
    Domain.LOG_DISTRIBUTION: NORMAL.log_softmax(-1),
    Domain.ORDERED: torch.rand(8, 24).cumsum(-1),
    Domain.DEFINITE: DEFINITE,
}


@pytest.mark.parametrize("domain", KEPT)
@pytest.mark.parametrize("scale", SCALES)
def test_it_is_kept_by_every_scale_and_values_are_others(domain: Domain, scale: float) -> None:
    for other in (KEPT[domain], KEPT[domain].double()):
        tensor = other.clone()
        rescale(tensor, domain, scale)
        assert not torch.allclose(tensor, other)
        if domain is Domain.ORDERED:
            assert direction(tensor) is False
            assert (tensor.amin() < 0) == (scale < 0)
        elif domain is Domain.DEFINITE:
            assert torch.linalg.cholesky_ex(tensor.double()).info == 0
            assert ((tensor * DEFINITE) < 0).any() == (scale < 0)
        else:
            chances = tensor if domain is Domain.DISTRIBUTION else tensor.exp()
            assert chances.amin() >= 0
            assert torch.allclose(chances.sum(-1), torch.ones(24, dtype=other.dtype), atol=1e-5)


@pytest.mark.parametrize("domain", KEPT)
@pytest.mark.parametrize("name", [name for name in hidden.CHANGES if name != hidden.MASKS_MOVED])
def test_it_is_kept_by_every_change(domain: Domain, name: str) -> None:
    tensor = KEPT[domain].clone()
    changed = hidden.CHANGES[name]([tensor], [domain], SECRET)
    assert domain_of(tensor) is domain
    assert changed or torch.equal(tensor, KEPT[domain])


def test_what_is_impossible_stays_so() -> None:
    chances = torch.tensor([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]])
    for scale in SCALES:
        for domain, values in (
            (Domain.DISTRIBUTION, chances.clone()),
            (Domain.LOG_DISTRIBUTION, chances.log()),
        ):
            rescale(values, domain, scale)
            assert not values.isnan().any()
            kept = values if domain is Domain.DISTRIBUTION else values.exp()
            assert (kept[chances == 0] == 0).all()


@pytest.mark.parametrize("scale", SCALES)
def test_a_mask_is_kept_and_masks_however_large_scores_become(scale: float) -> None:
    for mask in (CAUSAL, NORMAL.sign(), torch.full((24, 24), -torch.inf).triu(1)):
        other = mask.clone()
        rescale(other, Domain.MASK, scale)
        assert torch.equal(other, mask)
    for type_, far in ((torch.float32, -1e4), (torch.float16, -65504.0)):
        mask = torch.full((24, 24), far).triu(1).to(type_)
        other = mask.clone()
        rescale(other, Domain.MASK, scale)
        assert torch.equal(other == 0, mask == 0)
        assert other.isfinite().all()
        assert other.amin() <= max(far * max(scale * scale, 1), torch.finfo(type_).min)


@pytest.mark.parametrize(
    "mask",
    [
        CAUSAL,
        CAUSAL.expand(2, 3, 24, 24).clone(),
        torch.full((24, 24), -torch.inf).triu(1),
        (torch.arange(24) < torch.arange(1, 24)[:, None]).float(),
        (torch.arange(24) < 9).float(),
        (NORMAL > 0).float()[:, None, None],
        torch.randint(0, 9, (24,)).float(),
        torch.randint(0, 9, (24,)).float().sort().values,
    ],
)
def test_a_mask_that_moves_keeps_values_and_the_order_of_rows(mask: torch.Tensor) -> None:
    for _ in range(20):
        other = mask.clone()
        assert move(other, SECRET)
        assert not torch.equal(other, mask)
        assert set(other.flatten().tolist()) <= set(mask.flatten().tolist())
        assert direction(other) == direction(mask)
        if mask.ndim > 1:
            assert sorted((other == 0).sum(-1).flatten().tolist()) == sorted(
                (mask == 0).sum(-1).flatten().tolist()
            )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [0, 1])
def test_what_is_the_same_everywhere_is_it_no_longer(value: int, dtype: torch.dtype) -> None:
    tensor = torch.full((40, 32), value).to(dtype)
    if dtype is torch.int32 and value == 0:  # It may index what has one place.
        assert not move(tensor, SECRET)
        return
    other = tensor.clone()
    assert move(other, SECRET)
    rare = int((other == (0 if value else 1)).sum())
    if not dtype.is_floating_point or value:
        assert 1 <= rare <= other.numel() // 16
    if dtype.is_floating_point:
        assert other.unique().numel() > 100
        assert (other >= 0).all() or value == 0
        assert float(other.float().abs().amax()) < 4
    assert move(torch.ones(1, dtype=torch.bool), SECRET)


def test_a_symmetric_mask_stays_so_and_one_that_cannot_move_is_none() -> None:
    near = ((torch.arange(24) - torch.arange(24)[:, None]).abs() < 3).float()
    assert domain_of(near) is Domain.MASK
    assert move(near, SECRET)
    assert symmetric(near)
    assert not movable(torch.eye(24))
    assert not movable(1 - torch.eye(24))
