"""`load_inline` calls as models write them, for the benchmark of builds; each is one whole file.

`number` goes into the source, so that no two are equal.
"""

from __future__ import annotations

from benchmarks.candidates import mlp, pointwise
from benchmarks.candidates.catalogue import GELU

DISPATCH = '''import torch
from torch.utils.cpp_extension import load_inline

CUDA_SRC = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <vector>

#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be contiguous")

template <typename scalar_t>
__global__ void scale_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ out, int64_t n,
                             float s) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = max(x[i], scalar_t(0)) * scalar_t(s);
}

std::vector<torch::Tensor> scale(torch::Tensor x, double s, c10::optional<torch::Tensor> bias) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto out = torch::zeros({x.size(0), x.size(1)}, x.options());
  const int64_t n = x.numel();
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scale", ([&] {
    scale_kernel<scalar_t><<<(n + 255) / 256, 256, 0, stream>>>(
        x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), n, (float)s);
  }));
  AT_CUDA_CHECK(cudaGetLastError());
  auto sums = at::sum(out, {1}) + @NUMBER@;
  return {bias.has_value() ? out + *bias : out, sums};
}
"""
CPP_SRC = """
#include <vector>
std::vector<torch::Tensor> scale(torch::Tensor x, double s, c10::optional<torch::Tensor> bias);
"""
EXTENSION = load_inline("dispatch_probe", cpp_sources=CPP_SRC, cuda_sources=CUDA_SRC,
                        functions=["scale"], extra_cuda_cflags=["-O3", "--use_fast_math"])
'''

FULL = '''from torch.utils.cpp_extension import load_inline

EXTENSION = load_inline("full_probe", cpp_sources=r"""
torch::Tensor layer(torch::Tensor x) {
  namespace F = torch::nn::functional;
  return F::gelu(x) + @NUMBER@;
}""", functions=["layer"])
'''
"""Uses torch::nn: no light headers."""

HOST = '''from torch.utils.cpp_extension import load_inline

EXTENSION = load_inline("host_probe", cpp_sources=r"""
torch::Tensor shift(torch::Tensor x, double s) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  auto out = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "shift", [&] {
    const scalar_t* from = x.data_ptr<scalar_t>();
    scalar_t* to = out.data_ptr<scalar_t>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] + (scalar_t)s;
  });
  return out + @NUMBER@;
}""", functions=["shift"], extra_cflags=["-O3"])
'''

TEMPLATES = {
    "raw pointers": pointwise.inline(GELU),
    "torch/extension.h in the .cu": mlp.inline("v < 0.0f ? 0.0f : v"),
    "dispatch, guard, tensor operators": DISPATCH,
    "host only": HOST,
    "host only, torch::nn": FULL,
}


def source(name: str, number: int) -> str:
    """The named template; its number is in a comment of each source string at least."""
    text = TEMPLATES[name].replace("@NUMBER@", str(number))
    return text.replace('r"""', f'r"""\n// {number}\n')
