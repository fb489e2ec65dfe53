"""torch.matmul, then one kernel over its output in place: bias, activation, scaling."""

from __future__ import annotations

from benchmarks.candidates.probe import fill

MODEL = """class ModelNew(nn.Module):
    def __init__(self, @ARGUMENTS@):
        super().__init__()
        @LAYERS@
        self.a, self.b = float(@A@), float(@B@)

    def forward(self, x):
        y = @MATMUL@
        bias = self.@BIAS@.contiguous()
        rows, features = y.shape
        @LAUNCH@
        return y
"""

CUDA = '''import cupy
import torch
from torch import nn

SRC = r"""
__device__ __forceinline__ float point(float y, float a, float b) { return @EXPR@; }

// blockIdx.y -> row; four columns a thread: y[r, c] = point(y[r, c] + bias[c]).
extern "C" __global__ void epilogue(float* __restrict__ y, const float* __restrict__ bias,
                                    long long features, double a_, double b_) {
  const long long c = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
  if (c >= features) return;
  const float a = (float)a_, b = (float)b_;
  float4* out = reinterpret_cast<float4*>(y + (long long)blockIdx.y * features + c);
  const float4 t = *reinterpret_cast<const float4*>(bias + c);
  const float4 v = *out;
  *out = make_float4(point(v.x @PLUS@ t.x, a, b), point(v.y @PLUS@ t.y, a, b),
                     point(v.z @PLUS@ t.z, a, b), point(v.w @PLUS@ t.w, a, b));
}
"""

KERNEL = cupy.RawModule(code=SRC).get_function("epilogue")


'''

CUDA_LAUNCH = """arguments = (y.data_ptr(), bias.data_ptr(), features, self.a, self.b)
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            KERNEL(((features // 4 + 255) // 256, rows), (256,), arguments)"""

TRITON = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def epilogue(y_ptr, bias_ptr, features, a, b, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = c < features
    i = tl.program_id(1).to(tl.int64) * features + c
    y = tl.load(y_ptr + i, mask=mask) @PLUS@ tl.load(bias_ptr + c, mask=mask)
    tl.store(y_ptr + i, @EXPR@, mask=mask)


"""

TRITON_LAUNCH = """grid = (triton.cdiv(features, 1024), rows)
        epilogue[grid](y, bias, features, self.a, self.b, BLOCK=1024)"""

GROUP_NORM = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def group_norm(y_ptr, bias_ptr, scale_ptr, shift_ptr, features, eps, slope,
               GROUPS: tl.constexpr, SIZE: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)[:, None]
    c = group * SIZE + tl.arange(0, SIZE)[None, :]
    mask = c < features
    i = tl.program_id(1).to(tl.int64) * features + c
    y = tl.load(y_ptr + i, mask=mask, other=0.0) + tl.load(bias_ptr + c, mask=mask, other=0.0)
    centred = y - (tl.sum(y, 1) / SIZE)[:, None]
    variance = (tl.sum(centred * centred, 1) / SIZE)[:, None]
    y = centred / tl.sqrt(variance + eps)
    y = y * tl.load(scale_ptr + c, mask=mask) + tl.load(shift_ptr + c, mask=mask)
    tl.store(y_ptr + i, @FACTOR@ * tl.where(y < 0, slope * y, y), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, num_groups, eps=1e-5, negative_slope=0.01):
        super().__init__()
        self.fc = nn.Linear(input_size, hidden_size)
        self.gn = nn.GroupNorm(num_groups=num_groups, num_channels=hidden_size, eps=eps)
        self.size = hidden_size // num_groups
        self.eps, self.slope = float(eps), float(negative_slope)

    def forward(self, x):
        y = torch.matmul(x, self.fc.weight.t())
        rows, features = y.shape
        grid = (triton.cdiv(features, 64 * self.size), rows)
        group_norm[grid](y, self.fc.bias, self.gn.weight, self.gn.bias, features, self.eps,
                         self.slope, GROUPS=64, SIZE=self.size)
        return y
"""

LINEAR = "in_features, out_features"


def cuda(expression: str, plus: str = "+", **model: str) -> str:
    return fill(CUDA, EXPR=expression, PLUS=plus) + _model(CUDA_LAUNCH, **model)


def triton(expression: str, plus: str = "+", **model: str) -> str:
    return fill(TRITON, EXPR=expression, PLUS=plus) + _model(TRITON_LAUNCH, **model)


def _model(
    launch: str,
    layer: str = "linear",
    extra: str = "",
    a: str = "0",
    b: str = "0",
    layers: str = "",
    bias: str = "",
    matmul: str = "",
) -> str:
    """ModelNew around the epilogue; `extra` names the constructor's arguments after the sizes."""
    return fill(
        MODEL,
        ARGUMENTS=LINEAR + (f", {extra}" if extra else ""),
        LAYERS=layers or f"self.{layer} = nn.Linear({LINEAR})",
        A=a,
        B=b,
        BIAS=bias or f"{layer}.bias",
        MATMUL=matmul or f"torch.matmul(x, self.{layer}.weight.t())",
        LAUNCH=launch,
    )


def group_norm(factor: str) -> str:
    return fill(GROUP_NORM, FACTOR=factor)
