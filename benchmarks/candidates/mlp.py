"""KernelBench level 3, problem 1: matrix products by torch, one kernel for each bias and ReLU."""

from __future__ import annotations

from benchmarks.candidates.probe import fill

KERNEL = """
// One element a thread, grid-stride: y[r, c] = relu(y[r, c] + bias[c]), in place.
__global__ void bias_relu_kernel(float* __restrict__ y, const float* __restrict__ bias,
                                 long long n, long long features) {
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    const float v = y[i] + bias[i % features];
    y[i] = @ACTIVATION@;
  }
}
"""

RAW = '''import cupy
import torch
from torch import nn

SRC = r"""extern "C" @KERNEL@"""
LAUNCHER = cupy.RawModule(code=SRC).get_function("bias_relu_kernel")


def bias_relu(y, bias):
    n = y.numel()
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        LAUNCHER(((n + 255) // 256,), (256,), (y.data_ptr(), bias.data_ptr(), n, y.shape[1]))
    return y
'''

INLINE = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
@KERNEL@
torch::Tensor bias_relu(torch::Tensor y, torch::Tensor bias) {
  TORCH_CHECK(y.is_contiguous() && bias.is_contiguous(), "bias_relu takes contiguous tensors");
  const long long n = y.numel();
  bias_relu_kernel<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      y.data_ptr<float>(), bias.data_ptr<float>(), n, y.size(1));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
EXTENSION = load_inline(
    name="mlp_probe",
    cpp_sources=["torch::Tensor bias_relu(torch::Tensor y, torch::Tensor bias);"],
    cuda_sources=[SRC],
    functions=["bias_relu"],
)
bias_relu = EXTENSION.bias_relu
'''

MODEL = """

class ModelNew(nn.Module):
    def __init__(self, input_size, layer_sizes, output_size):
        super().__init__()
        layers, width = [], input_size
        for size in layer_sizes:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.network = nn.Sequential(*layers, nn.Linear(width, output_size))

    def forward(self, x):
        *hidden, last = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        for layer in hidden:
            x = bias_relu(torch.matmul(x, layer.weight.t()), layer.bias.contiguous())
        return torch.addmm(last.bias, x, last.weight.t())
"""


def raw(activation: str) -> str:
    return fill(RAW, KERNEL=fill(KERNEL, ACTIVATION=activation).strip()) + MODEL


def inline(activation: str) -> str:
    return fill(INLINE, KERNEL=fill(KERNEL, ACTIVATION=activation)) + MODEL
