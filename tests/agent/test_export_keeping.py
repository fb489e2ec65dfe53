"""Kernels that keep something between calls: told by their text, and called one at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
import torch

from agent.export.keeping import keeps
from agent.export.runtime.order import Order

EXAMPLES = files("agent.prompts") / "examples"
MODULE = """
import ctypes
import cupy
import torch
from torch import nn

SRC = r'''{device}
extern "C" __global__ void __launch_bounds__(128) k(float* x) {{ __shared__ float part[8]; }}
'''
KERNEL = cupy.RawModule(code=SRC).get_function("k")
STREAMS = {{}}
{above}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.eps = 1e-5
        {made}

    def forward(self, x):
        out = torch.empty_like(x)
        sizes = (x.shape[0], 4)
        handle = torch._C._cuda_getCurrentRawStream(x.get_device())
        stream = STREAMS[handle] = cupy.cuda.ExternalStream(handle)
        {called}
        KERNEL((1,), (1,), (x.data_ptr(), out.data_ptr()), stream=stream)
        return out
"""


def module(device: str = "", above: str = "", made: str = "pass", called: str = "pass") -> str:
    return MODULE.format(device=device, above=above, made=made, called=called)


@pytest.mark.parametrize(
    "device",
    [
        "",
        "__device__ __forceinline__ float twice(float v) { return 2.0f * v; }",
        "__device__ const float TABLE[2] = {1.0f, 2.0f};",
        "static constexpr int TILE = 16;",
        "__constant__ float WEIGHTS[4];",
        "// __device__ int counter;",
        "template <typename T> __device__ T sum(T v);",
    ],
)
def test_device_code_that_keeps_nothing_is_told(device: str) -> None:
    assert not keeps(module(device), "cuda")


@pytest.mark.parametrize(
    "device",
    [
        "__device__ unsigned int ticket = 0;",
        "__device__ __align__(16) float hinge[128];",
        "__managed__ int count;",
        "static float scratch[4];",
        "inline __device__ int ready{0};",
    ],
)
def test_device_variables_are_kept(device: str) -> None:
    assert keeps(module(device), "cuda")


@pytest.mark.parametrize(
    "parts",
    [
        {"above": "SCRATCH = torch.zeros(64, device='cuda')"},
        {"above": "POOL = [torch.empty(4)]"},
        {"above": "ARGUMENTS = (ctypes.c_ulonglong * 2)()\nA = ctypes.addressof(ARGUMENTS)"},
        {"above": "import functools\n\n@functools.lru_cache\ndef scratch(n): return n"},
        {"made": "self.scratch = torch.empty(4)"},
        {"called": "self.last = out"},
        {"called": "STREAMS['out'] = torch.empty_like(x)"},
        {"called": "STREAMS.setdefault(handle, x.new_zeros(4))"},
        {"called": "global SRC; SRC = out"},
        {"called": "setattr(self, 'last', out)"},
    ],
)
def test_what_python_leaves_for_the_next_call_is_kept(parts: dict[str, str]) -> None:
    assert keeps(module(**parts), "cuda")


@pytest.mark.parametrize("name", ["cuda", "triton", "cpp", "cuda_inline"])
def test_the_worked_examples_keep_nothing(name: str) -> None:
    device = "cpu" if name == "cpp" else "cuda"
    assert not keeps((EXAMPLES / f"{name}.py.j2").read_text(), device)


@pytest.mark.parametrize(
    "code", ["static thread_local std::vector<float> storage;", "thread_local float parts[64];"]
)
def test_a_threads_own_memory_is_shared_by_its_streams_alone(code: str) -> None:
    assert not keeps(module(code), "cpu")
    assert keeps(module(code), "cuda")


def test_ordered_calls_never_overlap() -> None:
    order, cpu = Order(), torch.device("cpu")
    inside, most = 0, 0
    barrier = threading.Barrier(4)

    def call() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1

    def work(_: int) -> None:
        barrier.wait(10)
        for _ in range(5):
            order.run(call, cpu)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert most == 1


def test_a_call_that_fails_lets_the_next_one_in() -> None:
    order, cpu = Order(), torch.device("cpu")

    def fails() -> None:
        raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"):
        order.run(fails, cpu)
    assert order.run(lambda: 3, cpu) == 3
