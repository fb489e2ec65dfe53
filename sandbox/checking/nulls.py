"""Null candidates: outputs that take no work, judged by the comparison that candidates get.

Where one of them passes, a problem cannot tell work from none. What they know is more than a
candidate can: the mean is that of the truth itself. They say nothing of what a *simplified* kernel
may skip; sandbox/checking/sensitivity.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from sandbox.checking import compare
from sandbox.machine import memory
from sandbox.machine.trees import Layout
from sandbox.observation import Errors
from sandbox.subjects.signature import Signature

if TYPE_CHECKING:
    from sandbox.checking.pool import Case

STEP_DOWN = {
    "float64": torch.float32,
    "float32": torch.bfloat16,
    "float16": torch.float8_e4m3fn,
    "bfloat16": torch.float8_e4m3fn,
}
"""The next narrower type that hardware multiplies in. Not float16 for float32: TF32, which a
protocol may allow, has the same mantissa."""
FLOAT8_MAX = 448.0
"""Of e4m3fn; outputs are scaled below it, as float8 kernels do."""

Accepts = Callable[[torch.Tensor, torch.Tensor, Errors], bool]
"""(output, truth, bound) of one leaf."""


class NullCandidate(StrEnum):
    """Each value is how a sentence calls it."""

    ZEROS = "all zeros"
    ONES = "all ones"
    CONSTANT = "one constant"
    PREVIOUS = "the previous call's output"
    ECHO = "an input unchanged"
    STEP_DOWN = "a result rounded to the next narrower type"


def by_bounds(out: torch.Tensor, truth: torch.Tensor, bound: Errors) -> bool:
    """As a candidate's output is judged."""
    return compare.errors(out, truth).within(bound)


def by_tolerance(tolerance: float) -> Accepts:
    """As KernelBench judges (Ouyang et al. 2025): elementwise, absolute and relative alike."""

    def accepts(out: torch.Tensor, truth: torch.Tensor, bound: Errors) -> bool:
        return all(
            torch.allclose(some.double(), expected.double(), rtol=tolerance, atol=tolerance)
            for some, expected in compare.pieces(out, truth)
        )

    return accepts


def passing(
    cases: Sequence[Case], signature: Signature, accepts: Accepts = by_bounds
) -> tuple[NullCandidate, ...]:
    """Those that pass every case; the first of them is at the inputs' own scale."""
    return tuple(null for null in NullCandidate if passes(null, cases, signature, accepts))


def passes(
    null: NullCandidate, cases: Sequence[Case], signature: Signature, accepts: Accepts = by_bounds
) -> bool:
    """Whether one of them passes every case that has an output to compare."""
    sized = [case for case in cases if any(t.numel() for t in case.truth)]
    if not sized:
        return False
    match null:
        case NullCandidate.ZEROS:
            return all(_filled(case, 0.0, accepts) for case in sized)
        case NullCandidate.ONES:
            return all(_filled(case, 1.0, accepts) for case in sized)
        case NullCandidate.CONSTANT:
            # A scalar is always its own mean: its constant comes from the first case.
            scalar = all(t.numel() == 1 for case in sized for t in case.truth)
            others = sized[1:] if scalar else sized
            return bool(others) and all(_constant(c, sized[0], accepts) for c in others)
        case NullCandidate.PREVIOUS:
            others = sorted(cases[1:], key=lambda case: case.scale != 1.0)
            able = bool(others) and bool(signature.inputs)
            return able and _leaves(others[0], cases[0].truth, accepts)
        case NullCandidate.ECHO:
            able = bool(signature.inputs) and not signature.mutates
            return able and all(_echo(case, signature, accepts) for case in sized)
        case NullCandidate.STEP_DOWN:
            able = any(leaf.dtype in STEP_DOWN for leaf in signature.outputs)
            return able and all(
                _leaves(case, rounded(case.truth, signature), accepts) for case in sized
            )


def why_degenerate(null: NullCandidate, *, aliases: bool) -> str:
    """What it says of a problem that this null candidate passes; empty where it may pass.

    An input echoed is nothing only where the reference may return its input: elsewhere it must be
    copied, which may be the work. Rounding leaves all the work to do.
    """
    if null is NullCandidate.PREVIOUS:
        return "the output does not depend on the inputs' values"
    if null is NullCandidate.STEP_DOWN or (null is NullCandidate.ECHO and not aliases):
        return ""
    return f"{null} passes as output"


def rounded(truth: Sequence[torch.Tensor], signature: Signature) -> list[torch.Tensor]:
    """The truth in the next narrower type; integer leaves as they are."""
    found = []
    for leaf, tensor in zip(signature.outputs, truth, strict=True):
        lower = STEP_DOWN.get(leaf.dtype)
        if lower is None or tensor.numel() == 0:
            found.append(tensor)
        elif lower is torch.float8_e4m3fn:
            scale = float(tensor.nan_to_num(0.0, 0.0, 0.0).abs().max()) / FLOAT8_MAX or 1.0
            found.append((tensor.double() / scale).float().to(lower).double() * scale)
        else:
            found.append(tensor.to(lower).to(tensor.dtype))
    return found


def _leaves(case: Case, outputs: Sequence[torch.Tensor], accepts: Accepts) -> bool:
    return all(
        accepts(out, truth, bound)
        for out, truth, bound in zip(outputs, case.truth, case.bounds, strict=True)
    )


def _filled(case: Case, value: float, accepts: Accepts) -> bool:
    return all(
        accepts(_everywhere(value, truth), truth, bound)
        for truth, bound in zip(case.truth, case.bounds, strict=True)
        if truth.numel()
    )


def _constant(case: Case, first: Case, accepts: Accepts) -> bool:
    """Whether each leaf may be its mean everywhere; a scalar: the first case's."""
    return all(
        accepts(_everywhere(_mean(origin if t.numel() == 1 else t), t), t, bound)
        for t, origin, bound in zip(case.truth, first.truth, case.bounds, strict=True)
        if t.numel()
    )


def _everywhere(value: float, like: torch.Tensor) -> torch.Tensor:
    """One number in the shape and type of a tensor, without its memory."""
    return torch.full((), value, dtype=like.dtype, device=like.device).expand_as(like)


def _mean(truth: torch.Tensor) -> float:
    """The mean; of integers, the first."""
    return float(truth.mean() if truth.is_floating_point() else truth.flatten()[0])


def _echo(case: Case, signature: Signature, accepts: Accepts) -> bool:
    layout = Layout(signature.inputs, 1)
    views = [memory.leaf_view(case.inputs, layout, 0, i) for i in range(len(signature.inputs))]
    return all(
        any(v.shape == t.shape and accepts(v, t, b) for v in views)
        for t, b in zip(case.truth, case.bounds, strict=True)
    )
