"""What TensorFloat-32 would make of a reference: float64 arithmetic on rounded operands.

TF32 keeps ten bits of a float32's significand (PTX ISA, `.tf32`), of the operands of matrix
products and convolutions alone; sums are as precise as before. A library may use it, where torch's
flags allow that, or not, as its heuristics have it for shapes and layouts: eager's own error says
nothing of what another honest call of the same operator may be off by.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
MATMULS = {aten.mm: (0, 1), aten.bmm: (0, 1), aten.addmm: (1, 2), aten.baddbmm: (1, 2)}
CONVOLUTIONS = {aten.convolution: (0, 1)}
"""Positions of the operands. Everything else in torch comes to these or uses no TF32."""
DROPPED_BITS = 13
"""Of float32's 23."""


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """To TF32, ties away from zero (`cvt.rna`), in the type it has; of any shape."""
    bits = tensor.float().view(torch.int32)
    kept = (bits + (1 << (DROPPED_BITS - 1))) & -(1 << DROPPED_BITS)
    return kept.view(torch.float32).to(tensor.dtype)


class Tf32(TorchDispatchMode):
    """Within it operands are rounded, where TF32 is allowed; `used` says if any was."""

    def __init__(self, matmul: bool, convolution: bool) -> None:
        super().__init__()
        self.used = False
        self._operands = {**(MATMULS if matmul else {}), **(CONVOLUTIONS if convolution else {})}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = self._operands.get(func.overloadpacket, ())
        if places:
            self.used = True
            args = [rounded(a) if i in places else a for i, a in enumerate(args)]
        return func(*args, **(kwargs or {}))
