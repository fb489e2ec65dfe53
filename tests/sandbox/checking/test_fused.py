"""The sums behind errors in one pass, emulated on the CPU, against torch's operators."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.checking import fused
from sandbox.checking.compare import errors
from sandbox.machine import launch
from sandbox.observation import Errors
from tests.agent.cuda_emulator import RawModule

WITHIN = Errors(1e-1, 1.0, 10.0)


@pytest.fixture
def emulated(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = type("InFolder", (RawModule,), {"folder": str(shared)})

    def kernel(source: str, name: str) -> Any:
        return module(code=source).get_function(name)

    monkeypatch.setattr(launch, "kernel", kernel)
    monkeypatch.setattr(launch, "current", lambda device: contextlib.nullcontext())


def pair(rows: int, length: int, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A truth whose rows differ in scale, and something near it."""
    torch.manual_seed(rows)
    truth = (torch.randn(rows, length) * torch.logspace(-1, 1, rows)[:, None]).to(kind)
    return (truth.double() * (1 + 3e-2 * torch.rand(rows, length))).to(kind), truth


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", fused.LOADS, ids=str)
@pytest.mark.parametrize(("rows", "length"), [(5, 257), (3, 4097), (2, fused.PIECE + 300)])
def test_one_pass_gives_what_torch_gives(
    rows: int, length: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, truth = pair(rows, length, kind)
    slow = errors(out, truth, WITHIN)
    monkeypatch.setattr(fused, "able", lambda *_: True)
    quick = errors(out, truth, WITHIN)
    assert 0 < quick.norm == pytest.approx(slow.norm, rel=1e-4)
    assert quick.row == pytest.approx(slow.row, rel=1e-4)
    assert quick.element == pytest.approx(slow.element, rel=1e-4)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", fused.LOADS, ids=str)
def test_verification_compares_with_float64(kind: torch.dtype) -> None:
    """Rows that lie apart are read where they are, to their last element."""
    out, truth = pair(3, 4099, kind)
    room = torch.full((3, 5000), 7.0, dtype=kind)
    room[:, :4099] = out
    room[2, 4098] += 100
    seen = fused.sums(room[:, :4099], truth.double())
    difference = room[:, :4099].double() - truth.double()
    assert seen.square == pytest.approx((difference**2).sum(1), rel=1e-9)
    assert seen.apart == pytest.approx(difference.abs().amax(1), rel=1e-9)
    assert seen.energy == pytest.approx((truth.double() ** 2).sum(1), rel=1e-9)


@pytest.mark.usefixtures("emulated")
def test_places_that_are_not_finite_are_counted_where_they_disagree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, truth = pair(2, 300, torch.float32)
    same, apart = (math.inf, math.nan), ((math.inf, -math.inf), (1, math.nan), (math.nan, 1))
    for place, (mine, right) in enumerate([*zip(same, same, strict=True), *apart, (math.inf, 1)]):
        out[1, place], truth[1, place] = mine, right
    slow = errors(out, truth, WITHIN)
    monkeypatch.setattr(fused, "able", lambda *_: True)
    quick = errors(out, truth, WITHIN)
    assert quick.misplaced == slow.misplaced == 4
    assert quick.norm == pytest.approx(slow.norm, rel=1e-6)


@pytest.mark.usefixtures("emulated")
def test_an_upper_limit_beyond_the_bound_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A softmax row's peak is many times its scale, and may be as far off as it is large."""
    truth = torch.full((1, 1024), 1e-3)
    truth[0, 7] = 10.0
    out = truth.clone()
    out[0, 7] = 10.01
    monkeypatch.setattr(fused, "able", lambda *_: True)
    found = errors(out, truth, Errors(1.0, 1.0, 2e-3))
    assert found.element == pytest.approx(1e-3, rel=1e-3)


def test_rows_that_are_too_short_and_integers_are_left_to_torch() -> None:
    def able(columns: int, dtype: torch.dtype, *, is_cuda: bool = True) -> bool:
        tensor = SimpleNamespace(is_cuda=is_cuda, dtype=dtype, shape=(4, columns))
        return fused.able(tensor, tensor)  # type: ignore[arg-type]

    assert able(fused.SHORTEST, torch.float32)
    assert not able(fused.SHORTEST - 1, torch.float32)
    assert not able(fused.SHORTEST, torch.int32)
    assert not able(fused.SHORTEST, torch.float32, is_cuda=False)


@pytest.mark.parametrize("lanes", [fused.WARP, fused.BLOCK])
@pytest.mark.parametrize("truth", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", fused.LOADS, ids=str)
def test_nvrtc_keeps_the_smallest_numbers(
    kind: torch.dtype, truth: torch.dtype, lanes: int
) -> None:
    """As cupy calls it: with -ftz=true a plain conversion flushes them to zero."""
    nvrtc = pytest.importorskip("cupy", reason="needs NVRTC: the extra cuda13").cuda.nvrtc
    program = nvrtc.createProgram(fused.source(kind, truth, lanes), "sums.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=compute_90", "--std=c++17", "-ftz=true"))
    assert ".ftz" not in str(nvrtc.getPTX(program))
