"""Pytrees as JSON, stride classes, and where leaves lie in an arena."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sandbox.machine.memory import HostArena, OpenedArena, describe, leaf_view, stacked_view
from sandbox.machine.trees import (
    ALIGNMENT,
    CLAIM_ERRORS,
    Layout,
    Leaf,
    flatten,
    same_structure,
    stride_class,
    unflatten,
)

DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2, "int8": 1, "bool": 1, "int64": 8}
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
tensors = st.builds(torch.tensor, st.integers(0, 99))
trees = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
leaves = st.builds(
    lambda shape, dtype: Leaf(shape, dtype, (0,) * len(shape), DTYPES[dtype]).dense(),
    shapes,
    st.sampled_from(sorted(DTYPES)),
)
json_values = st.recursive(
    scalars | st.just(float("inf")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("tludv"), inner),
    max_leaves=8,
)


def equal(left: Any, right: Any) -> bool:
    if torch.is_tensor(left):
        return left is right
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return (
            type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
        )
    return bool(left == right and type(left) is type(right))


@given(trees)
def test_a_tree_survives_json(value: Any) -> None:
    tree, found = flatten(value, torch.is_tensor)
    back = json.loads(json.dumps(tree))
    assert back == tree
    assert equal(unflatten(back, found), value)
    assert same_structure(back, tree)


def test_tensors_are_numbered_in_order() -> None:
    first, second = torch.zeros(1), torch.ones(1)
    tree, found = flatten([(first, 2), [second]], torch.is_tensor)
    assert found[0] is first
    assert found[1] is second
    assert tree == {"l": [{"u": [{"t": 0}, {"v": 2}]}, {"l": [{"t": 1}]}]}


def test_a_dict_is_the_same_in_whatever_order_it_was_filled() -> None:
    first, second = torch.zeros(1), torch.ones(1)
    tree, found = flatten({"b": second, "a": first}, torch.is_tensor)
    other, same = flatten({"a": first, "b": second}, torch.is_tensor)
    assert same_structure(tree, other)
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in same]
    assert list(unflatten(json.loads(json.dumps(tree)), found)) == ["b", "a"]


@dataclass
class Output:
    value: int = 1


Named = namedtuple("Named", "a b")


@pytest.mark.parametrize(
    ("value", "plain"), [(Output(), {"value": 1}), (Named(1, 2), (1, 2)), ({1: 2}, {"1": 2})]
)
def test_records_become_plain_containers(value: Any, plain: Any) -> None:
    assert unflatten(*flatten(value, torch.is_tensor)) == plain


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


@pytest.mark.parametrize("value", [object(), {1, 2}, nested(40), Output, iter([])])
def test_anything_else_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"expected tensors|nested more"):
        flatten(value, torch.is_tensor)


@given(trees, trees)
def test_only_equal_trees_have_the_same_structure(left: Any, right: Any) -> None:
    one, other = flatten(left, torch.is_tensor)[0], flatten(right, torch.is_tensor)[0]

    def plain(tree: Any) -> Any:
        (kind, value), *_ = tree.items()
        if kind in "lu":
            return ["l", [plain(v) for v in value]]
        return [kind, {k: plain(v) for k, v in value.items()} if kind == "d" else value]

    assert same_structure(one, other) == (plain(one) == plain(other))


@given(json_values)
def test_a_claimed_tree_of_any_form_is_compared_or_refused(claim: Any) -> None:
    tree = {"u": [{"t": 0}, {"l": [{"d": {"a": {"v": 1}}}]}]}
    with contextlib.suppress(*CLAIM_ERRORS):
        assert not same_structure(tree, claim)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.zeros(2, 3), "contiguous"),
        (torch.zeros(()), "contiguous"),
        (torch.zeros(0, 3).t(), "contiguous"),
        (torch.zeros(2, 3).t(), "permuted"),
        (torch.zeros(1, 3).t(), "contiguous"),
        (torch.zeros(2, 3, 4).permute(1, 0, 2), "permuted"),
        (torch.zeros(2, 4, 4, 3).permute(0, 3, 1, 2), "permuted"),
        (torch.zeros(3).expand(2, 3), "expanded"),
        (torch.zeros(1, 3).expand(1, 3), "contiguous"),
        (torch.zeros(4, 6)[:, :3], "sparse"),
        (torch.zeros(4, 6)[::2], "sparse"),
        (torch.zeros(6).as_strided((3, 3), (1, 1)), "sparse"),
    ],
)
def test_stride_classes(tensor: torch.Tensor, kind: str) -> None:
    assert stride_class(tensor.shape, tensor.stride()) == kind
    assert (kind == "contiguous") == tensor.is_contiguous()


@given(shapes, st.permutations(range(4)))
def test_every_permutation_of_a_dense_tensor_is_dense(
    shape: tuple[int, ...], order: list[int]
) -> None:
    axes = [i for i in order if i < len(shape)]
    tensor = torch.empty(shape).permute(axes)
    kind = stride_class(tensor.shape, tensor.stride())
    assert kind == ("contiguous" if tensor.is_contiguous() else "permuted")
    assert describe(tensor).elements == tensor.numel()


@given(st.lists(leaves, max_size=5), st.integers(1, 4))
def test_leaves_of_all_sets_never_overlap(found: list[Leaf], sets: int) -> None:
    layout = Layout(tuple(found), sets)
    spans = [
        (index * layout.stride + offset, leaf.bytes)
        for index in range(sets)
        for offset, leaf in zip(layout.offsets, layout.leaves, strict=True)
    ]
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    ends = [start for start, _ in spans[1:]] + [layout.bytes]
    for (start, size), end in zip(spans, ends, strict=False):
        assert start + size <= end


@given(st.lists(leaves, min_size=1, max_size=4))
def test_every_leaf_can_be_written_and_read_alone(found: list[Leaf]) -> None:
    layout = Layout(tuple(found), 2)
    arena = torch.zeros(layout.bytes, dtype=torch.uint8)
    for number in range(len(found)):
        leaf_view(arena, layout, 1, number).fill_(1)
    assert not arena[: layout.stride].any()
    assert all(leaf_view(arena, layout, 1, n).eq(1).all() for n in range(len(found)))


@given(leaves)
def test_a_leaf_survives_json(leaf: Leaf) -> None:
    assert Leaf.from_json(json.loads(json.dumps(leaf.to_json()))) == leaf
    assert leaf.dense() == leaf


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 3).t(),
        torch.rand(3).expand(2, 3),
        torch.rand(4, 6)[:, ::2],
        torch.rand(6).as_strided((2, 2), (3, 0)),
        torch.rand(4).as_strided((2, 2), (1, 1)),
        torch.rand(()),
        torch.rand(0, 3),
    ],
)
def test_a_described_tensor_can_be_stored(tensor: torch.Tensor) -> None:
    layout = Layout((describe(tensor),), 1)
    view = leaf_view(torch.zeros(layout.bytes, dtype=torch.uint8), layout, 0, 0)
    view.copy_(tensor)
    assert torch.equal(view, tensor)


def test_both_sides_of_a_host_arena_see_one_memory() -> None:
    arena = HostArena(1000)
    other = OpenedArena(arena.ticket(), os.dup(arena.fds[0]))
    other.bytes[3] = 7
    assert arena.bytes[3] == 7
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fds[0], 0)
    arena.close()
    assert arena.bytes.numel() == 0
    assert other.bytes[3] == 7
    other.close()
    assert other.bytes.numel() == 0


@given(st.lists(leaves, min_size=1, max_size=4), st.integers(1, 4))
def test_a_stacked_view_is_the_leaf_of_every_set(found: list[Leaf], sets: int) -> None:
    layout = Layout(tuple(found), sets)
    arena = torch.randint(0, 2, (layout.bytes,), dtype=torch.uint8)
    for number in range(len(found)):
        stacked = stacked_view(arena, layout, number)
        assert len(stacked) == sets
        for index in range(sets):
            one = leaf_view(arena, layout, index, number)
            assert stacked[index].data_ptr() == one.data_ptr() or one.numel() == 0
            assert torch.equal(stacked[index], one)


def test_what_was_flattened_is_freed_without_the_garbage_collector() -> None:
    """Input sets of gigabytes stayed until it came by, and a GPU's memory ran out."""
    gc.disable()
    try:
        made = [torch.ones(4), {"a": (torch.ones(4),)}]
        seen = weakref.ref(made[0])
        flatten(made, torch.is_tensor)
        del made
        assert seen() is None
    finally:
        gc.enable()
