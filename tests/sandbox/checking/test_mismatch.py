"""Where a wrong output is wrong, and what its errors look like: facts for whoever wrote it."""

import pytest
import torch

from sandbox.checking.compare import errors
from sandbox.checking.mismatch import mismatch
from sandbox.judging.judge import judge_case
from sandbox.observation import CaseObservation, Errors
from sandbox.types import Status

BOUND = Errors(5e-6, 2e-5, 1e-4)
TRUTH = torch.randn(64, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def found(out: torch.Tensor, truth: torch.Tensor = TRUTH):
    return mismatch(out, truth, BOUND)


def test_an_output_within_its_bound_has_no_mismatch():
    assert found(TRUTH.float()) is None


def test_a_single_wrong_element_is_named_by_its_coordinates():
    out = TRUTH.float()
    out[3, 7] += 1.0
    seen = found(out)
    assert (seen.first, seen.count) == ((3, 7), 1)
    assert seen.share == pytest.approx(1 / 8192)
    assert (
        "0.0122 % of the elements are wrong (1 of 8192), the first at [3, 7] of [64, 128]"
        in str(seen)
    )


@pytest.mark.parametrize(
    ("spoil", "hint"),
    [
        (lambda t: torch.cat([t[:, :96], torch.zeros(64, 32)], 1), "all of them are zero"),
        (
            lambda t: torch.cat([t[:, :96], torch.ones(64, 32)], 1),
            "in the last dimension from index 96 of 128 on: a tail is missing",
        ),
        (
            lambda t: torch.cat([t[:60], torch.ones(4, 128)]),
            "in rows from number 60 of 64 on: a tail is missing",
        ),
        (lambda t: t.T.contiguous().reshape(64, 128), "which are transposed"),
        (lambda t: 0.5 * t, "every element is 0.5 times what it should be"),
        (lambda t: -t, "every element is -1 times"),
        (lambda t: t.bfloat16().float(), "precision is lost on the way"),
        (lambda t: torch.where(t > 1, torch.nan, t), "all of them are NaN or infinite"),
    ],
)
def test_the_pattern_of_the_errors_is_told(spoil, hint):
    assert hint in "; ".join(found(spoil(TRUTH.float())).hints)


def test_a_flat_tail_is_told():
    truth = TRUTH.reshape(-1)
    out = truth.float()
    out[8000:] = 5.0
    assert "from flat index 8000 of 8192 on" in str(found(out, truth))


def test_errors_without_a_pattern_have_no_hint():
    noise = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    assert found(noise).hints == ()


def test_integers_are_compared_exactly_and_scalars_have_a_place():
    truth = torch.arange(12).reshape(3, 4)
    turned = truth.T.contiguous().reshape(3, 4)
    assert "transposed" in str(found(turned, truth))
    scalar = found(torch.tensor(2.0), torch.tensor(1.0, dtype=torch.float64))
    assert (scalar.first, scalar.share) == ((), 1.0)


def test_an_error_that_only_a_norm_sees_is_placed_too():
    out = TRUTH.float() * (1 + 2e-5)
    assert found(out).share > 0.5
    assert "precision is lost" in str(found(out))


def test_the_place_reaches_the_verdict_and_no_value_does():
    out = TRUTH.float()
    out[:, 96:] = 0
    case = CaseObservation("c", (errors(out, TRUTH),), (BOUND,), (found(out),))
    status, detail = judge_case(case)
    assert status is Status.WRONG_VALUE
    assert "25 % of the elements are wrong" in detail
    assert f"{float(TRUTH[0, 96]):.3f}" not in detail


def test_without_room_to_look_the_verdict_stays_and_nothing_is_told(monkeypatch):
    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("sandbox.checking.mismatch.wrong_elements", full)
    out = TRUTH.float() + 1.0
    case = CaseObservation("a", (errors(out, TRUTH, BOUND),), (BOUND,), (found(out),))
    assert found(out) is None
    assert judge_case(case)[0] is Status.WRONG_VALUE
