"""out[i] = f(x[i]): one read, one write, 64-bit indices."""

from __future__ import annotations

from benchmarks.candidates.probe import fill

CUDA = '''import cupy
import torch
from torch import nn

SRC = r"""
__device__ __forceinline__ float point(float x) { return @EXPR@; }

// Four elements a thread and step, grid-stride; the last n % 4 elements go one by one.
extern "C" __global__ void pointwise(const float* __restrict__ x, float* __restrict__ out,
                                     long long n) {
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  const long long stride = (long long)gridDim.x * blockDim.x;
  const float4* x4 = reinterpret_cast<const float4*>(x);
  float4* out4 = reinterpret_cast<float4*>(out);
  for (long long i = first; i < n / 4; i += stride) {
    const float4 v = x4[i];
    out4[i] = make_float4(point(v.x), point(v.y), point(v.z), point(v.w));
  }
  for (long long i = n / 4 * 4 + first; i < n; i += stride) out[i] = point(x[i]);
}
"""

KERNEL = cupy.RawModule(code=SRC).get_function("pointwise")


class ModelNew(nn.Module):
    def __init__(self, *settings):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel() - @DROPPED@
        blocks = min((n // 4 + 255) // 256 + 1, 1 << 20)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL((blocks,), (256,), (x.data_ptr(), out.data_ptr(), n))
        return out
'''

TRITON = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def pointwise(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, @EXPR@, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, *settings):
        super().__init__()

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        n = x.numel() - @DROPPED@
        pointwise[(triton.cdiv(n, 2048),)](x, out, n, BLOCK=2048)
        return out
"""

INLINE = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA_SRC = r"""
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

__device__ __forceinline__ float point(float x) { return @EXPR@; }

// Grid-stride over single elements.
__global__ void pointwise_kernel(const float* __restrict__ x, float* __restrict__ out, int64_t n) {
  const int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
    out[i] = point(x[i]);
}

torch::Tensor pointwise(torch::Tensor x) {
  auto out = torch::empty_like(x);
  const int64_t n = x.numel() - @DROPPED@;
  const int blocks = (int)std::min<int64_t>((n + 255) / 256, 1 << 20);
  pointwise_kernel<<<blocks, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), out.data_ptr<float>(), n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""

EXTENSION = load_inline(
    name="pointwise_probe",
    cpp_sources=["torch::Tensor pointwise(torch::Tensor x);"],
    cuda_sources=[CUDA_SRC],
    functions=["pointwise"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, *settings):
        super().__init__()

    def forward(self, x):
        return EXTENSION.pointwise(x.contiguous())
'''

SCALE_ROWS = '''import cupy
import torch
from torch import nn

SRC = r"""
// One block a row: out[r, c] = a[r] * b[r, c].
extern "C" __global__ void scale_rows(const float* __restrict__ a, const float* __restrict__ b,
                                      float* __restrict__ out, long long columns) {
  const long long start = (long long)blockIdx.x * columns;
  for (long long c = threadIdx.x; c < columns; c += blockDim.x)
    out[start + c] = a[@INDEX@] * b[start + c];
}
"""

KERNEL = cupy.RawModule(code=SRC).get_function("scale_rows")


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(b)
        arguments = (a.data_ptr(), b.data_ptr(), out.data_ptr(), b.shape[1])
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL((b.shape[0],), (512,), arguments)
        return out
'''

SCALE_ROWS_TRITON = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def scale_rows(a_ptr, b_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(a_ptr + row)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        b = tl.load(b_ptr + row * columns + c, mask=c < columns)
        tl.store(out_ptr + row * columns + c, factor * b, mask=c < columns)


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(b)
        scale_rows[(b.shape[0] - @DROPPED@,)](a, b, out, b.shape[1], BLOCK=1024)
        return out
"""


def cuda(expression: str, dropped: int = 0) -> str:
    return fill(CUDA, EXPR=expression, DROPPED=str(dropped))


def triton(expression: str, dropped: int = 0) -> str:
    return fill(TRITON, EXPR=expression, DROPPED=str(dropped))


def inline(expression: str, dropped: int = 0) -> str:
    return fill(INLINE, EXPR=expression, DROPPED=str(dropped))
