"""References against which nothing can be told: by what they give, and by what passes for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.checking import nulls
from sandbox.checking.nulls import NullCandidate
from sandbox.errors import InvalidReference
from sandbox.subjects.signature import Signature

if TYPE_CHECKING:
    from sandbox.checking.pool import Case

UNSIGNED = frozenset(("uint16", "uint32", "uint64"))
"""Without arithmetic, and without promotion to another type, in torch."""


def refuse_unscorable(signature: Signature) -> None:
    """Raise InvalidReference for what no case has to tell."""
    if not signature.outputs:
        raise InvalidReference("forward() returns no tensor: return what it updates in place")
    if not any(leaf.elements for leaf in signature.outputs):
        raise InvalidReference("forward() returns no element: whatever is empty would pass")
    dtypes = {leaf.dtype for leaf in (*signature.inputs, *signature.outputs)}
    if any(dtype.startswith("complex") for dtype in dtypes):
        raise InvalidReference("complex tensors: split them with torch.view_as_real")
    if unsigned := dtypes & UNSIGNED:
        raise InvalidReference(f"{min(unsigned)} tensors: torch compares them with none; use int64")
    if not signature.repeatable:
        raise InvalidReference(
            "stochastic: equal inputs give different outputs under another seed; where it is "
            "dropout, call self.eval() in the constructor"
        )


def refuse_degenerate(cases: Sequence[Case], signature: Signature) -> None:
    """Raise InvalidReference where a candidate that computes nothing would pass."""
    for null in NullCandidate:
        reason = nulls.why_degenerate(null, aliases=signature.aliases)
        if reason and nulls.passes(null, cases, signature):
            raise InvalidReference(f"degenerate: {reason}")
