"""The features that a model is told to search, by name: CUDA-LLM's list, and one for the CPU."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.types import Language

GPU_FEATURES: Mapping[str, str] = {
    "fusion": "fuse operations so that intermediate results never reach global memory",
    "tiling": (
        "tiling: blocks of the problem staged in shared memory, with padding against bank conflicts"
    ),
    "vector access": "coalesced and vectorised access (float4, 128-bit loads and stores)",
    "warp primitives": (
        "warp primitives (shuffles, reductions) in place of shared memory and __syncthreads"
    ),
    "register blocking": "register blocking: several outputs per thread, loops unrolled",
    "tensor cores": "tensor cores, where the allowed error permits their precision",
    "pipelining": "asynchronous copies and double buffering, so that loads overlap arithmetic",
    "launch shape": (
        "occupancy and launch shape: threads a block, persistent or grid-stride blocks, no tail "
        "wave"
    ),
    "fewer launches": "fewer launches and fewer temporary tensors",
}
CPU_FEATURES: Mapping[str, str] = {
    "fusion": "fuse operations so that intermediate results stay in registers or cache",
    "tiling": "tiling for the L1 and L2 caches; contiguous inner loops",
    "vectorisation": (
        "vectorisation: omp simd, no aliasing, no branches in the inner loop, polynomials for "
        "exp and log"
    ),
    "accumulators": "several independent accumulators, to hide the latency of dependent additions",
    "threads": "threads: enough work each, static schedules, no false sharing",
    "streaming stores": "non-temporal stores for large outputs that are not read again",
    "fewer passes": "fewer temporary tensors and fewer passes over memory",
}


def features_for(language: Language) -> Mapping[str, str]:
    return CPU_FEATURES if language is Language.CPP else GPU_FEATURES
