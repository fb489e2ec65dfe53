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
        "struct Pair { float a, b; __device__ Pair(float x) : a(x), b(x) {} };",
        "__device__ float f(float); static inline int g() { return 1; }",
        "namespace { constexpr int N = 4; float h(const float* x) noexcept { return *x; } }",
        "#define STATE static float x[4];",
        "__device__ auto larger(float a, float b) -> decltype(a + b) { return a; }",
    ],
)
def test_device_code_that_keeps_nothing_is_told(device: str) -> None:
    assert not keeps(module(device), "cuda", ["weight"])


@pytest.mark.parametrize(
    "device",
    [
        "__device__ unsigned int ticket = 0;",
        "__device__ __align__(16) float hinge[128];",
        "__managed__ int count;",
        "static float scratch[4];",
        "inline __device__ int ready{0};",
        "__device__ float partial[(64 + 1) * 32];",
        "__device__ char bytes[sizeof(float4) * 64];",
        "static std::vector<float> buffer(1 << 20);",
        "static at::Tensor workspace(at::empty({1024}));",
        "__device__ __attribute__((aligned(16))) float x[4];",
        "__device__ alignas(sizeof(float4)) float y[4];",
        "static std::unordered_map<const void*, at::Tensor> cache;",
        "static const float* cached = nullptr;",
        "__device__ const float* last;",
        "std::vector<float> scratch;",
        "namespace { torch::Tensor workspace; }",
        "namespace a { namespace { float* buf = nullptr; } }",
        "inline float* ws;",
        "int f(int a) { return a; } float total = 0;",
        "void set(float* w) { cudaMemcpyToSymbolAsync(W, w, 4); }",
    ],
)
def test_device_variables_are_kept(device: str) -> None:
    assert keeps(module(device), "cuda", ["weight"])


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
        {"made": "self.register_buffer('scratch', torch.empty(64), persistent=False)"},
        {"made": "self.scratch = nn.Parameter(torch.zeros(64), requires_grad=False)"},
        {"above": "def make(n):\n    return torch.empty(n)\n\nSCRATCH = make(64)"},
        {
            "above": "def build():\n    buf = torch.empty(4)\n    def run(x):\n        return buf\n"
            "    return run"
        },
        {"above": "def f(x, buf=torch.zeros(4)):\n    return buf"},
        {"above": "B = torch.cuda.FloatTensor(64)"},
        {"above": "def f(x):\n    struct.pack_into('Q', B, x)"},
        {"called": "self.weight.copy_(x)"},
        {"called": "kept = self.weight; kept[0] = 1"},
        {"above": 'N = 4\nMORE = f"__device__ float scratch[{N}];"'},
        {"above": 'N = 4\nMORE = "__device__ float s[" + str(N) + "];"'},
    ],
)
def test_what_python_leaves_for_the_next_call_is_kept(parts: dict[str, str]) -> None:
    assert keeps(module(**parts), "cuda", ["weight"])


@pytest.mark.parametrize(
    "parts",
    [
        {"called": "out[:] = x"},
        {"called": "table = {}; table['a'] = 1"},
        {"called": "parts = []; parts.append(x)"},
        {"called": "out.zero_()"},
        {"above": "GRID = (4,)\nLAUNCH = KERNEL.kernel"},
        {"above": "def f(x):\n    return torch.empty_like(x)"},
        {"made": "self.register_buffer('scale', torch.ones(1))"},
        {"made": "self.conv = nn.Conv2d(3, 4, 1)"},
    ],
)
def test_what_is_made_in_the_call_or_is_the_references_is_not_kept(parts: dict[str, str]) -> None:
    assert not keeps(module(**parts), "cuda", ["block.weight", "scale"])


@pytest.mark.parametrize("name", ["cuda", "triton", "cpp", "cuda_inline"])
def test_the_worked_examples_keep_nothing(name: str) -> None:
    device = "cpu" if name == "cpp" else "cuda"
    assert not keeps((EXAMPLES / f"{name}.py.j2").read_text(), device, ["bias"])


@pytest.mark.parametrize(
    "code", ["static thread_local std::vector<float> storage;", "thread_local float parts[64];"]
)
def test_a_threads_own_memory_is_shared_by_its_streams_alone(code: str) -> None:
    assert not keeps(module(code), "cpu", ["weight"])
    assert keeps(module(code), "cuda", ["weight"])


def test_ordered_calls_never_overlap_on_any_device() -> None:
    """A buffer of launch arguments is the process's."""
    lock, cpu = threading.Lock(), torch.device("cpu")
    orders = [Order(lock), Order(lock)]
    inside, most = 0, 0
    barrier = threading.Barrier(4)

    def call() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1

    def work(place: int) -> None:
        barrier.wait(10)
        for _ in range(5):
            orders[place % 2].run(call, cpu)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert most == 1


def test_a_call_that_fails_lets_the_next_one_in() -> None:
    order, cpu = Order(threading.Lock()), torch.device("cpu")

    def fails() -> None:
        raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"):
        order.run(fails, cpu)
    assert order.run(lambda: 3, cpu) == 3
