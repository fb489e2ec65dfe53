"""Outputs that are infinite or no number where the reference means it: a mask's minus infinity, the
logarithm of zero, a mark.

Truth and reference must hold the same there, and finite numbers elsewhere: what overflows in one of
them alone is at an edge on whose other side an honest kernel may lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sandbox.checking import compare

LEAST_FINITE = 1 / 128
"""Of an output: scores that see a short window of a long row, but no row that sees nothing."""
TESTS = {"nan": torch.isnan, "inf": torch.isposinf, "-inf": torch.isneginf}

Kinds = frozenset[str]


def kinds(truth: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[Kinds] | None:
    """By leaf, what it holds beside finite numbers; None where both are not the same there, or too
    little of a leaf is finite to judge by.
    """
    found = []
    for expected, out in zip(truth, outputs, strict=True):
        if not expected.is_floating_point() or not expected.numel():
            found.append(Kinds())
            continue
        seen, finite = set(), 0
        for some, other in compare.pieces(expected, out):
            counted = int(some.isfinite().sum())
            finite += counted
            if counted == some.numel() and bool(other.isfinite().all()):
                continue
            for name, test in TESTS.items():
                there = test(some)
                if not torch.equal(there, test(other)):
                    return None
                if bool(there.any()):
                    seen.add(name)
        if finite < LEAST_FINITE * expected.numel():
            return None
        found.append(frozenset(seen))
    return found
