"""What TF32 would make of a reference, and what that allows a candidate."""

from __future__ import annotations

import pytest
import torch

from sandbox.observation import Errors
from sandbox.pool import bound
from sandbox.trees import Leaf
from sandbox.types import EvalConfig
from sandbox.worker.tf32 import Tf32, rounded


def off(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1.0),
        (1 + 2**-10, 1 + 2**-10),
        (1 + 2**-11, 1 + 2**-10),  # a tie, away from zero
        (-1 - 2**-11, -1 - 2**-10),
        (1 + 2**-12, 1.0),
        (float("inf"), float("inf")),
        (0.0, 0.0),
    ],
)
def test_ten_bits_are_kept(value: float, expected: float) -> None:
    found = rounded(torch.tensor([[value]], dtype=torch.float64))
    assert found.dtype == torch.float64
    assert float(found) == expected


def test_a_tensor_of_any_layout_is_rounded() -> None:
    values = torch.randn(3, 4, 5, dtype=torch.float64).permute(2, 0, 1)[:, :, 1:]
    assert torch.equal(rounded(values), rounded(values.contiguous()))


@pytest.mark.parametrize("matmul", [False, True])
def test_products_are_rounded_where_that_is_allowed(matmul: bool) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, 300).double(), torch.randn(300, 32).double()
    bias = torch.randn(32).double()
    for call in (
        lambda: a @ b,
        lambda: torch.nn.functional.linear(a, b.T, bias),
        lambda: torch.stack([a, a]) @ torch.stack([b, b]),
        lambda: torch.einsum("ik,kj->ij", a, b),
    ):
        with Tf32(matmul, convolution=True) as mode:
            found = call()
        assert mode.used is matmul
        assert (1e-4 < off(found, call()) < 5e-4) if matmul else torch.equal(found, call())


@pytest.mark.parametrize("convolution", [False, True])
def test_convolutions_have_a_flag_of_their_own(convolution: bool) -> None:
    torch.manual_seed(0)
    x, model = torch.randn(2, 3, 16, 16).double(), torch.nn.Conv2d(3, 8, 3).double()
    turned = torch.nn.ConvTranspose2d(3, 8, 3).double()
    for layer in (model, turned):
        with torch.no_grad():
            with Tf32(matmul=True, convolution=convolution) as mode:
                found = layer(x)
            assert mode.used is convolution
            assert (off(found, layer(x)) > 5e-5) is convolution


def test_nothing_else_is_rounded() -> None:
    x = torch.randn(8, 8).double()
    with Tf32(matmul=True, convolution=True) as mode:
        found = torch.softmax(x, 1) + torch.nn.functional.layer_norm(x, (8,))
    assert not mode.used
    assert torch.equal(found, torch.softmax(x, 1) + torch.nn.functional.layer_norm(x, (8,)))


def test_what_tf32_makes_is_allowed_a_candidate_by_the_references_factor() -> None:
    leaf = Leaf((4,), "float32", (1,), 4)
    rough = Errors(3e-4, 4e-4, 5e-4)
    assert bound(leaf, Errors(), Errors(), EvalConfig(), rough) == Errors(12e-4, 16e-4, 20e-4)
