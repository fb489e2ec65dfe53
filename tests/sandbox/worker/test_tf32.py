"""What TF32 would make of a reference, and what that allows a candidate."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.checking import compare
from sandbox.checking.bounds import JITTER, NONE, bound, explained
from sandbox.checking.pool import _CaseMaker
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.trees import Leaf
from sandbox.observation import Errors, Failure, FailureKind
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


def test_complex_products_are_rounded_part_by_part_and_others_left_alone() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 20, 20, dtype=torch.complex128)
    with Tf32(matmul=True, convolution=True) as mode:
        found = a @ b
    assert mode.used
    assert 1e-4 < float((found - a @ b).abs().norm() / (a @ b).abs().norm()) < 5e-4
    whole = torch.arange(9).view(3, 3)
    sparse = torch.eye(3).double().to_sparse_csr()
    with Tf32(matmul=True, convolution=True) as mode:
        assert torch.equal(whole @ whole, torch.tensor([[15, 18, 21], [42, 54, 66], [69, 90, 111]]))
        assert torch.equal(sparse @ torch.ones(3, 2).double(), torch.ones(3, 2).double())
    assert not mode.used


def test_what_is_rounded_stays_what_it_was() -> None:
    values = torch.randn(4, 4)
    before = values.clone()
    rounded(values)
    assert torch.equal(values, before)


def test_branches_pass_through() -> None:
    x = torch.randn(3, 3).double()
    with Tf32(matmul=True, convolution=True) as mode:
        found = torch.cond(torch.tensor(True), lambda x: x @ x, lambda x: x - 1, (x,))
    assert mode.used or torch.equal(found, x @ x)


def test_more_than_tf32_explains_allows_nothing() -> None:
    """Such as a router that chooses another expert, or a truth of zeros."""
    one = Errors(2.8e-4, 4e-4, 5e-3)
    rough = [one, Errors(0.3, 0.9, 5.0), Errors(math.inf, 0.0, 0.0)]
    assert explained(rough, [NONE] * 3) == [one, NONE, NONE]


@pytest.mark.parametrize(
    ("smooth", "forward"),
    [
        (True, lambda y: torch.softmax(y, 1)),
        (True, lambda y: y.relu()),
        (True, lambda y: torch.logsumexp(y, 1)),
        (False, lambda y: y * (y == y.amax(1, keepdim=True))),
        (False, torch.sign),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_tf32_explains_what_is_as_many_times_the_jitters_effect_as_it_is_coarser(
    smooth: bool, forward: Callable[[torch.Tensor], torch.Tensor], scale: float
) -> None:
    """A softmax of large inputs is off by ten times more than a product, and no less right."""
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 16, 3).double().requires_grad_(False)
    x = torch.randn(64, 3, 32, 32).double() * scale
    truth = forward(layer(x))
    shaken = forward(layer(x * (1 + JITTER * torch.empty_like(x).uniform_(-1, 1))))
    with Tf32(matmul=True, convolution=True):
        rough = compare.errors(forward(layer(x)), truth)
    (found,) = explained([rough], [compare.errors(shaken, truth)])
    assert found == (rough if smooth else NONE)


class Failing:
    """A worker whose float64 model has no room, or no way, to be rounded."""

    task = SimpleNamespace(device="cuda", dtype="float32")

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def request(self, op: str, timeout_s: float, *, tf32: bool, **fields: Any) -> dict[str, Any]:
        self.asked.append(tf32)
        if tf32:
            raise WorkerFailed(Failure("oracle", FailureKind.CLAIMED, ("RuntimeError",), "no"))
        return {"rounded": False}

    def leaf(self, name: str, index: int, leaf: int) -> torch.Tensor:
        return torch.ones(3)


def test_where_that_fails_the_oracle_stays_what_it_was() -> None:
    subject: Any = Failing()
    signature: Any = SimpleNamespace(outputs=(None,), inputs=(), domains=())
    maker = _CaseMaker(subject, signature, EvalConfig(), "float64")
    truth = maker.truth(0.0)
    assert truth is not None
    assert maker.coarse
    assert maker.off(truth, 0.0, tf32=True) is None
    assert (maker.coarse, maker.oracle) == (False, "float64")
    assert maker.off(truth, JITTER) == [Errors()]


def test_what_tf32_makes_is_allowed_a_candidate_by_the_references_factor() -> None:
    leaf = Leaf((4,), "float32", (1,), 4)
    rough = Errors(3e-4, 4e-4, 5e-4)
    assert bound(leaf, Errors(), Errors(), EvalConfig(), rough) == Errors(12e-4, 16e-4, 20e-4)


@pytest.mark.slow
def test_nothing_of_torch_compile_is_imported_for_it() -> None:
    """Which takes three seconds in every process that makes cases."""
    code = (
        "import sys, torch; from sandbox.worker.tf32 import Tf32\n"
        "with Tf32(True, True): torch.ones(2, 2) @ torch.ones(2, 2)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
