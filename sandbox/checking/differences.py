"""How a candidate's outputs of one round differ from the reference's, both in their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sandbox.checking import compare
from sandbox.checking.updates import coarsened, input_share, same_update
from sandbox.machine import memory
from sandbox.machine.trees import Layout
from sandbox.observation import Errors
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject

INPUT_BOUND = Errors(1e-4, 1e-3, 1e-2)
"""Of inputs that are written to, by their size."""
FEW_BYTES = 1 << 16
"""Of an output, up to which those of all parts are copied together."""


def differences(
    reference: Subject,
    candidate: Subject,
    signature: Signature,
    parts: Sequence[range],
    bounds: Sequence[Errors],
    before: Mapping[int, torch.Tensor] | None = None,
) -> dict[str, Any]:
    """Fields of a CaseObservation: the worst errors over the sets of these parts, where they are
    within `bounds` perhaps upper limits of them. `before`: the (bytes,) of some sets before the
    calls, which write to them.

    A scalar's scale is that of all sets together.
    """
    worst = []
    sets = [index for part in parts for index in part]
    for leaf, (spec, bound) in enumerate(zip(signature.outputs, bounds, strict=True)):
        found = Errors()
        for outs, truths in _joined(candidate, reference, leaf, parts, few=spec.bytes <= FEW_BYTES):
            found = found.worst(compare.errors(outs, truths, bound))
        if found.misplaced and not spec.floating:
            found = _forgive_ties(reference, candidate, signature, sets, leaf, found)
        worst.append(found)
    fields: dict[str, Any] = {"errors": tuple(worst)}
    if signature.mutates:
        fields["update_differs"] = not all(
            _same_inputs(reference, candidate, signature, index, (before or {}).get(index))
            for index in sets
        )
    return fields


def finite(side: Subject, signature: Signature, sets: range) -> bool:
    """Whether all that was computed in these sets is."""
    return all(
        bool(some.isfinite().all())
        for leaf, spec in enumerate(signature.outputs)
        if spec.floating
        for (some,) in compare.pieces(side.stack("slots", leaf)[sets.start : sets.stop])
    )


def _joined(
    candidate: Subject, reference: Subject, leaf: int, parts: Sequence[range], *, few: bool
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The outputs of the parts: of small ones all in one, by which they are judged."""
    both = [
        [side.stack("slots", leaf)[part.start : part.stop] for side in (candidate, reference)]
        for part in parts
    ]
    if few and len(both) > 1:
        both = [[torch.cat(side) for side in zip(*both, strict=True)]]
    return [(outs, truths) for outs, truths in both]


def _forgive_ties(
    reference: Subject,
    candidate: Subject,
    signature: Signature,
    sets: list[int],
    leaf: int,
    found: Errors,
) -> Errors:
    """Index outputs that break ties otherwise are right."""
    for index in sets:
        ours, theirs = (side.leaf("slots", index, leaf) for side in (reference, candidate))
        values = [reference.leaf("inputs", index, n) for n in range(len(signature.inputs))]
        if not torch.equal(ours, theirs) and not compare.ties_explain(theirs, ours, values):
            return found
    return replace(found, misplaced=0)


def _same_inputs(
    reference: Subject,
    candidate: Subject,
    signature: Signature,
    index: int,
    before: torch.Tensor | None,
) -> bool:
    """For references that write their inputs: both sides left the same values there."""
    layout = Layout(signature.inputs, 1)
    for leaf in range(len(signature.inputs)):
        found, expected = (side.leaf("inputs", index, leaf) for side in (candidate, reference))
        if not compare.errors(found, expected).within(coarsened(INPUT_BOUND, expected.dtype)):
            return False
        if before is not None:
            was = memory.leaf_view(before, layout, 0, leaf)
            if not same_update(found, expected, was, input_share(expected.dtype)):
                return False
    return True
