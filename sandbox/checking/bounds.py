"""What error a candidate may have on an output: in verification, and in timed rounds.

The bound is the largest of the dtype's class constant, a multiple of the reference's own error, and
what rounding the inputs would do to the output (docs/measuring.md, "Correct first"). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.machine.trees import Leaf
from sandbox.observation import Errors
from sandbox.types import EvalConfig

if TYPE_CHECKING:
    from sandbox.checking.pool import Case, Pool

CLASS_NORM = {"float64": 1e-12, "float32": 5e-6, "float16": 3e-4, "bfloat16": 2e-3}
"""Norm-wise error of a matmul at any K per dtype (measured: ||error|| of randn matmuls against
float64).
"""
TF32_NORM = 1e-3
"""Three times what TF32 makes of one product of normal numbers (2.8e-4)."""
TF32_JITTERS = 4 * 2.0**13
"""Times the jitter's effect: TF32 keeps thirteen bits less."""
CLASS_SHAPE = Errors(norm=1.0, row=4.0, element=16.0)
"""How far a row or an element of an honest kernel lies above the tensor's norm error."""
JITTER = 2.0**-24
"""Half an ulp of float32, relative: the rounding no kernel can avoid."""
JITTER_FACTOR = 8.0
TAIL, NORM_TAIL = 1.5, 1.1
MANY = 4096
"""Elements from which NORM_TAIL is enough."""
NONE = Errors()


def explained(rough: Sequence[Errors], shaken: Sequence[Errors]) -> list[Errors]:
    """What TF32 makes of outputs, where it is no more than TF32 explains: a router that chooses
    otherwise, or a hinge that leaves zero, would else allow anything. Of a smooth function it is as
    many times the jitter's effect as its rounding is coarser, however conditioned (8,200 to 8,800
    times, measured; of a router 700,000).
    """
    most = CLASS_SHAPE.times(TF32_NORM)
    return [
        each if each.within(most) or each.within(shake.times(TF32_JITTERS)) else NONE
        for each, shake in zip(rough, shaken, strict=True)
    ]


def bound(
    leaf: Leaf, own: Errors, shaken: Errors, config: EvalConfig, rough: Errors = NONE
) -> Errors:
    """The error a candidate may have on one leaf of one case: `own` is the reference's, `shaken`
    the jitter's, `rough` what TF32 makes where it is allowed, whether eager uses it or not.
    """
    if not leaf.floating:
        return Errors()
    base, factor = CLASS_NORM.get(leaf.dtype, CLASS_NORM["float32"]), config.reference_error_factor
    seen = own.times(factor).worst(rough.times(factor)).worst(shaken.times(JITTER_FACTOR))
    return CLASS_SHAPE.times(base).worst(seen)


def timed_bounds(case: Case) -> tuple[Errors, ...]:
    """For timed rounds, where truth is the reference worker's output and so carries its own
    error, and where hundreds of sets reach further into the tails than one case did: rows and
    elements, while the norm over many elements is always much the same. There bfloat16, whose
    products are eight times as far off as TF32's, is not to pass where eager uses TF32.
    """
    return tuple(
        Errors(
            NORM_TAIL * b.norm + 1.5 * o.norm if t.numel() >= MANY else TAIL * b.norm + 3 * o.norm,
            TAIL * b.row + 3 * o.row,
            TAIL * b.element + 3 * o.element,
        )
        for b, o, t in zip(case.bounds, case.own, case.truth, strict=True)
    )


def own_error(pool: Pool) -> float:
    """The norm of the reference's error on inputs as given."""
    return max((own.norm for own in pool.cases[0].own), default=0.0)
