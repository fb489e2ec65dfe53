"""From a profile to where a candidate's time went: its own kernels, torch's, a vendor's, copies.

By name, so that it can be fooled by whoever names kernels; it tells a reader what a speedup is made
of, and decides no verdict. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sandbox.observation import Provenance

CALL = "warpsmith::call"
"""What worker/profile.py calls the time outside torch's operators."""
OWN, UNKNOWN = "own", "unknown"
NAMES = 12
LIBRARIES = (
    ("copy", r"^Mem(cpy|set)|memcpy|memset"),
    ("inductor", r"^triton_(poi|red|per|tem|for|unk|mm|bmm)"),
    ("cuDNN", r"cudnn"),
    ("cuBLAS", r"cublas|nvjet|^(void )?(ampere|volta|turing|hopper|sm\d\d|maxwell|blackwell)_"),
    ("cuBLAS", r"xmma|gemv2[TN]|gemvNSP|splitKreduce|dot_kernel<|reduce_1Block"),
    ("CUTLASS", r"cutlass|cute::"),
    ("flash attention", r"flash_fwd|flash_bwd|fmha|pytorch_flash"),
    ("cuFFT", r"cufft|regular_fft|vector_fft"),
    ("NCCL", r"nccl"),
    ("torch", r"at::|at_cuda|c10::|aten::|torch::|cub::|thrust::|softmax_warp|cunn_"),
)
"""Origin and what its kernels' names look like, as profilers of several releases show them."""


def provenance(unit: str, claim: Mapping[str, Any], kernels: Collection[str]) -> Provenance:
    """Of a profile as its worker claims it; `kernels` are those that the source defines."""
    rows = _rows(claim.get("rows"))
    total_s = sum(seconds for _, seconds in rows)
    if total_s <= 0:
        return Provenance(unit, 0.0, 0.0, problem="the profiler saw nothing")
    named = [(origin(unit, name, kernels), name, seconds) for name, seconds in rows]
    own_s = sum(seconds for where, _, seconds in named if where in (OWN, UNKNOWN))
    shown = tuple((where, name[:80], seconds / total_s) for where, name, seconds in named[:NAMES])
    return Provenance(unit, total_s, own_s, shown)


def origin(unit: str, name: str, kernels: Collection[str]) -> str:
    """Whose kernel (or, on the host, operator) a name is."""
    if unit == "host":
        return OWN if name == CALL else "torch"
    if base_name(name) in kernels:
        return OWN
    return next((who for who, looks in LIBRARIES if re.search(looks, name)), UNKNOWN)


def base_name(name: str) -> str:
    """`mine` of `void space::mine<float, 4>(float const*)`."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)", "anonymous")
    plain = plain.partition("(")[0].partition("<")[0]
    return plain.rpartition("::")[2].strip()


def _rows(claimed: object) -> list[tuple[str, float]]:
    """What is of the form of a row; the rest says nothing."""
    found = []
    for row in claimed if isinstance(claimed, list) else []:
        if isinstance(row, list) and len(row) == 2:
            name, seconds = row
            if isinstance(name, str) and isinstance(seconds, float) and 0 < seconds < 1e6:
                found.append((ascii(name)[1:-1], seconds))
    return found
