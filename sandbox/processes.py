"""A worker's process tree, seen from the supervisor: kill, freeze, measure, count.

The tree is the process group, because the walls refuse setsid and ignore setpgid. Keep the leader
unreaped until `kill_tree` has returned, or its number may belong to another group. Without walls
(`Grade.WEAK`) a process can leave the group and escape all of this.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxFault
from sandbox.walls.kernel import PR_SET_CHILD_SUBREAPER, prctl

POLL_S = 0.001
SETTLE_S = 15.0
"""A signalled process stops or dies once it leaves the kernel; a driver call may take this long."""


@dataclass(frozen=True)
class Process:
    """One line of /proc/<pid>/stat."""

    pid: int
    group: int
    state: str

    @property
    def ended(self) -> bool:
        """Zombie or dead: it runs no more and holds no memory."""
        return self.state in "ZX"


def kill_tree(pgid: int, uid: int | None = None) -> None:
    """SIGKILL the group, and every process of `uid` where the slot has its own, until none runs.

    Raises SandboxFault if one is still there after 15 s (stuck in a driver).
    """
    _check(pgid, uid)

    def gone() -> bool:
        _signal(pgid, signal.SIGKILL)
        alive = count_processes(pgid) > 0
        for pid in _processes_of(uid) if uid is not None else ():
            _kill(pid)
            alive = True
        return not alive

    if not _settle(gone):
        raise SandboxFault(f"process group {pgid} survived SIGKILL for {SETTLE_S} s: driver hung?")


def adopt_orphans() -> None:
    """Make this process, not init, the parent of workers' orphans, so that `reap_tree` finds them.

    For whoever forks workers. Until it is reaped a zombie counts against its uid's process limit,
    and the first process of a container often reaps nothing.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap_tree(pgid: int) -> int | None:
    """After `kill_tree`, in the process that adopts: collect the group's zombies.

    Returns the leader's wait status, None where the leader was collected before.
    """
    leader = None
    while True:
        try:
            pid, status = os.waitpid(-pgid, 0)
        except ChildProcessError:
            return leader
        if pid == pgid:
            leader = status


def freeze_tree(pgid: int) -> None:
    """SIGSTOP the group; returns once every process is stopped, raises SandboxFault after 15 s."""
    _check(pgid, None)
    _signal(pgid, signal.SIGSTOP)
    if not _settle(lambda: all(process.state in "Tt" for process in _living(pgid))):
        raise SandboxFault(f"process group {pgid} did not stop within {SETTLE_S} s: driver hung?")


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
    threads.sort(key=lambda thread: -_busy_ns(pid, thread))
    for position, thread in enumerate(threads):
        try:
            os.sched_setaffinity(thread, {cores[position % len(cores)]})
        except ProcessLookupError:
            continue  # the thread has ended


def _busy_ns(pid: int, thread: int) -> int:
    """Nanoseconds the thread has run (proc(5), schedstat)."""
    return int((_read(f"/proc/{pid}/task/{thread}/schedstat") or "0").split()[0])


def tree_memory_bytes(pgid: int, shared_bytes: int = 0) -> int:
    """Resident memory of the group that is its own: anonymous, and shared beyond `shared_bytes`.

    `shared_bytes` are the arenas'. Pages still shared with the zygote since the fork count once per
    process; files are left out.
    """
    states = [_status(process.pid) for process in _living(pgid)]
    own, shared = (sum(_bytes(s, name) for s in states) for name in ("RssAnon", "RssShmem"))
    return own + max(0, shared - shared_bytes)


def count_processes(pgid: int) -> int:
    """Processes of the group that have not ended; threads are not counted."""
    return len(_living(pgid))


def _check(pgid: int, uid: int | None) -> None:
    if pgid <= 1 or pgid == os.getpgrp():
        raise ValueError(f"process group is {pgid}; expected a worker's own group")
    if uid is not None and uid in (0, os.getuid()):
        raise ValueError(f"uid is {uid}; expected a slot's own uid: this would end the supervisor")


def _living(pgid: int) -> list[Process]:
    return [process for process in _processes() if process.group == pgid and not process.ended]


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _read(f"/proc/{name}/stat")
            if stat is not None:
                # The command in parentheses may itself contain spaces and parentheses (proc(5)).
                state, _, group = stat.rpartition(")")[2].split()[:3]
                yield Process(int(name), int(group), state)


def _processes_of(uid: int) -> Iterator[int]:
    for process in _processes():
        if not process.ended:
            fields = _status(process.pid)
            if "Uid" in fields and int(fields["Uid"].split()[0]) == uid:
                yield process.pid


def _bytes(status: dict[str, str], name: str) -> int:
    return 1024 * int(status.get(name, "0 kB").split()[0])


def _status(pid: int) -> dict[str, str]:
    """/proc/<pid>/status; empty where the process ended meanwhile."""
    lines = (_read(f"/proc/{pid}/status") or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None


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
    deadline = time.monotonic() + SETTLE_S
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
