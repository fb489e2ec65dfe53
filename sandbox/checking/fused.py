"""What errors are made of, in one pass over both tensors on a GPU: torch's operators take seven,
and the outputs of a batch are gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from sandbox.machine import launch

SHORTEST = 256
"""Of a row: below, what is written for each would be a good part of what is read."""
PIECE, WARP, BLOCK, WARP_ROW = 1 << 16, 32, 256, 4096
"""Elements that one group of threads reads, and its size; a warp has rows up to WARP_ROW."""
LOADS = {
    torch.float32: ("float", "wide(x)"),
    torch.float64: ("double", "x"),
    torch.bfloat16: ("unsigned short", "wide(__uint_as_float((unsigned)x << 16))"),
    torch.float16: ("unsigned short", "wide(half(x))"),
}
"""Their types in CUDA, and how a number becomes a double."""
SOURCE = r"""
// cupy compiles with -ftz=true, and a plain conversion would make zeros of the smallest numbers.
__device__ double wide(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}
__device__ float half(unsigned short x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ double of_out(OUT x) { return FROM_OUT; }
__device__ double of_truth(TRUTH x) { return FROM_TRUTH; }
__device__ bool is_finite(double x) { return x - x == 0; }

struct Sums {
    double square, energy, apart, misplaced;
    __device__ void add(const Sums& o) {
        square += o.square;
        energy += o.energy;
        apart = fmax(apart, o.apart);
        misplaced += o.misplaced;
    }
    __device__ void see(double out, double truth) {
        double difference = out - truth;
        if (!is_finite(difference) && !(is_finite(out) && is_finite(truth))) {
            misplaced += out != truth && !(out != out && truth != truth);
            return;
        }
        square += difference * difference;
        energy += truth * truth;
        apart = fmax(apart, fabs(difference));
    }
};

extern "C" __global__ void sums(const OUT* outs, long long step_outs, const TRUTH* truths,
                                long long step_truths, long long length, long long pieces,
                                long long total, double* found) {
    const long long group = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / LANES;
    const int lane = threadIdx.x % LANES;
    Sums mine = {0, 0, 0, 0};
    if (group < total) {
        const long long begin = group % pieces * PIECE;
        const long long end = begin + PIECE < length ? begin + PIECE : length;
        const OUT* out = outs + group / pieces * step_outs;
        const TRUTH* truth = truths + group / pieces * step_truths;
        long long i = begin + lane;
        for (; i + 3 * LANES < end; i += 4 * LANES) {
            OUT a[4];
            TRUTH b[4];
            for (int k = 0; k < 4; ++k) {
                a[k] = out[i + k * LANES];
                b[k] = truth[i + k * LANES];
            }
            for (int k = 0; k < 4; ++k) mine.see(of_out(a[k]), of_truth(b[k]));
        }
        for (; i < end; i += LANES) mine.see(of_out(out[i]), of_truth(truth[i]));
    }
    for (int step = 16; step > 0; step /= 2)
        mine.add({__shfl_xor_sync(~0u, mine.square, step), __shfl_xor_sync(~0u, mine.energy, step),
                  __shfl_xor_sync(~0u, mine.apart, step),
                  __shfl_xor_sync(~0u, mine.misplaced, step)});
    __shared__ Sums warps[BLOCK / 32];
    if (LANES > 32) {
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
        __syncthreads();
        if (lane == 0)
            for (int other = 1; other < BLOCK / 32; ++other) mine.add(warps[other]);
    }
    if (lane == 0 && group < total) {
        found[group] = mine.square;
        found[total + group] = mine.energy;
        found[2 * total + group] = mine.apart;
        found[3 * total + group] = mine.misplaced;
    }
}
"""


class Sums(NamedTuple):
    """Of every row, (rows,) float64, over the places where both sides are finite."""

    square: torch.Tensor
    """Of the difference, summed."""
    energy: torch.Tensor
    """Of the truth, squared and summed."""
    apart: torch.Tensor
    """The largest difference."""
    misplaced: int
    """Places where one side is not finite and the other is not the same."""


def able(out: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether `sums` serves these (rows, length) tensors."""
    known = out.dtype in LOADS and truth.dtype in LOADS
    return out.is_cuda and known and truth.shape[1] >= SHORTEST


def sums(out: torch.Tensor, truth: torch.Tensor) -> Sums:
    """Both (rows, length), on one GPU. Raises DeviceError where that has failed."""
    out, truth = (t if t.stride(1) == 1 else t.contiguous() for t in (out, truth))
    rows, length = truth.shape
    lanes = WARP if length <= WARP_ROW else BLOCK
    pieces = -(-length // PIECE)
    total = rows * pieces
    found = torch.empty((4, rows, pieces), dtype=torch.float64, device=out.device)
    places = out.data_ptr(), out.stride(0), truth.data_ptr(), truth.stride(0)
    kernel = launch.kernel(source(out.dtype, truth.dtype, lanes), "sums")
    with launch.current(out.device):
        grid = (-(-total * lanes // BLOCK),)
        kernel(grid, (BLOCK,), (*places, length, pieces, total, found.data_ptr()))
    square, energy, apart, misplaced = found
    return Sums(square.sum(1), energy.sum(1), apart.amax(1), int(misplaced.sum()))


def load(dtypes: Iterable[torch.dtype], device: str) -> None:
    """Compile and load what `sums` needs for outputs of these types, against themselves and against
    float64: a candidate that is being judged could leave no memory for it.
    """
    for dtype in LOADS.keys() & set(dtypes):
        for length in (SHORTEST, WARP_ROW + 1):
            out = torch.zeros(1, length, dtype=dtype, device=device)
            for kind in {dtype, torch.float64}:
                sums(out, out.to(kind))


def source(out: torch.dtype, truth: torch.dtype, lanes: int) -> str:
    """CUDA for these types, with groups of so many threads."""
    constants = {
        "OUT": LOADS[out][0],
        "FROM_OUT": LOADS[out][1],
        "TRUTH": LOADS[truth][0],
        "FROM_TRUTH": LOADS[truth][1],
        "LANES": lanes,
        "BLOCK": BLOCK,
        "PIECE": f"{PIECE}LL",
    }
    return "".join(f"#define {name} {value}\n" for name, value in constants.items()) + SOURCE
