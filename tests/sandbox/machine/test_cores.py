"""Cores for the launches of timed calls, on hosts of several sizes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.machine import cores, proc, processes

FEW_CORES = len(os.sched_getaffinity(0)) < cores.LEAST_CORES


@pytest.fixture
def allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_few_cores_are_all_for_work(allowed: list[int]) -> None:
    if len(allowed) >= cores.LEAST_CORES:
        os.sched_setaffinity(0, set(allowed[: cores.LEAST_CORES - 1]))
    try:
        assert cores.launching_core("0") is None
        assert cores.common_cores() == os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, set(allowed))


@pytest.mark.skipif(FEW_CORES, reason="shares cores out on larger hosts only")
def test_no_other_work_runs_on_the_launching_core() -> None:
    for gpu in ("0", "GPU-5f1d"):
        core = cores.launching_core(gpu)
        assert core in os.sched_getaffinity(0)
        assert core not in cores.common_cores()


def test_gpus_of_one_host_launch_on_cores_that_share_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(cores, "_gpus", lambda: 2)
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    assert [cores.launching_core(gpu) for gpu in "01"] == [15, 14]  # nothing is known of siblings
    assert cores.common_cores() == set(range(14))
    for core in range(16):
        folder = tmp_path / f"cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core // 2 * 2}-{core // 2 * 2 + 1}\n")
    assert [cores.launching_core(gpu) for gpu in "01"] == [15, 13]
    assert cores.common_cores() == set(range(12))


def test_a_process_is_confined_and_its_first_thread_placed(allowed: list[int]) -> None:
    code = "import time; print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        processes.confine(child.pid, {allowed[0]})
        assert os.sched_getaffinity(child.pid) == {allowed[0]}
        processes.place(child.pid, allowed[-1])
        assert os.sched_getaffinity(child.pid) == {allowed[-1]}
    finally:
        child.kill()
        child.wait()


def test_the_pace_of_a_core_that_is_shared_is_told(allowed: list[int]) -> None:
    core = cores.LaunchingCore(allowed[-1])
    alone = min(core.pace() for _ in range(20))
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(spin.pid, {allowed[-1]})
        deadline = time.monotonic() + 20
        shared = 0.0
        while shared < 2 * alone and time.monotonic() < deadline:
            shared = max(shared, core.pace())
    finally:
        spin.kill()
        spin.wait()
    assert 1.0 <= alone < 1.5
    assert shared >= 2 * alone
    assert os.sched_getaffinity(0) == set(allowed)


def test_who_times_keeps_off_the_core_that_launches(allowed: list[int]) -> None:
    core = cores.LaunchingCore(allowed[-1])
    with core.left_alone():
        assert os.sched_getaffinity(0) == (set(allowed[:-1]) or set(allowed))
        core.pace()
        assert os.sched_getaffinity(0) == (set(allowed[:-1]) or set(allowed))
    assert os.sched_getaffinity(0) == set(allowed)


KEEPER = """
import time
from sandbox.machine.cores import LaunchingCore
with LaunchingCore({core}).kept_awake():
    print("awake", flush=True)
    time.sleep(60)
"""


def children_of(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_keeps_a_core_awake_steps_aside_and_ends_with_the_block(allowed: list[int]) -> None:
    before = set(children_of(os.getpid()))
    with cores.LaunchingCore(allowed[-1]).kept_awake():
        (spinner,) = set(children_of(os.getpid())) - before
        assert os.sched_getscheduler(spinner) == os.SCHED_IDLE
        assert os.sched_getaffinity(spinner) == {allowed[-1]}
    assert set(children_of(os.getpid())) == before


@pytest.mark.slow
def test_what_keeps_a_core_awake_ends_with_a_supervisor_that_is_killed(allowed: list[int]) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER.format(core=allowed[-1])], stdout=subprocess.PIPE
    )
    assert keeper.stdout is not None
    keeper.stdout.readline()
    (spinner,) = children_of(keeper.pid)
    keeper.kill()
    keeper.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{spinner}").exists():
        assert time.monotonic() < deadline, "it spins on"
        time.sleep(0.01)


def test_where_stepping_aside_is_refused_nothing_spins(
    allowed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    before = set(children_of(os.getpid()))
    with cores.LaunchingCore(allowed[-1]).kept_awake():
        (spinner,) = set(children_of(os.getpid())) - before
        deadline = time.monotonic() + 20
        while proc.count_processes(spinner):
            assert time.monotonic() < deadline, "it spins at everybody's expense"
            time.sleep(0.01)
    assert set(children_of(os.getpid())) == before
