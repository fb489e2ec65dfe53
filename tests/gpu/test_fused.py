"""The sums behind errors in one pass on a GPU, against torch's operators on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from sandbox.checking import fused
from sandbox.checking.compare import errors
from sandbox.observation import Errors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
WITHIN = Errors(1e-1, 1.0, 10.0)


@pytest.mark.parametrize("kind", fused.LOADS, ids=str)
@pytest.mark.parametrize(("rows", "length"), [(700, 257), (33, 5000), (3, 1_000_003)])
def test_one_pass_gives_what_torch_gives(rows: int, length: int, kind: torch.dtype) -> None:
    torch.manual_seed(rows)
    truth = (torch.randn(rows, length) * torch.logspace(-1, 1, rows)[:, None]).to(kind)
    out = (truth.double() * (1 + 3e-2 * torch.rand(rows, length))).to(kind)
    out[1, 3:6] = torch.tensor([math.inf, math.nan, 1.0])
    truth[1, 3:6] = torch.tensor([math.inf, 1.0, -math.inf])
    slow, quick = errors(out, truth, WITHIN), errors(out.cuda(), truth.cuda(), WITHIN)
    assert fused.able(out.cuda(), truth.cuda())
    assert quick.misplaced == slow.misplaced == 2
    assert 0 < quick.norm == pytest.approx(slow.norm, rel=1e-4)
    assert quick.row == pytest.approx(slow.row, rel=1e-4)
    assert slow.element <= quick.element * 1.0001 < WITHIN.element  # a limit beside the figure
