"""Generated CUDA candidates: compiled for sm_90 by NVRTC, and run on the CPU by the emulator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.features.assemble import candidate
from tests.agent import cuda_emulator
from tests.agent.features_references import (
    BOUNDS,
    GROUPED,
    NAMES,
    cuda_points,
    grouped,
    shared,
    task,
    traced,
    worst_error,
)


def compile_error(source: str) -> str | None:
    nvrtc = pytest.importorskip("cupy", reason="needs NVRTC: the extra cuda13").cuda.nvrtc
    program = nvrtc.createProgram(source.split('r"""')[1].split('"""')[0], "candidate.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("-arch=sm_90", "--std=c++17"))
    except nvrtc.NVRTCError:
        return str(nvrtc.getProgramLog(program))
    return None


def test_a_maximum_is_subtracted_from_products_that_were_rounded_like_it() -> None:
    """A product fused into the subtraction in one loop and not in another made rows of 1.005."""
    nvrtc = pytest.importorskip("cupy", reason="needs NVRTC: the extra cuda13").cuda.nvrtc
    problem = task("softmax_of_squares", "cuda")
    found = traced(problem)
    for point in cuda_points(found, 3):
        source = candidate(problem, found, point).source.split('r"""')[1].split('"""')[0]
        program = nvrtc.createProgram(source, "candidate.cu", (), ())
        nvrtc.compileProgram(program, ("-arch=compute_90", "--std=c++17"))
        ptx = nvrtc.getPTX(program)
        text = ptx if isinstance(ptx, str) else ptx.decode()
        fusible = re.findall(r"mul\.f32\s+(%f\d+),[^;]*;\s+sub\.f32\s+%f\d+, \1,", text)
        assert "sub.rn.f32" in text
        assert not fusible, point


@pytest.mark.slow
@pytest.mark.parametrize("name", shared(NAMES))
def test_nvrtc_accepts_every_template(name: str) -> None:
    problem = task(name, "cuda", "bfloat16" if name == "layer_norm" else "float32")
    found = traced(problem)
    for point in cuda_points(found, 3):
        assert compile_error(candidate(problem, found, point).source) is None, point


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", shared(NAMES))
def test_emulated_kernels_are_right_at_every_shape(name: str, count: int, tmp_path: Path) -> None:
    problem = task(name, "cuda")
    found = traced(problem)
    for point in cuda_points(found, count):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS["float32"], point


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "groups" else pytest.mark.slow) for n in GROUPED]
)
def test_emulated_kernels_normalise_channels_in_groups(name: str, tmp_path: Path) -> None:
    problem = grouped(name, "cuda")
    found = traced(problem)
    for point in cuda_points(found, 3):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS["float32"], point


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["layer_norm_residual", "softmax", "swiglu"])
def test_emulated_half_precision(name: str, dtype: str, tmp_path: Path) -> None:
    problem = task(name, "cuda", dtype)
    found = traced(problem)
    for point in cuda_points(found, 3):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS[dtype], point
