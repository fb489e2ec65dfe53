"""What the supervisor does to a worker's process tree: kill, freeze, thaw, place.

Keep the leader unreaped until `kill_tree` has returned, or its number may belong to another group.
Without walls (`Grade.WEAK`) a process can leave the group and escape all of this.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from sandbox.errors import SandboxFault
from sandbox.machine import proc
from sandbox.walls.kernel import PR_SET_CHILD_SUBREAPER, prctl

POLL_S = 0.001
SETTLE_S = 15.0
"""A signalled process stops or dies once it leaves the kernel; a driver call may take this long."""


def kill_tree(pgid: int, uid: int | None = None) -> None:
    """SIGKILL the group, and every process of `uid` where the slot has its own, until none runs.

    Raises SandboxFault if one is still there after 15 s (stuck in a driver).
    """
    _check(pgid, uid)

    def gone() -> bool:
        _signal(pgid, signal.SIGKILL)
        alive = any(p.group == pgid and not p.gone for p in proc.every_process())
        for pid in proc.processes_of(uid) if uid is not None else ():
            _kill(pid)
            alive = True
        return not alive

    if not _settle(gone):
        raise SandboxFault(f"process group {pgid} survived SIGKILL for {SETTLE_S} s: driver hung?")


def adopt_orphans() -> None:
    """Make this process, not init, the parent of workers' orphans, so that it can reap them.

    For whoever forks workers. Until it is reaped a zombie counts against its uid's process limit,
    and the first process of a container often reaps nothing.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def freeze_tree(pgid: int, *, blocked: bool = False, threads: bool = True) -> None:
    """SIGSTOP the group, until every process stands still; raises SandboxFault after 15 s.

    `blocked`: one that waits in the kernel will do: it stops when it leaves it. `threads`: to the
    last of them; else the first of a process tells, as where a GPU's time is at stake: looking at
    64 of them takes 0.5 ms.
    """

    def awake() -> list[proc.Process]:
        family = proc.family(pgid)
        stand = proc.standing(family) | {p.pid for p in family if blocked and p.state == "D"}
        return [p for p in family if p.pid not in stand or (threads and proc.runs(p))]

    def still() -> bool:
        stop_tree(pgid)  # again, for whoever has himself sent SIGCONT
        return not awake()

    if not _settle(still):
        where = [
            f"{p.pid} is {p.state} in {proc.read(f'/proc/{p.pid}/wchan') or '?'}" for p in awake()
        ]
        raise SandboxFault(
            f"process group {pgid} did not stop within {SETTLE_S} s: driver hung? "
            + ", ".join(where)
        )


def woken(pgid: int) -> bool:
    """Whether a process of a frozen group goes on: who is being killed does not count."""
    family = proc.family(pgid)
    moving = {process.pid for process in family} - proc.standing(family)
    if not moving:
        return False
    freeze_tree(pgid)
    return not moving.isdisjoint(proc.members(pgid))


def stop_tree(pgid: int) -> None:
    """SIGSTOP the group, and wait for nobody."""
    _check(pgid, None)
    _signal(pgid, signal.SIGSTOP)


def thaw_tree(pgid: int) -> None:
    """SIGCONT the group."""
    _check(pgid, None)
    _signal(pgid, signal.SIGCONT)


def spread_threads(pid: int) -> None:
    """Pin each thread of a process to one of our cores, the busiest first, each to the next core.

    Left alone, the threads of an OpenMP team that has slept wake on one core and stay there for a
    while: a layer norm took 415 us or 1,150 us a call, by chance. Done from outside, because
    workers may not place themselves.
    """
    cores = sorted(os.sched_getaffinity(0))
    threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    threads.sort(key=lambda thread: -proc.busy_ns(pid, thread))
    for position, thread in enumerate(threads):
        try:
            os.sched_setaffinity(thread, {cores[position % len(cores)]})
        except ProcessLookupError:
            continue  # the thread has ended


def confine(pid: int, cores: set[int]) -> None:
    """Let every thread of a process run on these cores; what it forks later inherits that."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def place(pid: int, core: int) -> None:
    """Let a process's first thread run on one core alone; its others stay where they are."""
    os.sched_setaffinity(pid, {core})


def _check(pgid: int, uid: int | None) -> None:
    if pgid <= 1 or pgid == os.getpgrp():
        raise ValueError(f"process group is {pgid}; expected a worker's own group")
    if uid is not None and uid in (0, os.getuid()):
        raise ValueError(f"uid is {uid}; expected a slot's own uid: this would end the supervisor")


def _signal(pgid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pgid, number)
    except ProcessLookupError:
        return  # the whole group has ended


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended meanwhile


def _settle(done: Callable[[], bool]) -> bool:
    deadline, pause_s = time.monotonic() + SETTLE_S, POLL_S / 16
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S)
    return True
