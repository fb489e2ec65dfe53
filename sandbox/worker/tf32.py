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
MATMULS = {
    **dict.fromkeys((aten.mm, aten.bmm), (0, 1)),
    **dict.fromkeys((aten.addmm, aten.addmm_, aten.baddbmm, aten.baddbmm_), (1, 2)),
    **dict.fromkeys((aten.addbmm, aten.addbmm_), (1, 2)),
}
CONVOLUTIONS = dict.fromkeys((aten.convolution, aten._convolution), (0, 1))
"""Positions of the operands. Nearly everything else in torch comes to these or uses no TF32; what
does not (fast paths of attention, recurrent layers) has the bounds that eager's own error gives."""
DROPPED_BITS = 13
"""Of float32's 23."""


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """To TF32, ties away from zero (`cvt.rna`), in the type it has; of any shape."""
    if tensor.is_complex():  # products of complex numbers are those of their parts
        return torch.view_as_complex(rounded(torch.view_as_real(tensor)))
    bits = tensor.float().view(torch.int32) + (1 << (DROPPED_BITS - 1))
    kept = bits.bitwise_and_(-(1 << DROPPED_BITS))
    return kept.view(torch.float32).to(tensor.dtype)


def able(operand: Any) -> bool:
    """Whether it is a plain tensor of numbers that TF32 could hold."""
    plain = torch.is_tensor(operand) and operand.layout is torch.strided
    return plain and (operand.is_floating_point() or operand.is_complex())


class Tf32(TorchDispatchMode):
    """Within it operands are rounded, where TF32 is allowed; `used` says if any was."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped for torch.compile, which its first use would import: seconds a process."""
        return False

    def __init__(self, matmul: bool, convolution: bool) -> None:
        super().__init__()
        self.used = False
        self._operands = {**(MATMULS if matmul else {}), **(CONVOLUTIONS if convolution else {})}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        places = self._operands.get(getattr(func, "overloadpacket", None), ())
        if places and all(able(args[i]) for i in places):
            self.used = True
            args = [rounded(a) if i in places else a for i, a in enumerate(args)]
        return func(*args, **(kwargs or {}))
