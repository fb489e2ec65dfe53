"""Static analysis: what is never legitimate is refused by whatever name; honest code never is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.candidates.catalogue import probes
from sandbox.building.language import detect_language
from sandbox.errors import ConfigError
from sandbox.evidence import Layer, Weight
from sandbox.static import cpp
from sandbox.static.scan import SOURCE_LIMIT_BYTES, scan
from sandbox.types import Language, Status
from tests.sandbox.conftest import Evaluate, forward

HEAD = "class ModelNew: pass\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "empty"),
        ("  \n\n", "empty"),
        ("x = 1", "no class ModelNew"),
        ("def f():\n    return ModelNew", "no class ModelNew"),
        ("x" + ".a" * 100_000, "too deeply"),
        ("x = " + "(" * 150 + ")" * 150, "no class ModelNew"),
        ("class ModelNew: pass", ""),
        ("from other import Fast as ModelNew", ""),
        ("if True:\n    class ModelNew: pass", ""),
        ("ModelNew = make()", ""),
        ("class ModelNew(:", ""),
        ("\0", ""),
        ("\udfff", ""),
    ],
)
def test_a_file_that_can_be_no_candidate_is_refused(source: str, words: str) -> None:
    found = scan(source).refused
    assert words in found
    assert bool(found) == bool(words)


REFUSED = [
    "import torch\ntorch.cuda.synchronize = lambda *a: None",
    "import torch.cuda as c\nc.synchronize = print",
    "from torch import cuda\ncuda.Event = object",
    "import torch\nc = torch.cuda\nsetattr(c, 'syn' + 'chronize', print)",
    "import torch\nvars(torch.cuda)['synchronize'] = print",
    "import torch\ntorch.cuda.__dict__['synchronize'] = print",
    "import torch\ngetattr(torch, 'cuda').synchronize = print",
    "import torch\ntorch.cuda.Event.elapsed_time = lambda *a: 0.0",
    "import torch\ntorch.cuda.synchronize.__code__ = print",
    "import torch\ntorch.Tensor.copy_ = print",
    "import torch\ntorch.equal, torch.allclose = print, print",
    "import torch\ndel torch.Tensor.clone",
    "import time\ntime.perf_counter = lambda: 0.0",
    "import builtins\nbuiltins.isinstance = print",
    "import gc\ngc.collect = print",
    "from unittest.mock import patch\npatch('time.perf_counter')",
    "import gc\ngc.get_objects()",
    "from gc import get_referrers as f",
    "import gc as g\ngetattr(g, 'get_objects')()",
    "__import__('gc').get_objects()",
    "import sys\ndef f(): return sys._getframe(1)",
    "import inspect\nframe = inspect.currentframe()",
    "import sys\nsys.settrace(print)",
    "import sandbox.worker.session",
    "from sandbox.machine.channel import Channel",
    "import sys\nsys.modules['sandbox'].x = 1",
    "import os\nos.kill(os.getppid(), 9)",
    "import os\ndef f(pid): os.killpg(pid, 9)",
    "import ctypes\nctypes.CDLL(None).kill(1, 9)",
    "import ctypes\nlibc = ctypes.CDLL('libc.so.6')\nlibc.ptrace(16, 1, 0, 0)",
    "open('/proc/self/mem', 'r+b')",
    "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb')",
    "open('/proc/' + '1' + '/mem')",
    "S = 'void f() { int x = ptrace(16, 1, 0, 0); }'",
    "S = 'void f(pid_t p) { ::kill(p, 9); }'",
    'S = \'void f() { fopen("/proc/1/mem", "r"); }\'',
    "S = 'void f(cudaIpcMemHandle_t h) { void* p; cudaIpcOpenMemHandle(&p, h, 1); }'",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_never_legitimate_is_refused(text: str) -> None:
    assert scan(HEAD + text).refused


ALLOWED = [
    "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True",
    "import torch\ntorch._inductor.config.max_autotune = True",
    "import torch\ndef f(x):\n    y = torch.Tensor(3)\n    y.data = x\n    torch.cuda.init()",
    "import torch\nt = torch.cuda.Event(enable_timing=True)\nt.note = 1",
    "import time\ndef f(time): time.time = 3",
    "import time\ntime = object()\ntime.sleep = 3",
    "def f(self):\n    self.synchronize = self.copy_ = None",
    "import gc\ngc.collect()\ngc.disable()",
    "import os\nos.kill(os.getpid(), 9)",
    "import os\nme = os.getpid()\nos.kill(me, 9)",
    "import inspect\ninspect.getsource(print)\ninspect.signature(print)",
    "import subprocess\nsubprocess.Popen(['x']).kill()",
    "'''Reads /proc/self/mem? No; torch.cuda.synchronize = f is only mentioned.'''",
    "def f():\n    '''/proc/self/mem'''",
    "S = '''// ptrace(1); kill(2);\\nvoid f() { int a; /* cudaIpcOpenMemHandle(x) */ }'''",
    "S = 'void f() { printf(\"ptrace(%d); kill(%d)\", 1, 2); }'",
    "S = '__device__ void kill(int i) { } __global__ void k() { kill(3); }'",
    "S = 'void f(Pool* pool) { pool->kill(3); kill(getpid(), 9); int ptrace = 3; ptrace++; }'",
    "import importlib.util\nHAS = importlib.util.find_spec('triton')",
    "try:\n    import cupy\nexcept ImportError:\n    cupy = None",
    "import ctypes\nlibrary = ctypes.CDLL('./mine.so')\nlibrary.kill(3)",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_what_may_be_honest_is_not_refused(text: str) -> None:
    assert scan(HEAD + text).refused == ""


def test_no_benchmark_candidate_is_refused() -> None:
    found = [scan(probe.source).refused for probe in probes()]
    assert len(found) > 50
    assert set(found) == {""}


def test_no_module_of_torch_is_refused() -> None:
    folder = Path(torch.__file__).parent / "nn"
    files = [*(folder / "modules").glob("*.py"), folder / "functional.py"]
    assert len(files) > 20
    assert {f.name: scan(f.read_text() + HEAD).refused for f in files} == {
        f.name: "" for f in files
    }


KERNEL = '''
import torch
import torch.nn.functional as F
import triton

SOURCE = r"""
#include <cublas_v2.h>
// at::softmax(x) is only a comment
__global__ void __launch_bounds__(256) mine(const float* x) { }
template <int N> static __global__ void other(float* y) { }
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  cublasSgemm(h);
  cudaStream_t s; cudaStreamCreate(&s);
  return at::matmul(x, y);
}
"""

@triton.jit
def third(x_ptr):
    pass

class ModelNew(torch.nn.Module):
    def forward(self, x):
        graph = torch.cuda.CUDAGraph()
        return F.gelu(x @ x.T).softmax(-1) + torch.zeros(3)
'''


def test_facts_name_operators_libraries_streams_and_kernels() -> None:
    found = scan(KERNEL)
    assert found.kernels == ("third", "mine", "other")
    assert found.graphs
    words = "; ".join(found.facts)
    for expected in ("gelu, ", "matmul", "softmax", "cuBLAS", "streams: cudaStreamCreate"):
        assert expected in words
    assert "in C++: matmul" in words
    assert "zeros" not in words


def test_tokens_leave_comments_out_and_keep_literals_apart() -> None:
    text = 'a::b("x\\"y"); // c\n/* d */ R"(e)"; \'f\' 1e-3f ->'
    tokens, strings = cpp.tokenise(text)
    assert tokens == ["a", "::", "b", "(", ")", ";", ";", "0", "->"]
    assert strings == ['x\\"y', "e"]


def test_a_refused_source_is_rejected_before_anything_runs(evaluate: Evaluate) -> None:
    top = "import os, time\nos.mkdir('ran')\ntime.perf_counter = lambda: 0.0"
    found = evaluate(forward("return y", top=top))
    assert found.status is Status.REJECTED
    assert "time.perf_counter" in found.detail
    assert found.evidence[0].layer is Layer.STATIC
    assert found.evidence[0].weight is Weight.PROOF
    assert not found.seconds.get("load")


def test_a_source_too_large_to_travel_is_refused() -> None:
    padded = f"class ModelNew: ...\nX = {'a' * SOURCE_LIMIT_BYTES!r}\n"
    assert scan(padded).refused.endswith(f"the limit is {SOURCE_LIMIT_BYTES}")


@pytest.mark.parametrize(
    ("call", "language"),
    [
        ("load_inline('k', [A], [B])", Language.CUDA_INLINE),
        ("load_inline('k', A, cuda_sources=B)", Language.CUDA_INLINE),
        ("load_inline('k', [A])", Language.CPP),
        ("load_inline('k', A, None, ['f'])", Language.CPP),
        ("load_inline('k', A, cuda_sources=[])", Language.CPP),
    ],
)
def test_the_language_follows_from_what_is_compiled(call: str, language: Language) -> None:
    assert detect_language(f"from torch.utils.cpp_extension import load_inline\n{call}") is language


@pytest.mark.parametrize("text", ["x = '\ud800'", "x = " + "-" * 100_000 + "1"])
def test_what_the_parser_cannot_read_is_said_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kernel\.py: Python's parser cannot read it"):
        detect_language(text, "kernel.py")
