"""How the outputs that a worker describes differ from the reference's."""

from __future__ import annotations

from typing import Any

from sandbox.machine import trees
from sandbox.subjects.claims import word
from sandbox.subjects.signature import Signature


def structure(
    claim: dict[str, Any], signature: Signature, sets: int, *, dense: bool = False
) -> dict[str, Any]:
    """How the outputs the candidate describes differ from the reference's; claims, so only
    harmful ones. `dense`: they may be dense in another order.
    """
    try:
        return _structure(claim, signature, sets, dense)
    except trees.CLAIM_ERRORS:
        return {"structure_differs": "outputs that were described in no known form"}


def _structure(
    claim: dict[str, Any], signature: Signature, sets: int, dense: bool
) -> dict[str, Any]:
    kinds = [parse_kind(kind) for kind in claim["kinds"]]
    complete = len(claim["sets"]) == sets
    found = {"structure_differs": "", "shape_differs": "", "dtype_differs": "", "foreign_type": ""}
    if not kinds or not complete:
        found["structure_differs"] = "outputs of several calls differ in structure"
    for tree, leaves in kinds:
        if len(leaves) != len(signature.outputs) or not trees.same_structure(
            signature.output_tree, tree
        ):
            found["structure_differs"] = (
                f"{len(leaves)} tensors in another structure than the reference's "
                f"{len(signature.outputs)}"
            )
            continue
        for spec, stride, leaf in zip(signature.outputs, signature.classes, leaves, strict=True):
            shape, dtype, stride_class, type_name = leaf
            if tuple(shape) != spec.shape:
                found["shape_differs"] = f"{word(tuple(shape))}, expected {spec.shape}"
            elif dtype != spec.dtype:
                found["dtype_differs"] = f"{dtype}, expected {spec.dtype}"
            elif stride_class not in ("contiguous", stride):
                words = f"a {stride_class} layout, expected {stride}"
                allowed = dense and stride_class == "permuted"
                found["layout_differs" if allowed else "shape_differs"] = words
            if type_name != "Tensor":
                found["foreign_type"] = type_name
    return found


def parse_kind(kind: Any) -> tuple[Any, list[list[Any]]]:
    tree, leaves = kind
    return tree, [[list(map(int, leaf[0]))[:64], *map(word, leaf[1:4])] for leaf in leaves]
