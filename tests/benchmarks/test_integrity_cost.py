"""What the layers cost: what is taken away is put back, and how seconds become a ratio."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.integrity_cost import LAYERS, costs, path_alone


def test_every_layer_that_is_taken_away_exists_and_comes_back() -> None:
    before = [getattr(owner, name) for owner, name, _ in LAYERS]
    with path_alone():
        inside = [getattr(owner, name) for owner, name, _ in LAYERS]
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert [getattr(owner, name) for owner, name, _ in LAYERS] == before


def row(task: str, layers: bool, wall_s: float, **changes: Any) -> dict[str, Any]:
    base = {"task": task, "mode": "search", "layers": layers, "wall_s": wall_s, "pairs": 1}
    return {**base, "status": "PASSED", **changes}


def test_the_cost_is_the_mean_of_the_tasks_ratios() -> None:
    rows = [row("a", True, 2.4), row("a", False, 2.0), row("b", True, 1.2), row("b", False, 1.0)]
    found = costs(rows)
    assert found["search"]["ratio"] == pytest.approx(1.2)
    assert found["search"]["tasks"] == 2
    assert "confirmation" not in found


def test_evaluations_of_other_length_and_failed_ones_do_not_count() -> None:
    rows = [row("a", True, 1.1), row("a", True, 1.1), row("a", False, 1.0), row("a", False, 1.0)]
    rows += [row("a", True, 9.0, pairs=2), row("a", False, 0.1, status="SANDBOX_ERROR")]
    rows += [row("b", True, 1.1), row("b", False, 1.0)]
    assert costs(rows)["search"]["ratio"] == pytest.approx(1.1)
