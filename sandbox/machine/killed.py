"""Processes that were ended from outside: that others took all memory says nothing of what they
were doing. Compilers tell it in words; the system counts what it killed.
"""

from __future__ import annotations

import re
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
KILLED = (
    "Killed signal",  # gcc's driver
    "died due to signal 9",  # nvcc
    "Cannot allocate memory",
    "out of memory allocating",
    "Resource temporarily unavailable",
    "memory exhausted",  # ld, and gcc
    "std::bad_alloc",
    "can't start new thread",
    "Too many open files",
)


def was_killed(words: str) -> bool:
    """Whether such a refusal may not come again; it is not to be remembered."""
    return any(sign in words for sign in KILLED)


def oom_kills() -> int:
    """Processes that the system, or a container's limit, has killed for want of memory since it was
    started; 0 where it does not tell (before Linux 4.13).
    """
    try:
        found = re.search(r"^oom_kill (\d+)$", VMSTAT.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
