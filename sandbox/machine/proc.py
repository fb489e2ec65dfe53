"""What /proc tells of a worker's process tree: who is in it, what each does, what it holds.

The tree is the process group, because the walls refuse setsid and ignore setpgid. Without walls
(`Grade.WEAK`) a process can leave the group and is not seen here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.machine.storage import memory_file_bytes


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


def family(pgid: int) -> list[Process]:
    """As `living`, by descent instead of a look at every process of the machine: the children of
    whoever forked the leader, who adopts its orphans, and theirs. One that begins or ends meanwhile
    may be missed (proc(5)), which is why signals go to the group.
    """
    leader = read(f"/proc/{pgid}/stat")
    if leader is None:
        return []
    parent = int(leader.rpartition(")")[2].split()[1])
    waiting, found = _children(parent), []
    if waiting is None:
        return living(pgid)  # a kernel without CONFIG_PROC_CHILDREN
    while waiting:
        process = _process(waiting.pop())
        if process is not None and process.group == pgid and not process.ended:
            found.append(process)
            waiting += _children(process.pid) or []
    return found


def living(pgid: int) -> list[Process]:
    """The group's processes that have not ended."""
    return [process for process in every_process() if process.group == pgid and not process.ended]


def every_process() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = _process(int(name))
            if process is not None:
                yield process


def processes_of(uid: int) -> Iterator[int]:
    for process in every_process():
        if not process.gone:
            fields = _status(process.pid)
            if "Uid" in fields and int(fields["Uid"].split()[0]) == uid:
                yield process.pid


def standing(family: list[Process]) -> set[int]:
    """Pids of those that are stopped, or wait in the kernel for a child that stands: a parent
    between vfork and its child's exec never stops.
    """
    found = set[int]()
    for process in reversed(family):  # children come after their parents
        waits = process.state == "D" and not found.isdisjoint(_children(process.pid) or [])
        if waits or process.state in "Tt":
            found.add(process.pid)
    return found


def runs(process: Process) -> bool:
    """Whether one of several threads runs: the state of a process is its first thread's, and what
    another copies in the kernel it copies to the end.
    """
    if process.threads == 1:
        return False
    folder = f"/proc/{process.pid}/task"
    stats = [read(f"{folder}/{thread}/stat") for thread in _listed(folder)]
    return any(stat.rpartition(")")[2].split()[0] == "R" for stat in stats if stat is not None)


def members(pgid: int) -> list[int]:
    """Pids of the group's processes that have not ended."""
    return [process.pid for process in living(pgid)]


def count_processes(pgid: int) -> int:
    """Processes of the group that have not ended; threads are not counted."""
    return len(living(pgid))


def others(pgid: int) -> tuple[str, ...]:
    """Commands of the group's living processes beside its leader."""
    pids = [process.pid for process in living(pgid) if process.pid != pgid]
    return tuple(sorted((read(f"/proc/{pid}/comm") or "?").strip() for pid in pids))


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


def busy_ns(pid: int, thread: int) -> int:
    """Nanoseconds the thread has run (proc(5), schedstat)."""
    return int((read(f"/proc/{pid}/task/{thread}/schedstat") or "0").split()[0])


def peak_bytes(pid: int) -> int:
    """The most memory a process ever held, shared pages included; 0 where it has ended."""
    return _bytes(_status(pid), "VmHWM")


def tree_memory_bytes(pgid: int, shared_bytes: int = 0, limit_bytes: int = sys.maxsize) -> int:
    """Memory of the group that is its own: anonymous, and shared beyond `shared_bytes`.

    `shared_bytes` are the arenas'. Files on a disk are left out, `memfd`s that nobody maps are not.
    An upper bound, since pages still shared after a fork count once per process: twenty children
    that end at once weigh as much as twenty zygotes. Where it is over `limit_bytes`, each page is
    divided among those that share it, which takes a millisecond per process.
    """
    pids = members(pgid)
    files = memory_file_bytes(pids)

    def total(resident: list[tuple[int, int]]) -> int:
        own, mapped = (sum(sizes) for sizes in zip(*resident, strict=True)) if resident else (0, 0)
        return own + max(0, max(mapped, files) - shared_bytes)

    bound = total([_resident(pid) for pid in pids])
    return bound if bound <= limit_bytes else total([_proportional(pid) for pid in pids])


def _process(pid: int) -> Process | None:
    found = _stat(pid)
    if found is None or not found.ended or found.gone:
        return found
    threads = map(_stat, map(int, _listed(f"/proc/{pid}/task")))
    return next((thread for thread in threads if thread is not None and not thread.ended), found)


def _stat(pid: int) -> Process | None:
    stat = read(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The command in parentheses may itself contain spaces and parentheses (proc(5)).
    fields = stat.rpartition(")")[2].split()
    return Process(pid, int(fields[2]), fields[0], int(fields[17]))


def _listed(folder: str) -> list[str]:
    """Names in a folder of /proc; none where its process has ended."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int) -> list[int] | None:
    """Of all its threads; None where the kernel does not tell, or it has ended."""
    threads = _listed(f"/proc/{pid}/task")
    lists = [read(f"/proc/{pid}/task/{thread}/children") for thread in threads]
    told = [text for text in lists if text is not None]
    return [int(child) for text in told for child in text.split()] if told else None


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
    lines = (read(path) or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def read(path: str) -> str | None:
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
