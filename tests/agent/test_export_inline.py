"""`cuda` kernels converted to `load_inline`: refused by name, launched through the real binding."""

from __future__ import annotations

import ast
import importlib.util
import random
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch

from agent.export.inline import host
from agent.export.inline.convert import NotConvertible, convert, converted, host_text
from agent.export.kernelbench_runs import refusal
from agent.features import cuda_pool
from agent.features.assemble import candidate
from sandbox.building.language import detect_language
from sandbox.static.scan import scan
from sandbox.types import Candidate, Language
from tests.agent import inline_emulator
from tests.agent.features_references import task, traced, worst_error

EXAMPLE = (files("agent.prompts") / "examples" / "cuda.py.j2").read_text()
TYPES = '''
import cupy as cp

SRC = r"""
extern "C" __global__ void show(double* out, int small, long long large, float x, double y, bool z,
                                unsigned char byte) {
  out[0] = small; out[1] = large; out[2] = x; out[3] = y; out[4] = z; out[5] = byte;
}
"""
SHOW = cp.RawKernel(SRC, "show", ("--std=c++17",))

class ModelNew: ...
'''


def test_what_is_converted_is_another_candidate_with_the_same_device_source():
    before = Candidate("test/bias_relu", Language.CUDA, EXAMPLE)
    after = converted(before)
    assert (after.language, after.task_id) == (Language.CUDA_INLINE, before.task_id)
    assert after.id != before.id
    assert detect_language(after.source) is Language.CUDA_INLINE
    assert not scan(after.source).refused
    assert EXAMPLE.split('r"""')[1].split('"""')[0] in after.source
    imports = [n for n in ast.walk(ast.parse(after.source)) if isinstance(n, ast.Import)]
    assert "cupy" not in {alias.name for node in imports for alias in node.names}


def test_lines_are_those_that_python_counts():
    before = "# one\u2028two\x0c three\x85four\n" + EXAMPLE
    assert convert(before).endswith(convert(EXAMPLE)[-200:])
    assert "import cupy" not in convert(before)


def test_what_the_conversion_adds_is_nothing_that_kernelbench_refuses():
    assert refusal(host_text()) is None
    assert refusal(convert(EXAMPLE)) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import cupy\nx = cupy.asarray([1])", "uses cupy.asarray"),
        ("import cupy\nx = cupy.cuda.Device(0)", "uses cupy.cuda.Device"),
        ("import cupy\nf(cupy)", "uses cupy.<the module as cupy>"),
        ("from cupy import asarray", "uses cupy.asarray"),
        ("import cupy as cp\ncp.RawModule(code='').get_function('f')\ncp.zeros(3)", "cupy.zeros"),
        ("def f():\n    import cupy", "does not import cupy at its top level"),
        ("import cupy\ndef f():\n    import cupy", "inside a function"),
        ("import cupy\nLAUNCH_STREAMS = 1", "binds LAUNCH_STREAMS"),
        ("import torch", "does not import cupy"),
        (
            "import cupy\nfrom cupy_backends.cuda.api import driver",
            "launches through cupy_backends",
        ),
        ("import cupy\n)", "line 2"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(text, named):
    with pytest.raises(NotConvertible, match=named):
        convert(text)


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("import cupy", "cupy.RawModule"),
        ("import cupy as cp", "cp.RawModule"),
        ("from cupy import RawModule", "RawModule"),
        ("from cupy import RawModule as Module", "Module"),
        ("import math, cupy", "cupy.RawModule"),
    ],
)
def test_every_way_to_import_cupy_is_replaced(line, use):
    text = convert(f"from __future__ import annotations\n{line}\nMADE = {use}\n")
    names = {"__name__": "converted"}
    exec(compile(text, "converted.py", "exec"), names)
    assert names["MADE"] is names["RawModule"]
    assert text.startswith("from __future__")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('extern "C" __global__ void a(int x) {} __global__ void b();', ["a", "b"]),
        ("__global__ void __launch_bounds__(256, 2)\n a (int x) { if (x) { } }", ["a"]),
        ("template <class T> __global__ void t(T x) {} __global__ void a(int x) {}", ["a"]),
        ("// __global__ void no(int)\n/* __global__ void no() */ __global__ void a() {}", ["a"]),
        ('extern "C" { __global__ void a(); }\n__device__ float f(float);', ["a"]),
    ],
)
def test_kernels_are_found_in_a_source(code, names):
    assert host.kernels_of(code) == names


def test_nvrtc_options_become_those_of_nvcc():
    found = host.nvcc_flags(("-arch=sm_90a", "--std=c++20", "-DX=1", "--use_fast_math"))
    assert found[len(host.NVCC_FLAGS) :] == [
        *("-gencode=arch=compute_90a,code=sm_90a", "-std=c++20", "-DX=1", "--use_fast_math")
    ]


def test_arguments_keep_the_widths_that_cupy_gives_them(tmp_path):
    names = inline_emulator.load(convert(TYPES), tmp_path)
    out = torch.zeros(6, dtype=torch.float64)
    given = (numpy.int32(-3), -(1 << 40), numpy.float32(1.5), 2.5, True, numpy.uint8(200))
    names["SHOW"]((1,), (1, 1), (out.data_ptr(), *given))
    assert out.tolist() == [-3, -(1 << 40), 1.5, 2.5, 1, 200]
    with pytest.raises(TypeError):
        names["SHOW"]((1,), (1,), (out.data_ptr(), "text"))
    with pytest.raises(RuntimeError, match="cudaErrorInvalidValue"):
        names["SHOW"]((1,), (2048,), (out.data_ptr(), *given))


@pytest.mark.slow
def test_a_stream_holds_inside_its_block_and_its_thread(tmp_path):
    names = inline_emulator.load(convert(TYPES), tmp_path)
    streams = names["LAUNCH_STREAMS"]
    with names["cupy"].cuda.ExternalStream(7):
        with names["cupy"].cuda.ExternalStream(9):
            assert streams.get()[-1] == 9
        assert streams.get()[-1] == 7
    assert streams.get()[-1] == 0
    with names["cupy"].cuda.ExternalStream(7):
        names["cupy"].cuda.ExternalStream(9).use()
        assert streams.get()[-1] == 9
    assert streams.get()[-1] == 0


@pytest.mark.slow
def test_the_function_that_cupy_has_loaded_is_launched_like_it(tmp_path):
    names = inline_emulator.load(convert(TYPES), tmp_path)
    out = torch.zeros(6, dtype=torch.float64)
    given = (numpy.int32(1), 2, numpy.float32(3), 4.0, True, numpy.uint8(6))
    stream = names["cupy"].cuda.ExternalStream(0)
    names["SHOW"].kernel((1,), (1,), (out.data_ptr(), *given), 0, stream)
    assert out.tolist() == [1, 2, 3, 4, 1, 6]


@pytest.mark.parametrize("name", ["softmax", "layer_norm_residual"])
@pytest.mark.slow
def test_converted_kernels_of_the_built_in_search_are_right(name, tmp_path: Path):
    problem = task(name, "cuda")
    found = traced(problem)
    point = cuda_pool.default(found.programs[found.main])
    text = convert(candidate(problem, found, point).source)
    names = inline_emulator.load(text, tmp_path)
    assert worst_error(problem, names) < 5e-6
    assert "-std=c++17" in names["emulated"].flags


@pytest.mark.slow
def test_everything_that_the_built_in_search_makes_can_be_converted(tmp_path: Path):
    rng = random.Random(2)
    for name in ("softmax", "swiglu", "rms_norm"):
        problem = task(name, "cuda")
        found = traced(problem)
        program = found.programs[found.main]
        for _ in range(3):
            point = {f: rng.choice(v) for f, v in cuda_pool.POOL.items()}
            if point["form"] == "tiles":
                point["groups"] = 1
            if not cuda_pool.fits(program, point) or point["threads"] > 128:
                continue
            text = convert(candidate(problem, found, point).source)
            assert refusal(text) is None
            assert worst_error(problem, inline_emulator.load(text, tmp_path)) < 5e-6, point


@dataclass
class Compiled:
    """Stands for `load_inline` where torch has no CUDA: nvcc and g++ with the same sources."""

    folder: Path

    def __call__(
        self,
        *,
        name: str,
        cpp_sources: list[str],
        cuda_sources: list[str],
        extra_cuda_cflags: list[str],
        no_implicit_headers: bool,
    ) -> ModuleType:
        (self.folder / "cuda.cu").write_text(cuda_sources[0])
        (self.folder / "main.cpp").write_text(cpp_sources[0])
        includes = [f"-I{sysconfig.get_path('include')}", f"-DTORCH_EXTENSION_NAME={name}"]
        target = self.folder / f"{name}.so"
        flags = [*extra_cuda_cflags, "-arch=sm_90", "-D__CUDA_NO_HALF_OPERATORS__"]
        command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", *flags, *includes]
        command += ["cuda.cu", "main.cpp", "-o", str(target)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        spec = importlib.util.spec_from_file_location(name, target)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
@pytest.mark.parametrize("name", ["example", "layer_norm_residual"])
def test_nvcc_and_the_host_compiler_accept_a_converted_kernel(name, tmp_path):
    text = EXAMPLE
    if name != "example":
        problem = task(name, "cuda")
        found = traced(problem)
        text = candidate(problem, found, cuda_pool.default(found.programs[found.main])).source
    names = inline_emulator.load(convert(text), tmp_path, Compiled(tmp_path))
    kernels = [v for v in names.values() if type(v).__name__ == "LaunchedKernel"]
    assert kernels
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="cudaError"):
            kernels[0]((1,), (1,), (0, 0, 0, 0, 0))
