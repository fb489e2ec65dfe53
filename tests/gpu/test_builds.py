"""Light CUDA builds, and what NVRTC candidates may include and ask for, on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from agent.export.inline.convert import converted
from benchmarks.candidates.extensions import TEMPLATES
from benchmarks.candidates.extensions import source as extension
from sandbox.building.build import Builder
from sandbox.building.build_report import BuildReport
from sandbox.building.light import Ways
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Status
from tests.gpu.test_languages import BROKEN, TASK, source

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
CUDA_TEMPLATES = [name for name in TEMPLATES if "host" not in name]
BOTH_WAYS = (Ways(), Ways(light_headers=False, precompiled=False))
BUILD = EvalConfig(build_timeout_s=120.0)


INCLUDES = "#include <cuda_fp16.h>\n#include <mma.h>\n#include <cub/block/block_reduce.cuh>\n"
USES = """
__device__ float block_sum(float v) {
  using Reduce = cub::BlockReduce<float, 256>;
  __shared__ typename Reduce::TempStorage storage;
  return Reduce(storage).Sum(v);
}
__device__ void fragment() {
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;
  nvcuda::wmma::fill_fragment(c, 0.0f);
}
"""


def test_an_nvrtc_candidate_may_include_cub_and_mma(
    evaluator: LocalEvaluator, config: EvalConfig
) -> None:
    text = source("cuda").replace('SRC = r"""', f'SRC = r"""{INCLUDES}{USES}', 1)
    result = evaluator.evaluate(TASK, Candidate(TASK.id, Language.CUDA, text), config)
    assert result.status is Status.PASSED, (result.detail, result.stderr)


@pytest.mark.parametrize("option", ["-arch=sm_90a", "--gpu-architecture=sm_90a"])
def test_an_nvrtc_candidate_may_ask_for_sm_90a(
    evaluator: LocalEvaluator, config: EvalConfig, option: str
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    hopper = '  asm volatile("wgmma.fence.sync.aligned;");\n  const long long stride'
    text = source("cuda").replace("  const long long stride", hopper, 1)
    plain = Candidate(TASK.id, Language.CUDA, text)
    assert evaluator.evaluate(TASK, plain, config).status is Status.COMPILE_ERROR
    text = text.replace("code=SRC", f'code=SRC, options=("{option}",)')
    result = evaluator.evaluate(TASK, Candidate(TASK.id, Language.CUDA, text), config)
    assert result.status is Status.PASSED, (result.detail, result.stderr)


@dataclass(frozen=True)
class Compiling:
    """What is being compiled; each `result` waits."""

    light: dict[str, Future[tuple[Any, dict[str, str]]]]
    """By template: the reply, and what the compiler said of each light step."""
    dispatch: list[Future[BuildReport]]
    """One source in BOTH_WAYS."""


@pytest.fixture(scope="module")
def compiling(
    tmp_path_factory: pytest.TempPathFactory, evaluator: LocalEvaluator
) -> Iterator[Compiling]:
    """All at once, and what other files compile as well: one alone takes half a minute and leaves
    most cores idle.
    """
    folder = tmp_path_factory.mktemp("builds")
    builders = [Builder(folder / str(ways.light_headers), ways) for ways in BOTH_WAYS]
    wide = Candidate("t", Language.CUDA_INLINE, extension("dispatch, guard, tensor operators", 2))
    pool = ThreadPoolExecutor(16)
    light = {name: pool.submit(compile_light, builders[0], name) for name in CUDA_TEMPLATES}
    both = [pool.submit(each.build, wide, BUILD) for each in builders]
    example = Candidate(TASK.id, Language.CUDA, source("cuda"))
    later = [
        Candidate(TASK.id, Language.CUDA_INLINE, text)
        for text in (source("cuda_inline"), BROKEN[Language.CUDA_INLINE])
    ]
    ahead = [pool.submit(evaluator._builder.build, c, BUILD) for c in (*later, converted(example))]
    yield Compiling(light, both)
    wait(ahead, 60)
    for each in builders:
        each.close()  # ends what is still compiling
    pool.shutdown(wait=False, cancel_futures=True)


def compile_light(builder: Builder, name: str) -> tuple[Any, dict[str, str]]:
    worker = builder._zygote.spawn("build", memory_limit_bytes=16 << 30)
    try:
        text = extension(name, 1).partition("class ModelNew")[0]
        options = {"source": text, "ways": {}, "preludes": None}
        reply = worker.request("build", stage="build", timeout_s=120, **options)
        logs = {p.name: p.read_text() for p in (worker.scratch / "artifacts/0").glob("*.light")}
    finally:
        worker.close()
    return reply, logs


@pytest.mark.parametrize("name", CUDA_TEMPLATES)
def test_cuda_sources_compile_with_light_headers_alone(name: str, compiling: Compiling) -> None:
    reply, logs = compiling.light[name].result()
    assert len(reply["artifacts"][0]["libraries"]) == 1
    assert logs == {"main.o.light": "", "cuda.cuda.o.light": ""}


CALL = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("dispatch_probe", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.scale.__doc__)
torch.manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.float16):
    x = torch.randn(33, 65, device="cuda").to(dtype)
    for bias in (None, torch.ones(65, device="cuda", dtype=dtype)):
        print([t.double().sum().item() for t in module.scale(x, 1.5, bias)])
for wrong in (torch.ones(3), torch.ones(4, 4, device="cuda").t()[1:]):
    try:
        module.scale(wrong, 1.0, None)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def test_light_and_full_cuda_libraries_behave_alike(compiling: Compiling) -> None:
    said = []
    for future in compiling.dispatch:
        report = future.result()
        assert report.artifacts is not None, report.log
        command = [sys.executable, "-c", CALL, str(report.artifacts / "0" / "dispatch_probe.so")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].count("[") >= 6


REFUSING = """
import torch
if torch.cuda.is_initialized():
    import triton.backends.nvidia.compiler as nvidia
    import triton.runtime.build
    def refused(*arguments, **options):
        raise RuntimeError("compiled while the GPU is held")
    nvidia.CUDABackend.make_cubin = refused
    triton.runtime.build._build = refused
"""
"""Ahead of the run there is no GPU to initialise."""


def test_a_triton_candidate_compiles_nothing_while_the_gpu_is_held(
    evaluator: LocalEvaluator, config: EvalConfig
) -> None:
    candidate = Candidate(TASK.id, Language.TRITON, REFUSING + source("triton"))
    result = evaluator.evaluate(TASK, candidate, config)
    assert result.status is Status.PASSED, (result.detail, result.stderr)
