"""Generated CUDA candidates: compiled for sm_90 by NVRTC, and run on the CPU by the emulator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from agent.features.assemble import candidate
from sandbox.types import Task
from tests.agent import cuda_emulator
from tests.agent.features_references import (
    BOUNDS,
    CHAINED,
    GROUPED,
    LEARNING,
    NAMES,
    NORMS,
    POOLED,
    STRIDED,
    chained,
    cuda_points,
    grouped,
    image,
    learning,
    pooled,
    proposer,
    shared,
    strided,
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


@pytest.mark.slow
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


def one_quick(names: Iterable[str], quick: str) -> list[ParameterSet]:
    return [pytest.param(n, marks=() if n == quick else pytest.mark.slow) for n in names]


def assert_right_where_emulated(problem: Task, tmp_path: Path) -> None:
    """The first and the last of four proposals."""
    first, *others = proposer().propose(problem, [], 4)
    assert compile_error(first.candidate.source) is None
    assert len(others) == 3
    for proposal in (first, others[-1]):
        module = cuda_emulator.load(proposal.candidate.source, tmp_path)
        assert worst_error(problem, module) < BOUNDS["float32"], proposal.features


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


@pytest.mark.parametrize("name", one_quick(GROUPED, "groups"))
def test_emulated_kernels_normalise_channels_in_groups(name: str, tmp_path: Path) -> None:
    problem = grouped(name, "cuda")
    found = traced(problem)
    for point in cuda_points(found, 3):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS["float32"], point


@pytest.mark.parametrize("name", one_quick(STRIDED, "softmax"))
def test_emulated_kernels_reduce_along_any_dimension(name: str, tmp_path: Path) -> None:
    problem = strided(name)
    found = traced(problem)
    assert len(found.programs) == STRIDED[name][1]
    assert all(program.strided for program in found.programs)
    assert_right_where_emulated(problem, tmp_path)


@pytest.mark.parametrize("name", one_quick(LEARNING, "batch, then a pooling"))
def test_emulated_kernels_normalise_by_a_batchs_figures(name: str, tmp_path: Path) -> None:
    problem = learning(name)
    found = traced(problem)
    assert len(found.programs) == LEARNING[name][2]
    assert len(found.effects) == 3
    assert_right_where_emulated(problem, tmp_path)


@pytest.mark.parametrize("name", one_quick(CHAINED, "images"))
@pytest.mark.slow
def test_emulated_kernels_stand_between_products(name: str, tmp_path: Path) -> None:
    problem = chained(name)
    found = traced(problem)
    assert len(found.programs) == CHAINED[name][1]
    assert_right_where_emulated(problem, tmp_path)


def test_layers_that_are_alike_share_their_kernels() -> None:
    body = "torch.relu(self.norm(torch.relu(self.norm(torch.relu(self.norm(rows))))))"
    problem = image("layers", "nn.Linear(12, 12)", body, "cuda")
    [proposal] = proposer().propose(problem, [], 1)
    assert len(traced(problem).programs) == 3
    assert proposal.candidate.source.count("MODULE.get_function") == 2, "with vectors or without"
    assert proposal.candidate.source.count("stream=stream)") == 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("self.norm(x) * self.norm.running_mean.mean()", "written and read"),
        ("self.norm(x) * self.norm.num_batches_tracked", "aten.add_"),
        ("self.norm(rows)", "batch norm of so many vectors"),
    ],
)
def test_batch_norms_that_are_no_program_are_told(body: str, words: str) -> None:
    norm = "nn.BatchNorm1d(12)" if "rows" in body else "nn.BatchNorm2d(12)"
    assert words in str(proposer().unsupported(image("other", norm, body, "cuda")))


@pytest.mark.parametrize("name", one_quick(POOLED, "windows that overlap"))
@pytest.mark.slow
def test_emulated_kernels_pool(name: str, tmp_path: Path) -> None:
    problem = pooled(name)
    found = traced(problem)
    assert len(found.programs) == POOLED[name][1]
    assert any(program.window for program in found.programs)
    assert_right_where_emulated(problem, tmp_path)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("F.max_pool2d(x, 2, ceil_mode=True)", "windows that are cut off"),
        ("F.avg_pool2d(x, 3, padding=1, count_include_pad=False)", "windows that are cut off"),
        ("F.max_pool2d(x, 2, return_indices=True)[1]", "output 1 of aten.max_pool2d"),
        ("F.avg_pool2d(x, 3, 1, 1) + x", "a pooling beside what is pooled"),
    ],
)
def test_poolings_that_are_no_program_are_told(body: str, words: str) -> None:
    assert words in str(proposer().unsupported(image("other", "nn.Identity()", body, "cuda")))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x.amax((1, 3))", "reductions along dimensions apart"),
        ("x.cumsum(1)", "scans along a leading dimension"),
        ("x.gather(1, (x[:, :1] > 0).long())", "slices other than equal parts"),
        ("F.softmax(torch.chunk(x, 2, 1)[1], 1)", "slices along this dimension"),
    ],
)
def test_reductions_that_are_no_program_are_told(body: str, words: str) -> None:
    assert words in str(proposer().unsupported(image("other", "nn.Identity()", body, "cuda")))


def test_one_thread_does_not_take_a_long_row_alone() -> None:
    source = NORMS.format(norm="nn.Identity()", body="x.sum(0)").replace(
        "N, SIDE = 3", "N, SIDE = 20000"
    )
    words = str(proposer().unsupported(Task("test/long", source, "cuda")))
    assert "20000 elements along a leading dimension" in words


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["layer_norm_residual", "softmax", "swiglu"])
def test_emulated_half_precision(name: str, dtype: str, tmp_path: Path) -> None:
    problem = task(name, "cuda", dtype)
    found = traced(problem)
    for point in cuda_points(found, 3):
        module = cuda_emulator.load(candidate(problem, found, point).source, tmp_path)
        assert worst_error(problem, module) < BOUNDS[dtype], point
