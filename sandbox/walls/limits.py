"""Resource limits of one walled process tree (setrlimit(2)).

Memory is not among them unless asked for: CUDA reserves far more address space than it uses.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

OPEN_FILES = 4096
"""Enough for a C++ build and torch's shared memory; far below a leak that hurts the host."""


def limit(kind: int, value: int, hard: int | None = None) -> None:
    """Lower one limit for good; never raises it above what we have."""
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        value, hard = min(value, ceiling), min(hard if hard is not None else value, ceiling)
    resource.setrlimit(kind, (value, value if hard is None else hard))


def limit_resources(cpu_seconds: int, file_bytes: int, address_space_bytes: int | None) -> None:
    """CPU seconds per process (SIGXCPU, a second later SIGKILL), file size, open files, no core."""
    limit(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)
    limit(resource.RLIMIT_FSIZE, file_bytes)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    limit(resource.RLIMIT_CORE, 0)
    if address_space_bytes is not None:
        limit(resource.RLIMIT_AS, address_space_bytes)


def limit_processes(processes: int, *, shared_uid: bool) -> None:
    """At most this many processes and threads more; the kernel counts by uid and user namespace.

    `shared_uid` where the supervisor runs under the same uid in the same namespace: what it runs
    now is added. Later processes of that user then eat into the allowance.
    """
    limit(resource.RLIMIT_NPROC, processes + (_threads_of(os.getuid()) if shared_uid else 0))


def _threads_of(uid: int) -> int:
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid:
                    total += len(os.listdir(entry / "task"))
            except OSError:
                continue  # it ended meanwhile
    return total
