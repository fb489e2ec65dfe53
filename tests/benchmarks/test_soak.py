"""What a soak finds in its rows, and that it goes on where it stopped."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak import Row, judged, load, pace, save
from benchmarks.soak_candidates import candidates, kinds

HANGS_S = 2.0


def rows(count: int, run: int = 0) -> list[Row]:
    """An even soak: every fifth evaluation hangs."""
    fast = Row(run, "good", "PASSED", "PASSED", 0.5, 250, 400, 16, 2, 2, 0, 900)
    slow = replace(fast, kind="hangs", status="TIMEOUT", expected="TIMEOUT", seconds=HANGS_S)
    return [slow if number % 5 == 4 else fast for number in range(count)]


def test_an_even_soak_has_no_finding() -> None:
    assert judged(rows(200), 10) == []


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("descriptors", 17),
        ("threads", 3),
        ("processes", 3),
        ("files", 1),
        ("supervisor_mib", 270),
        ("zygotes_mib", 440),
        ("gpu_mib", 1000),
    ],
)
def test_what_has_grown_is_named(name: str, last: int) -> None:
    seen = rows(200)
    seen[180:] = [replace(row, **{name: last}) for row in seen[180:]]
    (found,) = judged(seen, 10)
    assert name in found


def test_an_unexpected_status_is_named() -> None:
    seen = rows(200)
    seen[7] = replace(seen[7], status="SANDBOX_ERROR", detail="the zygote died")
    (found,) = judged(seen, 10)
    assert "evaluation 7" in found
    assert "the zygote died" in found


@pytest.mark.parametrize(("factor", "findings"), [(1.04, 0), (1.07, 1), (0.9, 1)])
def test_the_last_tenth_keeps_the_firsts_pace(factor: float, findings: int) -> None:
    seen = rows(200)
    seen[180:] = [replace(row, seconds=row.seconds * factor) for row in seen[180:]]
    assert len(judged(seen, 10)) == findings


def test_a_tenth_with_more_hangs_is_not_slower() -> None:
    whole = rows(100)
    assert pace(whole[:9], whole) == pytest.approx(pace(whole[4:], whole))


def test_another_run_starts_with_processes_of_its_own() -> None:
    later = [replace(row, supervisor_mib=400, descriptors=20) for row in rows(200, run=1)]
    assert judged(rows(200) + later, 10) == []


def test_a_soak_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    assert load(path) == []
    save(path, rows(30), {"device": "cpu"})
    assert load(path) == rows(30)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_two_candidates_are_alike_and_half_are_right(device: str) -> None:
    series = list(itertools.islice(candidates(device, 3, "run"), 40))
    assert len({candidate.id for _, candidate in series}) == 40
    again = next(candidates(device, 3, "another run"))[1]
    assert again.id != series[0][1].id
    assert sum(kind.expected == "PASSED" for kind in kinds(device)) == 5
