"""What the figures of memory-bound calls are put down to."""

import itertools
from collections.abc import Callable

import pytest

from benchmarks.memory_bound import OWN, explained

CALLERS, INPUTS, CYCLES = range(4), (OWN, "shared 0", "shared 1"), range(5)


@pytest.mark.parametrize(
    ("cause", "named"),
    [
        (lambda caller, source, cycle: caller, "within a caller"),
        (lambda caller, source, cycle: 2 if source == OWN else len(source), "within an input"),
        (lambda caller, source, cycle: (source == OWN) * caller, "within an input"),
        (lambda caller, source, cycle: caller * INPUTS.index(source), "within a caller and input"),
        (lambda caller, source, cycle: caller + cycle % 2, "within a cycle"),
    ],
    ids=["process", "shared memory", "own memory", "process and memory", "time"],
)
def test_a_figure_is_put_down_to_what_makes_it(
    cause: Callable[[int, str, int], int], named: str
) -> None:
    every = itertools.product(CALLERS, INPUTS, CYCLES)
    rows = [(*row, 3.0 + 0.1 * cause(*row)) for row in every]
    found = explained(rows)
    assert found["in all"] > 1
    assert found[named] == 0
    coarser = {"within a caller": (), "within an input": ("within a caller",)}
    for other in coarser.get(named, ("within a caller", "within an input")):
        assert found[other] > 0.5
