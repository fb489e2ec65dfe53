"""How a candidate's parameters and buffers correspond to the reference's."""

from __future__ import annotations

import json
from typing import Any

from sandbox.machine.channel import FRAME_LIMIT
from sandbox.machine.trees import Leaf

NAMES_BYTES = FRAME_LIMIT // 2
"""Of parameters, as JSON: a candidate's are sent back to it, and may be longer so than they came.
"""


def match_state(
    reference: tuple[tuple[str, Leaf], ...], claimed: list[Any]
) -> tuple[str, list[str]]:
    """How a candidate's parameters and buffers correspond, and its names in the reference's order.

    By name where every candidate tensor has a namesake of its shape and dtype; else by order where
    shapes and dtypes agree one by one; else only through the shared seed, and nothing is
    overwritten. Raises one of CLAIM_ERRORS where what is claimed is no state.
    """
    own = [(str(name), Leaf.from_json(leaf)) for name, leaf in claimed]
    if not reference and not own:
        return "none", []
    named = dict(own)
    wanted = dict(reference)
    if all(name in wanted and _alike(leaf, wanted[name]) for name, leaf in own) and own:
        if len(own) == len(reference):
            return "name", [name for name, _ in reference]
        return "subset", [name if name in named else "" for name, _ in reference]
    if len(own) == len(reference) and all(
        _alike(mine, theirs) for (_, mine), (_, theirs) in zip(own, reference, strict=True)
    ):
        names = [name for name, _ in own]
        if len(json.dumps(names)) > NAMES_BYTES:
            raise ValueError(f"names of more than {NAMES_BYTES} bytes")
        return "order", names
    return "seed", []


def _alike(left: Leaf, right: Leaf) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype
