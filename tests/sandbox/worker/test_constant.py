"""Inputs that a task makes alike each time are not alike in two sets that are timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from sandbox.machine.domains import Domain
from sandbox.worker.constant import SHRINKAGE, constant_inputs, shrink
from sandbox.worker.reference import ReferenceSession

GRID = torch.linspace(-1, 1, 4096)


def inputs() -> list[torch.Tensor]:
    mask = (torch.arange(4096) % 2).float()
    return [torch.randn(64), GRID.clone(), mask, torch.arange(4096), GRID.to(torch.float8_e4m3fn)]


class Filled(ReferenceSession):
    """Whose sets lie here."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.device = "cpu"
        self.module = SimpleNamespace(get_inputs=inputs)
        self.input_tree = {"l": [{"t": number} for number in range(len(inputs()))]}
        self.sets = [[torch.empty_like(tensor) for tensor in inputs()] for _ in range(3)]

    def place(self, arena: str, index: int, leaf: int) -> torch.Tensor:
        return self.sets[index][leaf]

    def synchronize(self) -> None: ...

    def fill(self, seed: int, *, varied: bool) -> list[list[torch.Tensor]]:
        domains = [Domain.REAL, Domain.ORDERED, Domain.MASK, Domain.REAL, Domain.REAL]
        asked = {"seed": seed, "scale": 1.0, "sets": [0, 1, 2], "domains": domains}
        self.do_fill({**asked, "varied": varied}, [])
        return [[tensor.clone() for tensor in each] for each in self.sets]


def make(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return inputs()


def test_a_grid_is_constant_and_masks_and_integers_are_left_alone() -> None:
    assert constant_inputs(make, 7) == {1}


def test_a_multiple_of_it_keeps_signs_zeros_and_any_range_around_zero() -> None:
    found = GRID.clone()
    shrink(found, Domain.ORDERED)
    factor = float(found[-1])
    assert 1 - SHRINKAGE <= factor <= 1
    assert torch.allclose(found, GRID * factor)


def test_no_two_sets_have_the_same_of_it_and_a_seed_gives_them_again() -> None:
    session = Filled()
    sets = session.fill(5, varied=True)
    assert len({float(each[1][-1]) for each in sets}) == 3
    for leaf in (2, 3, 4):
        assert all(torch.equal(each[leaf].float(), inputs()[leaf].float()) for each in sets)
    again = session.fill(5, varied=True)
    assert all(torch.equal(a[n], b[n]) for a, b in zip(sets, again, strict=True) for n in range(4))
    assert all(torch.equal(each[1], GRID) for each in session.fill(5, varied=False))
