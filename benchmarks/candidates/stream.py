"""The candidates of the throughput benchmark: as a search sends them, right, wrong, slow, crashing
and not compiling, in raw CUDA, Triton and `load_inline`, on small problems and large ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.candidates import catalogue, mlp, pointwise
from benchmarks.candidates.catalogue import CUDA, INLINE, TRITON
from benchmarks.candidates.probe import Probe, fill
from sandbox.types import Status

SHARED = (
    # (problem, language, variant) of the catalogue.
    *[("level1/12", CUDA, v) for v in ("right", "column instead of row")],
    *[("level1/12", TRITON, v) for v in ("right", "last row dropped")],
    *[("level1/88", CUDA, v) for v in ("right", "another gelu", "tail of 1000 dropped")],
    *[("level1/88", CUDA, v) for v in ("input mutated", "does not compile", "half output")],
    *[("level1/88", CUDA, v) for v in ("stale buffer", "cached by address")],
    *[("level1/88", TRITON, v) for v in ("right", "wrong constant", "does not compile")],
    *[("level1/88", INLINE, v) for v in ("right", "swish instead", "does not compile")],
    *[("level2/12", CUDA, v) for v in ("right", "missing bias", "parameters frozen")],
    *[("level2/76", CUDA, v) for v in ("right", "bias subtracted")],
    ("level2/76", TRITON, "missing activation"),
    ("level2/63", CUDA, "right"),
    *[("level2/29", CUDA, v) for v in ("right", "one mish only")],
    *[("level2/62", TRITON, v) for v in ("right", "missing scale")],
    *[("level1/40", CUDA, v) for v in ("right", "missing scale")],
    *[("level1/36", CUDA, v) for v in ("right", "wrong constant")],
    *[("level1/25", CUDA, v) for v in ("right", "wrong constant")],
    *[("level1/19", TRITON, v) for v in ("right",)],
    *[("level1/47", CUDA, v) for v in ("right", "last row dropped")],
)
RELU = "v < 0.0f ? 0.0f : v"


def stream() -> list[Probe]:
    """All of them; problems stand together, small ones first."""
    known = {(p.problem, p.language, p.variant): p for p in catalogue.probes()}
    chosen = [known[name] for name in SHARED] + list(own())
    order = list(dict.fromkeys(p.problem for p in chosen))
    return sorted(chosen, key=lambda probe: order.index(probe.problem))


def own() -> Iterator[Probe]:
    """Those that only this benchmark has."""
    scale = fill(pointwise.SCALE_ROWS, INDEX="blockIdx.x")
    slow = scale.replace("(512,)", "(1,)")
    yield Probe("level1/12", CUDA, "slow: one thread a row", Status.PASSED, slow)
    crash = scale.replace("out[start + c] =", "out[(start + c) * 1000000] =")
    yield Probe("level1/12", CUDA, "illegal address", Status.RUNTIME_ERROR, crash)
    segfault = "import ctypes\nctypes.string_at(0)\n" + scale
    yield Probe("level1/12", CUDA, "segfault at import", Status.RUNTIME_ERROR, segfault)
    raises = scale.replace(
        "        out = torch", "        raise ValueError(a)\n        out = torch"
    )
    yield Probe("level1/12", CUDA, "raises", Status.RUNTIME_ERROR, raises)
    yield Probe("level3/1", CUDA, "right", Status.PASSED, mlp.raw(RELU))
    yield Probe("level3/1", CUDA, "missing activation", Status.WRONG_VALUE, mlp.raw("v"))
    yield Probe("level3/1", INLINE, "right", Status.PASSED, mlp.inline(RELU))
    yield Probe("level3/1", INLINE, "missing activation", Status.WRONG_VALUE, mlp.inline("v"))


def repeated() -> list[Probe]:
    """The 20 right ones whose reported speedup is compared over repetitions."""
    wanted = [p for p in stream() if p.expected is Status.PASSED]
    more = [p for p in catalogue.probes() if p.expected is Status.PASSED]
    unique = list(dict.fromkeys([*wanted, *(p for p in more if p.language in (CUDA, TRITON))]))
    return unique[:20]
