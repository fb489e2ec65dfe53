"""CUDA C++ of a program for NVRTC, and the Python that launches it on torch's current stream.

Every kernel but those for transposed operands exists twice: with vectors of up to 16 bytes, and
with scalars for row lengths or pointers that they do not divide; the candidate chooses at each
call.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.features import cuda_rows, cuda_scan, cuda_strided, cuda_tiles, cuda_turned, cuda_window
from agent.features.cuda_source import Kernels
from agent.features.host import sizes
from agent.features.program import Program
from agent.features.search import Features

KERNELS = {
    "rows": cuda_rows.kernels,
    "tiles": cuda_tiles.kernels,
    "turned": cuda_turned.kernels,
    "scan": cuda_scan.kernels,
    "strided": cuda_strided.kernels,
    "window": cuda_window.kernels,
}
LAUNCHES = {
    "rows": cuda_rows.launches,
    "tiles": cuda_tiles.launches,
    "turned": cuda_turned.launches,
    "scan": cuda_scan.launches,
    "strided": cuda_strided.launches,
    "window": cuda_window.launches,
}
OPTIONS = ("--std=c++17",)


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """The device code of one program."""
    return KERNELS[str(features["form"])](program, name, features)


def launches(
    program: Program, features: Features, known: Mapping[str, str], place: int
) -> list[str]:
    """Lines of forward that launch the program; `known` names the operands' tensors."""
    tensors = [known[o.source] for o in program.operands] + [r.name for r in program.results]
    arguments = [f"{t}.data_ptr()" for t in tensors]
    arguments += [s.replace("float(", "numpy.float32(", 1) for s in sizes(program)]
    vectors = "vector" in features
    return [
        f"stream = stream_of({tensors[0]})",
        *([divisible(program, features, known)] if vectors else []),
        f"arguments = ({', '.join(arguments)})",
        *LAUNCHES[str(features["form"])](program, features, place),
    ]


def divisible(program: Program, features: Features, known: Mapping[str, str]) -> str:
    """Whether whole vectors cover every row, at aligned addresses."""
    vector = int(features["vector"])
    tensors = dict.fromkeys(known[o.source] for o in program.operands if o.column)
    if vector == 1 or not tensors:
        return f"aligned = columns % {vector} == 0"
    joined = " | ".join(f"{t}.data_ptr()" for t in tensors)
    return f"aligned = columns % {vector} == 0 and ({joined}) % 16 == 0"
