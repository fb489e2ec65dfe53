"""A worker's process tree, seen from the supervisor: kill, freeze, measure, count.

The tree is the process group, because the walls refuse setsid and ignore setpgid. Keep the leader
unreaped until `kill_tree` has returned, or its number may belong to another group. Without walls
(`Grade.WEAK`) a process can leave the group and escape all of this.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sandbox.errors import SandboxFault
from sandbox.storage import memory_file_bytes
from sandbox.walls.kernel import PR_SET_CHILD_SUBREAPER, prctl

POLL_S = 0.001
SETTLE_S = 15.0
"""A signalled process stops or dies once it leaves the kernel; a driver call may take this long."""


@dataclass(frozen=True)
class Process:
    """One line of /proc/<pid>/stat."""

    pid: int
    """Of another thread of it, where the first has ended: /proc tells only of a living one what its
    process holds.
    """
    group: int
    state: str
    threads: int = 1

    @property
    def gone(self) -> bool:
        """Ended, and none of its threads is in the kernel still: one that copies there goes on for
        seconds, whatever kills it.
        """
        return self.ended and self.threads <= 1

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
        alive = any(p.group == pgid and not p.gone for p in _processes())
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


def freeze_tree(pgid: int, *, blocked: bool = False, threads: bool = True) -> None:
    """SIGSTOP the group, until every process stands still; raises SandboxFault after 15 s.

    `blocked`: one that waits in the kernel will do: it stops when it leaves it. `threads`: to the
    last of them; else the first of a process tells, as where a GPU's time is at stake: looking at
    64 of them takes 0.5 ms.
    """

    def awake() -> list[Process]:
        family = _family(pgid)
        stand = _standing(family) | {p.pid for p in family if blocked and p.state == "D"}
        return [p for p in family if p.pid not in stand or (threads and _runs(p))]

    def still() -> bool:
        stop_tree(pgid)  # again, for whoever has himself sent SIGCONT
        return not awake()

    if not _settle(still):
        where = [f"{p.pid} is {p.state} in {_read(f'/proc/{p.pid}/wchan') or '?'}" for p in awake()]
        raise SandboxFault(
            f"process group {pgid} did not stop within {SETTLE_S} s: driver hung? "
            + ", ".join(where)
        )


def woken(pgid: int) -> bool:
    """Whether a process of a frozen group goes on: who is being killed does not count."""
    family = _family(pgid)
    moving = {process.pid for process in family} - _standing(family)
    if not moving:
        return False
    freeze_tree(pgid)
    return not moving.isdisjoint(members(pgid))


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
    threads.sort(key=lambda thread: -_busy_ns(pid, thread))
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


def _busy_ns(pid: int, thread: int) -> int:
    """Nanoseconds the thread has run (proc(5), schedstat)."""
    return int((_read(f"/proc/{pid}/task/{thread}/schedstat") or "0").split()[0])


def tree_memory_bytes(pgid: int, shared_bytes: int = 0, limit_bytes: int = sys.maxsize) -> int:
    """Memory of the group that is its own: anonymous, and shared beyond `shared_bytes`.

    `shared_bytes` are the arenas'. Files on a disk are left out, `memfd`s that nobody maps are not.
    An upper bound, since pages still shared after a fork count once per process: twenty children
    that end at once weigh as much as twenty zygotes. Where it is over `limit_bytes`, each page is
    divided among those that share it, which takes a millisecond per process.
    """
    living = [process.pid for process in _living(pgid)]
    files = memory_file_bytes(living)

    def total(resident: list[tuple[int, int]]) -> int:
        own, mapped = (sum(sizes) for sizes in zip(*resident, strict=True)) if resident else (0, 0)
        return own + max(0, max(mapped, files) - shared_bytes)

    bound = total([_resident(pid) for pid in living])
    return bound if bound <= limit_bytes else total([_proportional(pid) for pid in living])


def members(pgid: int) -> list[int]:
    """Pids of the group's processes that have not ended."""
    return [process.pid for process in _living(pgid)]


def count_processes(pgid: int) -> int:
    """Processes of the group that have not ended; threads are not counted."""
    return len(_living(pgid))


def others(pgid: int) -> tuple[str, ...]:
    """Commands of the group's living processes beside its leader."""
    pids = [process.pid for process in _living(pgid) if process.pid != pgid]
    return tuple(sorted((_read(f"/proc/{pid}/comm") or "?").strip() for pid in pids))


def count_threads(pid: int) -> int:
    """Threads of one process; 0 where it has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except FileNotFoundError:
        return 0


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process and its threads have used; None where it has ended."""
    try:
        # The clock of another process (clock_getcpuclockid(3)): CPUCLOCK_SCHED, of all threads.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def peak_bytes(pid: int) -> int:
    """The most memory a process ever held, shared pages included; 0 where it has ended."""
    return _bytes(_status(pid), "VmHWM")


def _check(pgid: int, uid: int | None) -> None:
    if pgid <= 1 or pgid == os.getpgrp():
        raise ValueError(f"process group is {pgid}; expected a worker's own group")
    if uid is not None and uid in (0, os.getuid()):
        raise ValueError(f"uid is {uid}; expected a slot's own uid: this would end the supervisor")


def _family(pgid: int) -> list[Process]:
    """As `_living`, by descent instead of a look at every process of the machine: the children of
    whoever forked the leader, who adopts its orphans, and theirs. One that begins or ends meanwhile
    may be missed (proc(5)), which is why signals go to the group.
    """
    leader = _read(f"/proc/{pgid}/stat")
    if leader is None:
        return []
    parent = int(leader.rpartition(")")[2].split()[1])
    waiting, found = _children(parent), []
    if waiting is None:
        return _living(pgid)  # a kernel without CONFIG_PROC_CHILDREN
    while waiting:
        process = _process(waiting.pop())
        if process is not None and process.group == pgid and not process.ended:
            found.append(process)
            waiting += _children(process.pid) or []
    return found


def _listed(folder: str) -> list[str]:
    """Names in a folder of /proc; none where its process has ended."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int) -> list[int] | None:
    """Of all its threads; None where the kernel does not tell, or it has ended."""
    threads = _listed(f"/proc/{pid}/task")
    lists = [_read(f"/proc/{pid}/task/{thread}/children") for thread in threads]
    told = [text for text in lists if text is not None]
    return [int(child) for text in told for child in text.split()] if told else None


def _standing(family: list[Process]) -> set[int]:
    """Pids of those that are stopped, or wait in the kernel for a child that stands: a parent
    between vfork and its child's exec never stops.
    """
    found = set[int]()
    for process in reversed(family):  # children come after their parents
        waits = process.state == "D" and not found.isdisjoint(_children(process.pid) or [])
        if waits or process.state in "Tt":
            found.add(process.pid)
    return found


def _runs(process: Process) -> bool:
    """Whether one of several threads runs: the state of a process is its first thread's, and what
    another copies in the kernel it copies to the end.
    """
    if process.threads == 1:
        return False
    folder = f"/proc/{process.pid}/task"
    stats = [_read(f"{folder}/{thread}/stat") for thread in _listed(folder)]
    return any(stat.rpartition(")")[2].split()[0] == "R" for stat in stats if stat is not None)


def _living(pgid: int) -> list[Process]:
    return [process for process in _processes() if process.group == pgid and not process.ended]


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = _process(int(name))
            if process is not None:
                yield process


def _process(pid: int) -> Process | None:
    found = _stat(pid)
    if found is None or not found.ended or found.gone:
        return found
    threads = map(_stat, map(int, _listed(f"/proc/{pid}/task")))
    return next((thread for thread in threads if thread is not None and not thread.ended), found)


def _stat(pid: int) -> Process | None:
    stat = _read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The command in parentheses may itself contain spaces and parentheses (proc(5)).
    fields = stat.rpartition(")")[2].split()
    return Process(pid, int(fields[2]), fields[0], int(fields[17]))


def _processes_of(uid: int) -> Iterator[int]:
    for process in _processes():
        if not process.gone:
            fields = _status(process.pid)
            if "Uid" in fields and int(fields["Uid"].split()[0]) == uid:
                yield process.pid


def _bytes(status: dict[str, str], name: str) -> int:
    return 1024 * int(status.get(name, "0 kB").split()[0])


def _resident(pid: int) -> tuple[int, int]:
    """Anonymous and shared memory in bytes, every page counted in full."""
    status = _status(pid)
    return _bytes(status, "RssAnon"), _bytes(status, "RssShmem")


def _proportional(pid: int) -> tuple[int, int]:
    """As `_resident`, each page divided by the processes that map it; in full where the kernel
    keeps the map from us, as that of a process that made itself undumpable.
    """
    try:
        rollup = _fields(f"/proc/{pid}/smaps_rollup")
    except PermissionError:
        return _resident(pid)
    return _bytes(rollup, "Pss_Anon"), _bytes(rollup, "Pss_Shmem")


def _status(pid: int) -> dict[str, str]:
    return _fields(f"/proc/{pid}/status")


def _fields(path: str) -> dict[str, str]:
    """The `name: value` lines of a file in /proc; empty where the process ended meanwhile."""
    lines = (_read(path) or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _read(path: str) -> str | None:
    """A file in /proc; None where its process has ended. A tree is read dozens of times per
    evaluation, and Python's own text files take five times as long.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        chunks = list(iter(lambda: os.read(file, 1 << 16), b""))
    except ProcessLookupError:
        return None
    finally:
        os.close(file)
    return b"".join(chunks).decode(errors="replace")


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
