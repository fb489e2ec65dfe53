"""A candidate's process tree, seen from outside: threads, other processes, memory, CPU while idle.

Measured, so a candidate cannot forge it; none of it proves anything by itself, since honest code
may keep threads or compilers. The CPU clock is the leader's: other processes are listed by name.
"""

from __future__ import annotations

import time

from sandbox.machine import proc
from sandbox.observation import TreeFacts


class IdleClock:
    """CPU time that a worker uses between its last reply and its next request."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.idle_s = 0.0
        self.spells = 0
        self.cpu_s = 0.0
        self._since: tuple[float, float] | None = None

    def begin(self) -> None:
        """It has replied, and nothing is asked of it."""
        used = proc.cpu_seconds(self.pid)
        self._since = None if used is None else (time.perf_counter(), used)

    def end(self) -> None:
        """It is about to be asked; without `begin` this does nothing."""
        since, self._since = self._since, None
        used = proc.cpu_seconds(self.pid)
        if since is not None and used is not None:
            self.spells += 1
            self.idle_s += time.perf_counter() - since[0]
            self.cpu_s += max(0.0, used - since[1])


def look(pid: int, threads_before: int, idle: IdleClock | None = None) -> TreeFacts:
    """The tree of `pid`, a group leader, as it is now."""
    return TreeFacts(
        threads_before=threads_before,
        threads=proc.count_threads(pid),
        processes=proc.others(pid),
        idle_s=0.0 if idle is None else idle.idle_s,
        idle_spells=0 if idle is None else idle.spells,
        idle_cpu_s=0.0 if idle is None else idle.cpu_s,
        peak_bytes=proc.peak_bytes(pid),
    )
