"""All correct kernels of one device."""

from __future__ import annotations

from benchmarks.mutation.kernel import Kernel
from benchmarks.mutation.kernels.blocks import BLOCKS
from benchmarks.mutation.kernels.contractions import CONTRACTIONS
from benchmarks.mutation.kernels.elements import ELEMENTS
from benchmarks.mutation.kernels.rows import ROWS

ALL = (*ROWS, *ELEMENTS, *CONTRACTIONS, *BLOCKS)


def kernels(device: str) -> tuple[Kernel, ...]:
    return tuple(kernel for kernel in ALL if device in kernel.devices())
