"""The proof of an installed library without a GPU: what its rows say, and the whole of it once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.export.artefact import Gathered, gather, read_artefact
from agent.export.package import export_package
from benchmarks.library import installed
from benchmarks.library.__main__ import MORE, timed
from benchmarks.library.inside.checks import CHECKS
from benchmarks.library.rows import CHECKS as NAMES
from benchmarks.library.rows import Row, lines
from sandbox.figures import Interval
from tests.agent.export_library import cpp_campaign

CRASHING = "import os\nos.kill(os.getpid(), 11)\n"


def row(campaign: tuple[float, float, float] | None = (2.0, 1.9, 2.1)) -> Row:
    claimed = None if campaign is None else Interval(*campaign)
    found = Row(
        *("relu", "test/relu", "c0ffee", "cuda", "float32", "active"),
        *("model", "", "model", "recompute", claimed, claimed, {}),
    )
    found.note_checks([{"check": name, "state": "passed", "detail": ""} for name in NAMES], "")
    return found


PACE_US = 10.0


def time(
    reference_ms: float,
    speedup: float,
    paces: Sequence[float] = (PACE_US,),
    launch: float = 0.8,
) -> dict[str, Any]:
    """What a process says; `launch` is the launching thread's part of the operator's calls where
    the core is quick. Calls that it bounds take as long as it does.
    """
    rounds = []
    for pace in paces:
        device_ms = reference_ms / speedup
        launching_ms = launch * device_ms * pace / PACE_US
        took = {
            "reference": (reference_ms, 0.01),
            "again": (reference_ms * 0.999, 0.01),
            "operator": (max(device_ms, launching_ms), launching_ms),
        }
        named = {f"{n}_ms": ms for n, (ms, _) in took.items()}
        rounds.append(named | {f"{n}_launch_ms": ms for n, (_, ms) in took.items()})
        rounds[-1]["pace_us"] = pace
    return {"rounds": rounds, "calls": 64, "sets": 64}


def test_the_child_and_the_record_name_the_same_checks():
    assert tuple(check.__name__ for check in CHECKS) == NAMES


@pytest.mark.parametrize(
    ("reference_ms", "speedup", "campaign", "agrees"),
    [
        (0.1, 2.05, (2.0, 1.9, 2.1), True),
        (0.1, 1.8, (2.0, 1.9, 2.1), False),
        (0.1, 1.98, (2.0, 1.99, 2.01), False),
        (0.4, 1.98, (2.0, 1.99, 2.01), True),  # long, and within 2 %
        (0.4, 1.9, (2.0, 1.99, 2.01), False),
        (0.1, 2.0, None, None),
    ],
)
def test_a_figure_agrees_within_the_campaigns_interval_or_two_per_cent_of_a_long_call(
    reference_ms, speedup, campaign, agrees
):
    found = row(campaign)
    found.note_times([time(reference_ms, speedup)] * 3, PACE_US)
    assert found.agrees is agrees
    assert found.proven is bool(agrees)


def test_what_a_dead_process_left_out_is_no_pass():
    found = row()
    found.note_checks([{"check": "clean", "state": "passed", "detail": ""}], "ended by SIGSEGV")
    found.note_times([time(0.1, 2.0)] * 3, PACE_US)
    assert not found.proven
    assert "kernel" in found.wrong
    assert "relu: kernel: ended by SIGSEGV" in lines([found])
    assert not row().proven  # never timed


@pytest.mark.parametrize(
    ("state", "beats_eager", "used", "said"),
    [
        ("active", True, "by default", []),
        ("slower", True, "with the switch", ["relu: used with the switch alone: slower"]),
        ("slower", False, "nowhere", ["relu: the reference does its calls here: slower"]),
    ],
)
def test_what_runs_by_default_is_told_from_what_runs_with_the_switch(
    state, beats_eager, used, said
):
    found = replace(row(), state=state, beats_eager=beats_eager)
    assert found.used == used
    assert lines([found])[2:] == said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_library_is_proven_where_it_is_installed_and_a_crash_stops_no_other(tmp_path):
    gathered = gather([cpp_campaign(tmp_path / "run", signs="speedup=1.2", decayed="speedup=3")])
    export_package(gathered, tmp_path / "out", "proven_kernels")
    break_kernel(tmp_path / "out", "decayed")
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "benchmarks.library", "--library", str(tmp_path / "out")]
    options = ["--device", "cpu", "--pairs", "2", "--parallel", "1", "--out", str(record)]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    decayed, signs = found["rows"]
    assert found["switch"] == "PROVEN_KERNELS_AGAINST=eager"
    assert [decayed["used"], signs["used"]] == ["by default", "with the switch"]
    assert decayed["checks"]["clean"]["state"] == "passed"
    assert "SIGSEGV" in decayed["checks"]["kernel"]["detail"]
    assert decayed["speedup"] is None
    states = {name: check["state"] for name, check in signs["checks"].items()}
    skipped = {"cuda_graph", "streams", "autograd"}  # integers have no gradient
    assert {n for n, s in states.items() if s == "skipped"} == skipped
    assert {n for n, s in states.items() if s == "passed"} == set(NAMES) - skipped
    assert 2 <= signs["pairs"] <= 2 * MORE  # more where it was disturbed
    assert str(tmp_path) not in record.read_text()


def break_kernel(folder: Path, operator: str) -> None:
    """A kernel that kills its process, in a library that is whole by its hashes."""
    artefacts = [read_artefact(path) for path in (folder / "artefacts").glob("*.json")]
    broken = tuple(
        replace(a, candidate=replace(a.candidate, source=CRASHING + a.candidate.source))
        if a.operator == operator
        else a
        for a in artefacts
    )
    export_package(Gathered(broken, ()), folder, "proven_kernels")


def test_one_process_alone_tells_no_interval():
    found = row()
    found.note_times([time(0.1, 2.0)], PACE_US)
    assert (found.pairs, found.reference_ms, found.speedup) == (1, 0.1, None)
    assert not found.proven


def test_a_slow_core_that_launches_ahead_of_the_device_counts():
    found = row()
    found.note_times([time(0.1, 2.0, [16.0] * 3, launch=0.4)] * 3, PACE_US)
    assert found.pairs == 3
    assert found.speedup.value == pytest.approx(2.0, rel=1e-3)


def test_of_calls_that_launching_bounds_everywhere_those_of_a_quick_core_count():
    found, paces = row(), [PACE_US] * 3 + [16.0]
    found.note_times([time(0.1, 2.0, paces, launch=1.0)] * 2, PACE_US)
    assert [(p.rounds, p.disturbed) for p in found.processes] == [(3, 1)] * 2
    assert found.speedup.value == pytest.approx(2.0, rel=1e-3)


def test_rounds_and_processes_of_a_slow_core_do_not_count():
    found = row()
    mixed, slow = [PACE_US] * 7 + [16.0] * 5, [PACE_US] * 5 + [16.0] * 7
    found.note_times([time(0.1, 2.0), time(0.1, 2.0, mixed), time(0.1, 2.0, slow)], PACE_US)
    assert [(p.rounds, p.disturbed) for p in found.processes] == [(1, 0), (7, 5), (5, 7)]
    assert found.pairs == 2
    assert found.speedup.value == pytest.approx(2.0, rel=1e-3)
    found.note_times([time(0.1, 2.0, [16.0])] * 3, PACE_US)
    assert (found.pairs, found.speedup, found.proven) == (0, None, False)


def test_processes_of_a_slow_core_are_asked_for_again():
    paces = iter([[PACE_US], [16.0], [16.0], [PACE_US], [PACE_US]])

    def ask(request: dict[str, Any], timeout_s: float) -> tuple[list[dict[str, Any]], str]:
        return [{"operator": "relu", **time(0.1, 2.0, next(paces))}], ""

    found, record = row(), SimpleNamespace(write=lambda: None)
    site = SimpleNamespace(ask=ask)
    timed(cast(Any, site), [found], 3, monotonic() + 60, cast(Any, record))
    assert (found.pairs, len(found.processes)) == (3, 5)
    assert found.agrees


class Saying:
    """A site whose processes tell of each operator asked for what `speedups` says next."""

    def __init__(self, **speedups: list[float]) -> None:
        self.speedups = speedups

    def ask(self, request: dict[str, Any], timeout_s: float) -> tuple[list[dict[str, Any]], str]:
        names = [one["operator"] for one in request["operators"]]
        return [{"operator": n, **time(0.1, self.speedups[n].pop(0))} for n in names], ""


def test_a_disturbed_figure_is_taken_in_more_processes_until_it_is_narrow(tmp_path):
    rows = [replace(row(), operator=name) for name in ("calm", "loud", "shaken")]
    loud = [2.0, 1.0, 4.0] * 4
    site = Saying(calm=[2.0] * 3, shaken=[2.0, 2.0, 1.5, *[2.0] * 9], loud=loud)
    record = SimpleNamespace(write=lambda: None)
    timed(cast(Any, site), rows, 3, monotonic() + 60, cast(Any, record))
    calm, loud_row, shaken = rows
    assert (calm.pairs, loud_row.pairs) == (3, 12)
    assert loud_row.wide
    assert 3 < shaken.pairs <= 12
    assert shaken.agrees


def test_a_line_that_a_stopped_process_left_unfinished_spoils_nothing(tmp_path, monkeypatch):
    child = tmp_path / "child.py"
    child.write_text(
        "print('CHECK {\"check\": 1}'); print('CHECK {\"che', flush=True); raise SystemExit(3)"
    )
    monkeypatch.setattr(installed, "PROGRAM", (str(child),))
    site = installed.Site("some", tmp_path, "cpu")
    assert site.ask({}, 60) == ([{"check": 1}], "exit status 3")
