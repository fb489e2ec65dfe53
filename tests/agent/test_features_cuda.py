"""Generated CUDA candidates: compiled for sm_90 by NVRTC, and run on the CPU by the emulator."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from agent.features import cuda_pool, cuda_turned
from agent.features.assemble import candidate
from agent.features.program import Plan
from tests.agent import cuda_emulator
from tests.agent.features_references import NAMES, shared, task, traced, worst_error

BOUNDS = {"float32": 5e-6, "bfloat16": 4e-3, "float16": 1e-3}


def points(found: Plan, count: int) -> list[dict[str, str | int]]:
    """The default and a seeded spread of the pool over both forms."""
    program = found.programs[found.main]
    start, rng = cuda_pool.default(program), random.Random(1)
    spread = [start]
    pool = cuda_pool.pool(program)
    if pool is not cuda_pool.POOL:
        every = [
            dict(zip(pool, values, strict=True)) for values in itertools.product(*pool.values())
        ]
        fitting = [p for p in every if not program.inner or cuda_turned.fits(program, p)]
        return spread + rng.sample(fitting, count - 1)
    while len(spread) < count:
        point = {feature: rng.choice(values) for feature, values in cuda_pool.POOL.items()}
        point["form"] = ("rows", "tiles")[len(spread) % 2]
        point["threads"] = rng.choice((8, 32, 64, 128))
        point["groups"] = 1 if point["form"] == "tiles" else point["groups"]
        if cuda_pool.fits(point):
            spread.append(point)
    return spread


def compile_error(source: str) -> str | None:
    nvrtc = pytest.importorskip("cupy", reason="needs NVRTC: the extra cuda13").cuda.nvrtc
    program = nvrtc.createProgram(source.split('r"""')[1].split('"""')[0], "candidate.cu", (), ())
    try:
        nvrtc.compileProgram(program, ("-arch=sm_90", "--std=c++17"))
    except nvrtc.NVRTCError:
        return str(nvrtc.getProgramLog(program))
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", shared(NAMES))
def test_nvrtc_accepts_every_template(name: str) -> None:
    problem = task(name, "cuda", "bfloat16" if name == "layer_norm" else "float32")
    found = traced(problem)
    for point in points(found, 3):
        assert compile_error(candidate(problem, found, point).source) is None, point


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", shared(NAMES))
def test_emulated_kernels_are_right_at_every_shape(name: str, count: int, tmp_path: Path) -> None:
    problem = task(name, "cuda")
    found = traced(problem)
    for point in points(found, count):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS["float32"], point


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["layer_norm_residual", "softmax", "swiglu"])
def test_emulated_half_precision(name: str, dtype: str, tmp_path: Path) -> None:
    problem = task(name, "cuda", dtype)
    found = traced(problem)
    for point in points(found, 3):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS[dtype], point
