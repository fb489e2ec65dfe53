"""What is written in place is judged by its size and by how much it was to change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sandbox.checking.updates import BUFFER_SHARE, input_share, same_update

BEFORE = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
CHANGE = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))


def alike(found: torch.Tensor, expected: torch.Tensor, before: torch.Tensor = BEFORE) -> bool:
    return same_update(found, expected, before.to(expected.dtype), input_share(expected.dtype))


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda change: change, True),
        (lambda change: change * (1 + 2e-4 * torch.randn_like(change)), True),
        (lambda change: torch.zeros_like(change), False),
        (lambda change: change * 1.01, False),
        (lambda change: change.bfloat16().float(), False),
        (lambda change: change.index_fill(0, torch.tensor([7]), 0.0), False),
        (lambda change: change.roll(1, 0), False),
    ],
    ids=["as it is", "TF32", "left out", "off by a hundredth", "bfloat16", "a row", "moved"],
)
def test_an_update_is_judged_however_small_it_is(
    size: float, left: Callable[[torch.Tensor], torch.Tensor], right: bool
) -> None:
    if size == 1e-6 and right is False and left(CHANGE).allclose(CHANGE, rtol=0.02):
        return  # Rounding to float32 is a tenth of that change.
    expected = BEFORE + size * CHANGE
    assert alike(BEFORE + size * left(CHANGE), expected) is right


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fewer_roundings_are_forgiven(dtype: torch.dtype) -> None:
    before, change = BEFORE.to(dtype), CHANGE.to(dtype)
    twice = before.add(change).mul(change)
    once = ((before.float() + change.float()) * change.float()).to(dtype)
    assert not torch.equal(twice, once)
    assert alike(once, twice)
    assert not alike(before, twice)


def test_what_was_not_to_change_is_left_but_for_roundings() -> None:
    other = BEFORE.clone()
    other[3, 4] += 1e-4
    assert alike(BEFORE, BEFORE)
    assert not alike(other, BEFORE)
    assert alike(BEFORE * (1 + 2**-23), BEFORE)
    counts = torch.arange(6)
    assert same_update(counts + 1, counts + 1, counts, BUFFER_SHARE)
    assert not same_update(counts, counts + 1, counts, BUFFER_SHARE)


def test_a_change_below_the_last_digit_says_nothing() -> None:
    """Of a few elements near zero one order of operations changes another one than the other."""
    one, other = BEFORE.clone(), BEFORE.clone()
    one[5, 6] = torch.nextafter(one[5, 6], torch.tensor(9.0))
    other[7, 8] = torch.nextafter(other[7, 8], torch.tensor(9.0))
    assert alike(one, other)
    assert alike(one, BEFORE)


def test_infinities_are_where_they_were_put() -> None:
    expected = BEFORE.clone()
    expected[:, ::2] = float("-inf")
    assert alike(expected, expected)
    assert not alike(BEFORE, expected)
    expected[0, 1] = float("nan")
    assert alike(expected.clone(), expected)
