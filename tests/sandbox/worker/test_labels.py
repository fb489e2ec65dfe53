"""Float inputs are labels where the reference makes integers of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn import functional

from sandbox.machine.domains import Domain
from sandbox.worker.labels import domains

X = torch.randn(64, 40)
LABELS = torch.randint(0, 40, (64,)).float()
LABELS[:2] = torch.tensor([3.0, 3.0])
MASK = (torch.rand(64, 40) > 0.5).float()
BOUNDS = torch.randn(40).sort().values

Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def found(model: Model, *inputs: torch.Tensor) -> list[Domain]:
    def outputs(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [model(leaves[0], leaves[-1])]

    return domains(inputs, outputs)


@pytest.mark.parametrize(
    "model",
    [
        lambda x, y: functional.cross_entropy(x, y.long()),
        lambda x, y: x.gather(1, y.int().long()[:, None]),
        lambda x, y: x.cumsum(0)[y.round().long()],
        lambda x, y: (x.argmax(-1) == y.long()).float(),
    ],
)
def test_labels_are_told_by_what_fractions_change(model: Model) -> None:
    assert found(model, X, LABELS) == [Domain.REAL, Domain.LABELS]


@pytest.mark.parametrize(
    "model",
    [
        lambda x, y: x.mean(-1) * y,
        lambda x, y: (y[:, None] == y).float() @ x,
        lambda x, y: y.argsort(),
        lambda x, y: functional.mse_loss(x.sum(-1), y),
        lambda x, y: functional.embedding(y, x),
    ],
)
def test_whole_numbers_that_are_computed_with_are_numbers(model: Model) -> None:
    """The last raises on what it is asked."""
    assert found(model, X, LABELS)[1] is Domain.REAL


def test_labels_of_a_half_type_are_labels() -> None:
    labels = LABELS.bfloat16()
    assert found(lambda x, y: x[torch.arange(64), y.long()], X, labels)[1] is Domain.LABELS


def test_masks_and_bounds_accompany_data_and_are_data_alone() -> None:
    assert found(lambda x, y: x * y, X, MASK) == [Domain.REAL, Domain.MASK]
    assert found(lambda x, y: torch.bucketize(x, y), X, BOUNDS) == [Domain.REAL, Domain.ORDERED]
    assert found(lambda x, y: x.sum(-1), MASK) == [Domain.REAL]
    assert found(lambda x, y: x.sort().values, BOUNDS) == [Domain.REAL]
    assert found(lambda x, y: x @ y.T, MASK, 1 - MASK) == [Domain.REAL, Domain.REAL]
    assert found(lambda x, y: x[y.long()], torch.arange(40), MASK[:, 0])[1] is Domain.MASK


def test_sums_that_come_out_otherwise_each_time_are_compared_roughly() -> None:
    model: Model = lambda x, y: x[torch.arange(64), y.long()] * (1 + 1e-6 * torch.rand(64))  # noqa: E731
    assert found(model, X, LABELS)[1] is Domain.LABELS
