"""Pure parts around a worker's claims: structure, matching of state, planner, bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sandbox.checking.bounds import bound, timed_bounds
from sandbox.checking.pool import Case, truth_leaf
from sandbox.checking.refusals import refuse_degenerate
from sandbox.checking.structure import structure
from sandbox.errors import InvalidReference
from sandbox.machine.domains import Domain
from sandbox.machine.trees import Leaf
from sandbox.observation import Errors
from sandbox.subjects.claims import LONGEST_WORD
from sandbox.subjects.matching import match_state
from sandbox.subjects.plan import (
    LEAST_SETS,
    LONGEST,
    MANY_SHARE,
    MEMORY_SHARE,
    QUICK,
    SLOW,
    SPARE_OUTPUTS,
    Plan,
    plan,
)
from sandbox.subjects.signature import Signature
from sandbox.types import EvalConfig

CONFIG = EvalConfig(batch_ms=10.0)


def leaf(*shape: int, dtype: str = "float32", itemsize: int = 4) -> Leaf:
    return Leaf(shape, dtype, (0,) * len(shape), itemsize).dense()


SIGNATURE = Signature(
    shape=0,
    seed=1,
    init={"l": []},
    input_tree={"l": [{"t": 0}]},
    inputs=(leaf(1024, 1024),),
    domains=(Domain.REAL,),
    state=(("weight", leaf(3, 3)), ("bias", leaf(3))),
    output_tree={"u": [{"t": 0}, {"v": 2}]},
    outputs=(leaf(4, 5),),
    classes=("permuted",),
    repeatable=True,
    mutates=False,
    moves_state=False,
    aliases=False,
    latency_s=1e-4,
    fill_s=1e-4,
)
RIGHT = [[4, 5], "float32", "contiguous", "Tensor"]


def claimed(*kinds: object, sets: int = 3) -> dict[str, Any]:
    return {"kinds": list(kinds), "sets": [0] * sets}


def test_an_output_like_the_references_differs_in_nothing() -> None:
    for tree in (SIGNATURE.output_tree, {"l": [{"t": 0}, {"v": 2}]}):
        found = structure(claimed([tree, [RIGHT]]), SIGNATURE, 3)
        assert not any(found.values())


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (0, [4, 6], "shape_differs"),
        (0, [20], "shape_differs"),
        (1, "float16", "dtype_differs"),
        (2, "sparse", "shape_differs"),
        (2, "expanded", "shape_differs"),
        (3, "Late", "foreign_type"),
    ],
)
def test_one_difference_is_one_field(place: int, value: object, field: str) -> None:
    other = [*RIGHT]
    other[place] = value
    found = structure(claimed([SIGNATURE.output_tree, [other]]), SIGNATURE, 3)
    assert [name for name, words in found.items() if words] == [field]


@pytest.mark.parametrize(
    "claim",
    [
        claimed(),
        claimed([SIGNATURE.output_tree, [RIGHT]], sets=2),
        claimed([{"t": 0}, [RIGHT]]),
        claimed([{"u": [{"t": 0}, {"v": 3}]}, [RIGHT]]),
        claimed([SIGNATURE.output_tree, []]),
        claimed([SIGNATURE.output_tree, [RIGHT, RIGHT]]),
        claimed([SIGNATURE.output_tree, [RIGHT]], [{"t": 0}, [RIGHT]]),
    ],
)
def test_missing_calls_or_another_tree_is_another_structure(claim: dict[str, Any]) -> None:
    assert structure(claim, SIGNATURE, 3)["structure_differs"]


def test_a_claimed_shape_is_cut_to_a_line() -> None:
    endless = [SIGNATURE.output_tree, [[[10**4000] * 64, *RIGHT[1:]]]]
    seen = structure(claimed(endless), SIGNATURE, 3)
    assert 0 < len(seen["shape_differs"]) < 2 * LONGEST_WORD


values = st.recursive(
    st.none() | st.integers() | st.floats() | st.sampled_from(["t", "float32", "Tensor"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("tludv"), inner),
    max_leaves=10,
)


@given(values, values, values)
def test_no_claim_raises(kinds: object, sets: object, tree: object) -> None:
    for claim in ({"kinds": kinds, "sets": sets}, claimed([tree, [kinds]]), claimed([tree, kinds])):
        assert structure(claim, SIGNATURE, 3)["structure_differs"]


def entry(name: str, *shape: int) -> list[object]:
    return [name, leaf(*shape).to_json()]


@pytest.mark.parametrize(
    ("own", "how", "names"),
    [
        ([entry("weight", 3, 3), entry("bias", 3)], "name", ["weight", "bias"]),
        ([entry("bias", 3), entry("weight", 3, 3)], "name", ["weight", "bias"]),
        ([entry("w", 3, 3), entry("b", 3)], "order", ["w", "b"]),
        ([entry("bias", 3, 3), entry("weight", 3)], "order", ["bias", "weight"]),
        ([entry("b", 3), entry("w", 3, 3)], "seed", []),
        ([entry("weight", 3, 3)], "subset", ["weight", ""]),
        ([entry("weight", 9)], "seed", []),
        ([], "seed", []),
    ],
)
def test_state_is_matched_by_name_then_order_then_seed(
    own: list[Any], how: str, names: list[str]
) -> None:
    assert match_state(SIGNATURE.state, own) == (how, names)


def test_no_state_on_either_side_needs_no_match() -> None:
    assert match_state((), []) == ("none", [])


def sized(**changes: Any) -> Signature:
    return replace(SIGNATURE, fill_s=1e-9, **changes)


def test_batches_of_a_quick_candidate_last_half_as_long_as_the_reference_s_were_to() -> None:
    planned = Plan(10, 2)
    assert planned.longer(QUICK - 0.1, 1000) == planned
    assert planned.longer(6.0, 1000) == Plan(30, 2)
    assert planned.longer(6.0, 20) == Plan(20, 2)
    assert planned.longer(6.0, 14) == planned
    assert planned.longer(100.0, 1000) == Plan(10 * LONGEST, 2)


def test_batches_of_a_slow_candidate_have_fewer_sets_and_last_half_a_second() -> None:
    planned = Plan(80, 2)
    assert planned.shorter(SLOW * 1e-3, 1e-3) == Plan(63, 2)
    assert planned.shorter(SLOW * 1e-3 - 1e-6, 1e-3) == planned
    assert planned.shorter(0.4, 1e-4) == Plan(4, 1, untimed=0)
    assert Plan(2, 2).shorter(0.4, 1e-4) == Plan(2, 2)
    assert planned.shorter(0.005, 1e-4) == planned


@pytest.mark.parametrize(
    ("latency_s", "sets", "single"),
    [(1e-4, 100, 8), (4e-4, 25, 5), (1.1e-3, 10, 4), (1.0, 1, 1), (1e-5, 512, 8), (0.0, 512, 8)],
)
def test_a_batch_lasts_ten_milliseconds_where_sets_allow(
    latency_s: float, sets: int, single: int
) -> None:
    found = plan(sized(latency_s=latency_s), CONFIG, 1 << 40)
    assert (found.sets, found.warm) == (sets, 2)
    assert found.timed + found.warm_sets == list(range(sets + 2))
    assert found.single == single


def test_large_outputs_on_a_gpu_have_no_memory_reserved_beyond_the_plan() -> None:
    """It counts a batch's outputs; and the least there can be fills the GPU."""
    made = plan(sized(latency_s=1e-4), CONFIG, 1 << 40)
    assert made.sets > LEAST_SETS
    assert made.reserved(SIGNATURE, "cuda", keeps=True) == made.sets + SPARE_OUTPUTS
    assert made.reserved(SIGNATURE, "cuda", keeps=False) == made.sets
    assert Plan(LEAST_SETS, 1).reserved(SIGNATURE, "cuda", keeps=False) == 0


@given(st.integers(1, 1 << 36), st.integers(1, 4096), st.integers(1, 4096))
def test_a_plan_fits_in_memory(free: int, rows: int, columns: int) -> None:
    found = sized(inputs=(leaf(rows, columns),), outputs=(leaf(columns),), latency_s=1e-6)
    try:
        made = plan(found, CONFIG, free)
    except InvalidReference:
        return
    used = 2 * found.input_bytes * (made.sets + made.warm) + 4 * found.output_bytes * made.sets
    assert used <= MEMORY_SHARE * free
    assert used <= MANY_SHARE * free or made.sets <= LEAST_SETS
    assert 1 <= made.sets <= CONFIG.max_sets


OWN, SHAKEN = Errors(1e-6, 2e-6, 3e-6), Errors(1e-8, 1e-8, 1e-8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bounds_are_at_least_the_class_constant(dtype: str) -> None:
    found = bound(leaf(2, dtype=dtype), Errors(), Errors(), CONFIG)
    assert 0 < found.norm <= found.row <= found.element < 0.1


def test_bounds_follow_the_references_error_and_the_conditioning() -> None:
    own = bound(leaf(2), Errors(1e-3, 2e-3, 3e-3), SHAKEN, CONFIG)
    assert own == Errors(4e-3, 8e-3, 12e-3)
    shaken = bound(leaf(2), OWN, Errors(1e-2, 1e-2, 1e-2), CONFIG)
    assert shaken == Errors(0.08, 0.08, 0.08)


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_integer_leaves_are_exact(dtype: str) -> None:
    assert bound(leaf(2, dtype=dtype), OWN, SHAKEN, CONFIG) == Errors()
    assert truth_leaf(leaf(2, dtype=dtype)).dtype == dtype
    assert truth_leaf(leaf(2, dtype="bfloat16")).dtype == "float64"


def case(truth: torch.Tensor, inputs: torch.Tensor | None = None) -> Case:
    stored = torch.zeros(256, dtype=torch.uint8) if inputs is None else inputs
    return Case("given", stored, (truth,), (Errors(1e-5, 1e-4, 1e-3),), (OWN,), None)


def test_timed_bounds_add_the_references_own_error() -> None:
    (found,) = timed_bounds(case(torch.rand(8)))
    values = (found.norm, found.row, found.element)
    assert values == pytest.approx((1.8e-5, 1.56e-4, 1.509e-3))


NOISE = [torch.rand(40, dtype=torch.float64) for _ in range(2)]


@pytest.mark.parametrize(
    ("truths", "words"),
    [
        ([torch.zeros(40, dtype=torch.float64)] * 2, "all zeros"),
        ([torch.full((40,), 2.5, dtype=torch.float64), NOISE[0] * 0 + 7], "one constant"),
        ([torch.ones(40, dtype=torch.int64)] * 2, "all ones"),
        ([NOISE[0], NOISE[0].clone()], "does not depend"),
    ],
)
def test_what_a_null_candidate_would_pass_is_degenerate(
    truths: list[torch.Tensor], words: str
) -> None:
    with pytest.raises(InvalidReference, match=words):
        refuse_degenerate([case(t) for t in truths], SIGNATURE)


def test_an_ordinary_reference_is_not_degenerate() -> None:
    refuse_degenerate([case(t) for t in NOISE], SIGNATURE)


def test_a_reference_that_returns_its_input_is_degenerate() -> None:
    inputs = torch.zeros(256, dtype=torch.uint8)
    values = inputs[:160].view(torch.float32)
    values.copy_(torch.rand(40))
    echo = replace(SIGNATURE, inputs=(leaf(40),), aliases=True)
    with pytest.raises(InvalidReference, match="input unchanged"):
        refuse_degenerate([case(values.double(), inputs)], echo)
