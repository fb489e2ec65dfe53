"""Pytrees of inputs and outputs as JSON: containers and scalars in the tree, tensors as numbered
leaves.

`{"t": 3}` is tensor leaf 3, `{"l": [...]}` a list, `{"u": [...]}` a tuple, `{"d": {...}}` a dict,
`{"v": 1.5}` a scalar, None or string. A named tuple is a tuple; a dataclass or mapping is a dict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALIGNMENT = 256
"""Bytes between leaves in an arena: torch's own allocator aligns to 512, vector loads need 16."""
DEEPEST = 32
CLAIM_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, StopIteration)
"""What reading JSON of another shape than ours raises: a worker may claim anything."""


@dataclass(frozen=True)
class Leaf:
    """One tensor: its shape, dtype (`float32`), stride in elements, and bytes per element."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    itemsize: int

    @property
    def elements(self) -> int:
        """Elements of storage spanned, gaps of a non-dense stride included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))

    def to_json(self) -> list[Any]:
        return [list(self.shape), self.dtype, list(self.stride), self.itemsize]

    @classmethod
    def from_json(cls, record: Sequence[Any]) -> Leaf:
        shape, dtype, stride, itemsize = record
        return cls(tuple(map(int, shape)), str(dtype), tuple(map(int, stride)), int(itemsize))

    def dense(self) -> Leaf:
        """The same shape, row-major: what an output slot holds."""
        stride, step = [], 1
        for n in reversed(self.shape):
            stride.append(step)
            step *= max(n, 1)
        return Leaf(self.shape, self.dtype, tuple(reversed(stride)), self.itemsize)


def stride_class(shape: Sequence[int], stride: Sequence[int]) -> str:
    """`contiguous`, `permuted` (dense in another order), `expanded` (a zero stride) or `sparse`
    (gaps).
    """
    sizes = [(s, n) for n, s in zip(shape, stride, strict=True) if n > 1]
    if 0 in shape:
        return "contiguous"
    if any(s == 0 for s, _ in sizes):
        return "expanded"
    expected = 1
    for s, n in sorted(sizes):
        if s != expected:
            return "sparse"
        expected *= n
    return "contiguous" if sizes == sorted(sizes, reverse=True) else "permuted"


@dataclass(frozen=True)
class Layout:
    """Where each leaf of each set lies in an arena; sets are `stride` bytes apart."""

    leaves: tuple[Leaf, ...]
    sets: int

    @property
    def offsets(self) -> tuple[int, ...]:
        offsets, position = [], 0
        for leaf in self.leaves:
            offsets.append(position)
            position += _aligned(leaf.bytes)
        return tuple(offsets)

    @property
    def stride(self) -> int:
        """Bytes of one set."""
        return max(sum(_aligned(leaf.bytes) for leaf in self.leaves), ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self.stride * self.sets


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def flatten(value: Any, is_tensor: Callable[[Any], bool]) -> tuple[dict[str, Any], list[Any]]:
    """The JSON tree of `value` and its tensors in order; raises TypeError on anything else."""
    tensors: list[Any] = []
    return _walk(value, 0, tensors, is_tensor), tensors


def _walk(
    node: Any, depth: int, tensors: list[Any], is_tensor: Callable[[Any], bool]
) -> dict[str, Any]:
    """No closure: one that calls itself is a cycle, and would hold gigabytes of tensors until the
    garbage collector comes by.
    """
    if depth > DEEPEST:
        raise TypeError(f"nested more than {DEEPEST} deep")
    if is_tensor(node):
        tensors.append(node)
        return {"t": len(tensors) - 1}
    if node is None or isinstance(node, bool | int | float | str):
        return {"v": node}
    if isinstance(node, Mapping):
        named = {str(key): part for key, part in node.items()}
        # Numbered by name: a dict is the same in whatever order it was filled.
        walked = {k: _walk(named[k], depth + 1, tensors, is_tensor) for k in sorted(named)}
        return {"d": {name: walked[name] for name in named}}
    if isinstance(node, tuple):
        return {"u": [_walk(v, depth + 1, tensors, is_tensor) for v in node]}
    if isinstance(node, list):
        return {"l": [_walk(v, depth + 1, tensors, is_tensor) for v in node]}
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)}
        return _walk(fields, depth, tensors, is_tensor)
    raise TypeError(f"a {type(node).__name__}; expected tensors, numbers and containers of them")


def unflatten(tree: Mapping[str, Any], tensors: Sequence[Any]) -> Any:
    """The inverse of `flatten`."""
    kind, value = next(iter(tree.items()))
    if kind == "t":
        return tensors[value]
    if kind == "l":
        return [unflatten(v, tensors) for v in value]
    if kind == "u":
        return tuple(unflatten(v, tensors) for v in value)
    if kind == "d":
        return {k: unflatten(v, tensors) for k, v in value.items()}
    return value


def same_structure(tree: Any, other: Any) -> bool:
    """Equal containers with tensors in the same places; scalars equal; a list may stand for a
    tuple.
    """
    if set(tree) != set(other) and not {*tree, *other} <= {"l", "u"}:
        return False
    (kind, value), (_, partner) = next(iter(tree.items())), next(iter(other.items()))
    if kind in ("l", "u"):
        return len(value) == len(partner) and all(map(same_structure, value, partner))
    if kind == "d":
        return value.keys() == partner.keys() and all(
            same_structure(value[k], partner[k]) for k in value
        )
    return bool(value == partner)
