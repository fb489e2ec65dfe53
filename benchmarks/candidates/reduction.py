"""Row and column reductions, norms over rows and columns, a loss and a layer norm."""

from __future__ import annotations

from benchmarks.candidates.probe import fill

COLUMNS = '''import cupy
import torch
from torch import nn

SRC = r"""
// x is (outer, length, inner); a thread sums one column: out[o, i] = factor * sum_k x[o, k, i].
// Double accumulation costs nothing beside the loads.
extern "C" __global__ void columns(const float* __restrict__ x, float* __restrict__ out,
                                   long long total, long long length, long long inner,
                                   double factor) {
  const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= total) return;
  const float* p = x + column / inner * length * inner + column % inner;
  double sum = 0.0;
  #pragma unroll 8
  for (long long k = 0; k < length - @DROPPED@; ++k) sum += p[k * inner];
  out[column] = (float)(factor * sum);
}
"""

KERNEL = cupy.RawModule(code=SRC).get_function("columns")


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        x = x.contiguous()
        outer, length, inner = x.shape
        out = x.new_empty(@SHAPE@)
        total = outer * inner
        arguments = (x.data_ptr(), out.data_ptr(), total, length, inner, float(@FACTOR@))
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL(((total + 127) // 128,), (128,), arguments)
        return out
'''

COLUMNS_TRITON = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def columns(x_ptr, out_ptr, length, inner, divisor, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    outer = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for start in range(0, length, ROWS):
        r = start + tl.arange(0, ROWS)
        i = (outer * length + r[:, None]) * inner + c[None, :]
        mask = (r[:, None] < length) & (c[None, :] < inner)
        sums += tl.load(x_ptr + i, mask=mask, other=0.0)
    tl.store(out_ptr + outer * inner + c, tl.sum(sums, 0) / divisor, mask=c < inner)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        x = x.contiguous()
        outer, length, inner = x.shape
        out = x.new_empty(@SHAPE@)
        grid = (triton.cdiv(inner, 128), outer)
        columns[grid](x, out, length, inner, @DIVISOR@, ROWS=32, WIDTH=128)
        return out
"""

ROWS = '''import cupy
import torch
from torch import nn

SRC = r"""
// One block a row: out = x / denominator(sum over the row). The second pass reads from L2.
extern "C" __global__ void rows(const float* __restrict__ x, float* __restrict__ out,
                                long long length) {
  const float* p = x + (long long)blockIdx.x * length;
  float* q = out + (long long)blockIdx.x * length;
  float part = 0.0f;
  for (long long c = threadIdx.x; c < length; c += blockDim.x) {
    const float v = p[c];
    part += @TERM@;
  }
  __shared__ float parts[32];
  for (int lane = 16; lane; lane /= 2) part += __shfl_down_sync(0xffffffffu, part, lane);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += parts[warp];
  const float n = (float)length;
  const float denominator = @DENOMINATOR@;
  for (long long c = threadIdx.x; c < length - @DROPPED@; c += blockDim.x)
    q[c] = p[c] / denominator;
}
"""

KERNEL = cupy.RawModule(code=SRC).get_function("rows")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL((x.shape[0],), (1024,), (x.data_ptr(), out.data_ptr(), x.shape[1]))
        return out
'''

ROWS_TRITON = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rows(x_ptr, out_ptr, length, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * length
    sums = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, length, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row + c, mask=c < length, other=0.0)
        sums += @TERM@
    total = tl.sum(sums, 0)
    denominator = @DENOMINATOR@
    for start in range(0, length, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + row + c, mask=c < length)
        tl.store(out_ptr + row + c, v / denominator, mask=c < length)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=4096)
        return out
"""

CHANNELS = '''import cupy
import torch
from torch import nn

SRC = r"""
// x is (outer, 64, inner); a thread keeps its 64 channels in registers: one read, one write.
extern "C" __global__ void channels(const float* __restrict__ x, float* __restrict__ out,
                                    long long total, long long inner, double eps) {
  const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= total) return;
  const long long start = column / inner * 64 * inner + column % inner;
  float v[64];
  float sum = 0.0f;
  #pragma unroll
  for (int k = 0; k < 64; ++k) {
    v[k] = x[start + k * inner];
    sum += v[k] * v[k];
  }
  const float rms = sqrtf(sum / @DIVISOR@ + (float)eps);
  #pragma unroll
  for (int k = 0; k < 64; ++k) out[start + k * inner] = v[k] / rms;
}
"""

KERNEL = cupy.RawModule(code=SRC).get_function("channels")


class ModelNew(nn.Module):
    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        assert num_features == 64
        self.eps = float(eps)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        inner = x.shape[2] * x.shape[3]
        total = x.shape[0] * inner
        arguments = (x.data_ptr(), out.data_ptr(), total, inner, self.eps)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL(((total + 127) // 128,), (128,), arguments)
        return out
'''

LOSS = '''import cupy
import torch
from torch import nn

SRC = r"""
__device__ double block_sum(double part) {
  __shared__ double parts[32];
  for (int lane = 16; lane; lane /= 2) part += __shfl_down_sync(0xffffffffu, part, lane);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
  __syncthreads();
  double sum = 0.0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += parts[warp];
  return sum;
}

// One partial sum of squared differences a block.
extern "C" __global__ void squares(const float4* __restrict__ a, const float4* __restrict__ b,
                                   double* __restrict__ partial, long long fours) {
  const long long stride = (long long)gridDim.x * blockDim.x;
  double part = 0.0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += stride) {
    const float4 p = a[i], t = b[i];
    const float x = p.x - t.x, y = p.y - t.y, z = p.z - t.z, w = p.w - t.w;
    part += x * x + y * y + (z * z + w * w);
  }
  const double sum = block_sum(part);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void finish(const double* __restrict__ partial, float* __restrict__ out,
                                  long long blocks, double factor) {
  double part = 0.0;
  for (long long i = threadIdx.x; i < blocks; i += blockDim.x) part += partial[i];
  const double sum = block_sum(part);
  if (threadIdx.x == 0) *out = (float)(sum * factor);
}
"""

MODULE = cupy.RawModule(code=SRC)
SQUARES, FINISH = MODULE.get_function("squares"), MODULE.get_function("finish")
BLOCKS = 2048


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        partial = torch.empty(BLOCKS, dtype=torch.float64, device=a.device)
        out = torch.empty((), dtype=torch.float32, device=a.device)
        n = @COUNT@
        first = (a.data_ptr(), b.data_ptr(), partial.data_ptr(), n // 4)
        second = (partial.data_ptr(), out.data_ptr(), BLOCKS, float(@FACTOR@))
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            SQUARES((BLOCKS,), (512,), first)
            FINISH((1,), (512,), second)
        return out
'''

LAYER = '''import cupy
import torch
from torch import nn

SRC = r"""
// Rows are long and few: 256 blocks a row leave partial sums, then 256 blocks normalise it.
extern "C" __global__ void sums(const float* __restrict__ x, double* __restrict__ partial,
                                long long length) {
  const long long chunk = (length + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * chunk;
  const long long end = begin + chunk < length ? begin + chunk : length;
  const float* row = x + (long long)blockIdx.y * length;
  double sum = 0.0, square = 0.0;
  for (long long c = begin + threadIdx.x; c < end; c += blockDim.x) {
    const double v = row[c];
    sum += v;
    square += v * v;
  }
  __shared__ double left[256], right[256];
  left[threadIdx.x] = sum;
  right[threadIdx.x] = square;
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      left[threadIdx.x] += left[threadIdx.x + half];
      right[threadIdx.x] += right[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    const long long slot = ((long long)blockIdx.y * gridDim.x + blockIdx.x) * 2;
    partial[slot] = left[0];
    partial[slot + 1] = right[0];
  }
}

extern "C" __global__ void normalise(const float* __restrict__ x,
                                     const double* __restrict__ partial,
                                     const float* __restrict__ weight,
                                     const float* __restrict__ bias, float* __restrict__ out,
                                     long long length, double eps) {
  __shared__ double left[256], right[256];
  const long long slot = ((long long)blockIdx.y * 256 + threadIdx.x) * 2;
  left[threadIdx.x] = partial[slot];
  right[threadIdx.x] = partial[slot + 1];
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      left[threadIdx.x] += left[threadIdx.x + half];
      right[threadIdx.x] += right[threadIdx.x + half];
    }
  }
  __syncthreads();
  const double mean = left[0] / length, variance = right[0] / length - mean * mean;
  const float m = (float)mean, r = (float)rsqrt(variance + eps);
  const long long chunk = (length + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * chunk;
  const long long end = begin + chunk < length ? begin + chunk : length;
  const long long row = (long long)blockIdx.y * length;
  for (long long c = begin + threadIdx.x; c < end; c += blockDim.x)
    out[row + c] = (x[row + c] - m) * r @AFFINE@;
}
"""

MODULE = cupy.RawModule(code=SRC)
SUMS, NORMALISE = MODULE.get_function("sums"), MODULE.get_function("normalise")


class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape=normalized_shape)

    def forward(self, x):
        x = x.contiguous()
        weight, bias = self.ln.weight.contiguous(), self.ln.bias.contiguous()
        out = torch.empty_like(x)
        length = weight.numel()
        rows = x.numel() // length
        partial = torch.empty(rows * 512, dtype=torch.float64, device=x.device)
        first = (x.data_ptr(), partial.data_ptr(), length)
        second = (x.data_ptr(), partial.data_ptr(), weight.data_ptr(), bias.data_ptr())
        second += (out.data_ptr(), length, @EPS@)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            SUMS((256, rows), (256,), first)
            NORMALISE((256, rows), (256,), second)
        return out
'''


def columns(shape: str, factor: str, dropped: int = 0) -> str:
    return fill(COLUMNS, SHAPE=shape, FACTOR=factor, DROPPED=str(dropped))


def columns_triton(shape: str, divisor: str) -> str:
    return fill(COLUMNS_TRITON, SHAPE=shape, DIVISOR=divisor)


def rows(term: str, denominator: str, dropped: int = 0) -> str:
    return fill(ROWS, TERM=term, DENOMINATOR=denominator, DROPPED=str(dropped))


def rows_triton(term: str, denominator: str) -> str:
    return fill(ROWS_TRITON, TERM=term, DENOMINATOR=denominator)


def channels(divisor: str) -> str:
    return fill(CHANNELS, DIVISOR=divisor)


def loss(count: str, factor: str) -> str:
    return fill(LOSS, COUNT=count, FACTOR=factor)


def layer_norm(affine: str, eps: str) -> str:
    return fill(LAYER, AFFINE=affine, EPS=eps)
