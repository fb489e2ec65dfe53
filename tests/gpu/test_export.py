"""An exported library on a GPU: NVRTC kernels on any stream, in graphs, under autograd, with
fallbacks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.export import package
from agent.export.artefact import Artefact, Finding, Gathered, Provenance
from agent.export.capture import interfaces
from agent.export.inline.convert import converted
from agent.export.package import export_package
from sandbox.evaluator import LocalEvaluator
from sandbox.figures import Interval
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
EXAMPLES = files("agent.prompts") / "examples"
TASK = Task("test/bias_relu", (EXAMPLES / "reference.py.j2").read_text(), "cuda")
NAME = "gpu_kernels"


KEEPING = '''
import ctypes

import cupy
import torch
from cupy_backends.cuda.api import driver
from torch import nn

SRC = r"""
__device__ float scratch[4096 * 1024];

// Element i by thread i, forwards and then backwards: a launch of its own for what is kept between.
extern "C" __global__ void begin(const float* x, const float* bias) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  scratch[i] = x[i] + bias[i % 1024];
}
extern "C" __global__ void end(float* out) {
  const int i = (gridDim.x - 1 - blockIdx.x) * blockDim.x + threadIdx.x;
  const float y = scratch[i];
  out[i] = y < 0.0f ? 0.0f : y;
}
"""
MODULE = cupy.RawModule(code=SRC)
BEGIN, END = MODULE.get_function("begin").kernel.ptr, MODULE.get_function("end").kernel
VALUES = (ctypes.c_ulonglong * 2)()
FIRST = ctypes.addressof(VALUES)
PLACES = (ctypes.c_void_p * 2)(FIRST, FIRST + 8)


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        x, bias = x.contiguous(), self.bias.contiguous()
        out = torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        VALUES[0], VALUES[1] = x.data_ptr(), bias.data_ptr()
        driver.launchKernel(BEGIN, 16384, 1, 1, 256, 1, 1, 0, stream, ctypes.addressof(PLACES), 0)
        cupy.cuda.ExternalStream(stream).use()
        END((16384,), (256,), (out.data_ptr(),))
        return out
'''
"""Calls that overlap would share its scratch memory and its arguments."""


@pytest.fixture(scope="module", params=["cuda", "triton", "keeping"])
def kernels(
    request: pytest.FixtureRequest,
    evaluator: LocalEvaluator,
    config: EvalConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """A package with one measured kernel, imported from its source tree."""
    kept = request.param == "keeping"
    text = KEEPING if kept else (EXAMPLES / f"{request.param}.py.j2").read_text()
    language = Language.CUDA if kept else Language(request.param)
    candidate = Candidate(TASK.id, language, text)
    evaluation = evaluator.evaluate(TASK, candidate, config)
    assert evaluation.status is Status.PASSED, evaluation.detail
    [interface] = interfaces([TASK])
    assert interface.refused is None
    artefact = Artefact(
        operator="bias_relu",
        task=TASK,
        interface=interface,
        candidate=candidate,
        config=config,
        findings=(Finding("confirm", "test", as_a_win(evaluation)),),
        provenance=Provenance("test", "example", "no model", "", (), None, {}),
        licence="Apache-2.0",
    )
    folder: Path = tmp_path_factory.mktemp("export")
    name = f"{NAME}_{request.param}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(package, "build", lambda tree, dist: [])  # its wheel is another test's
        export_package(Gathered((artefact,), ()), folder, name)
    sys.path.insert(0, str(folder / "source"))
    yield importlib.import_module(name)
    sys.path.remove(str(folder / "source"))


def as_a_win(evaluation: Evaluation) -> Evaluation:
    """With a speedup, and enough pairs for it, that make its row active: how fast the example is,
    and after how many pairs that is known, other tests tell.
    """
    timing = evaluation.timing
    assert timing is not None
    pairs = (timing.pairs[0],) * 3
    long = {"candidate_ms": 1.0, "pairs": pairs}
    fast = replace(timing, speedup=Interval(2.0, 1.9, 2.1), noise_floor=0.0, **long)
    return replace(evaluation, timing=fast)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """As they were measured."""
    return torch.randn(4096, 1024, device="cuda"), torch.randn(1024, device="cuda")


def hits(kernels: Any) -> int:
    return int(kernels.counts()["bias_relu"].get("kernel", 0))


def test_the_kernel_runs_and_equals_the_reference(kernels: Any) -> None:
    before, (x, bias) = hits(kernels), inputs()
    assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert hits(kernels) == before + 1, kernels.table()


def test_operators_pass_opcheck(kernels: Any) -> None:
    x, bias = inputs()
    op = kernels.operator("bias_relu")
    arguments = (x.requires_grad_(), bias.requires_grad_(), op.operator.init)
    torch.library.opcheck(op.op, arguments)


def test_a_layer_compiles_into_one_graph_and_trains(kernels: Any) -> None:
    layer, (x, _) = kernels.layer("bias_relu").cuda(), inputs()
    found = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(found, torch.relu(x + layer.bias))
    found.sum().backward()
    wanted = (x + layer.bias > 0).float().sum(0)
    torch.testing.assert_close(layer.bias.grad, wanted)


def test_a_call_can_be_captured_in_a_graph(kernels: Any) -> None:
    op, (x, bias) = kernels.operator("bias_relu"), inputs()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        op(x, bias)  # compiles the kernel
    torch.cuda.current_stream().wait_stream(side)
    graph, before = torch.cuda.CUDAGraph(), hits(kernels)
    with torch.cuda.graph(graph):
        out = op(x, bias)
    assert hits(kernels) == before + 1
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, torch.relu(x + bias))


def test_every_stream_and_thread_gets_its_own_results(kernels: Any) -> None:
    op = kernels.operator("bias_relu")
    [kernel] = op.operator.kernels
    assert kernel.ordered is kernels.__name__.endswith("keeping")

    def work(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            x, bias = inputs()
            right = []
            for _ in range(20):
                x.normal_()
                right.append(torch.equal(op(x, bias), torch.relu(x + bias)))
            return all(right)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_tensors_on_the_cpu_and_unseen_shapes_go_to_the_reference(kernels: Any) -> None:
    before, (x, bias) = hits(kernels), inputs()
    op = kernels.operator("bias_relu")
    assert torch.equal(op(x.cpu(), bias.cpu()), torch.relu(x.cpu() + bias.cpu()))
    assert torch.equal(op(x[:100], bias), torch.relu(x[:100] + bias))
    strided = x.T.contiguous().T
    assert torch.equal(op(strided, bias), torch.relu(strided + bias))
    assert hits(kernels) == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one_is_used_right(kernels: Any) -> None:
    op = kernels.operator("bias_relu")
    x, bias = (t.to("cuda:1") for t in inputs())
    with torch.cuda.device(0):
        found = op(x, bias)
    torch.cuda.synchronize(1)
    assert found.device == x.device
    assert torch.equal(found, torch.relu(x + bias))


def test_the_runtime_loads_a_shipped_binary_and_another_launch_path_is_as_fast(
    kernels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    [kernel] = kernels.library.library.operators[0].kernels
    if kernel.language != "cuda":
        pytest.skip("Triton compiles its own")
    major, minor = torch.cuda.get_device_capability()
    assert f"sm_{major}{minor}" in [b.arch for b in kernel.binaries]
    assert kernel.binding == "driver"
    before, (x, bias) = hits(kernels), inputs()
    assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert hits(kernels) == before + 1
    assert not caplog.records


def test_a_converted_winner_is_judged_again_as_load_inline(
    evaluator: LocalEvaluator, config: EvalConfig, tmp_path: Path
) -> None:
    """Needs nvcc; KernelBench runs what is written."""
    candidate = Candidate(TASK.id, Language.CUDA, (EXAMPLES / "cuda.py.j2").read_text())
    again = evaluator.evaluate(TASK, converted(candidate), config)
    assert again.status is Status.PASSED, again.detail
    first = evaluator.evaluate(TASK, candidate, config)
    assert first.speedup is not None
    assert again.speedup is not None
    assert again.speedup.value > 0.9 * first.speedup.value
