"""Shared memory of ended workers, kept for the next ones.

The kernel hands pages out one by one, zeroed, at their first touch: 128 MiB took 150 ms and more to
write for the first time, and 13 ms from then on. A search gives every candidate new arenas.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
from pathlib import Path

MAPPED_BYTES = 32 << 20
"""Blocks of a worker's own memory above this are mapped afresh each time, and never its heap's; no
more than glibc would take by itself."""
LEAST_BYTES = 1 << 20
"""Smaller ones are cheap, and would be many."""
MOST_TIMES = 2
"""Memory more than so many times as large as what is asked for waits for something larger."""
MOST_ENTRIES = 64
"""Each is an open file."""
KEPT_SHARE, KEPT_BYTES = 1 / 32, 1 << 30
"""Of the memory that this process may use, and at most: kept for each side."""


class Pages:
    """An anonymous file in memory, which no other process could open by a name, and our mapping."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        # A worker that shrank the file would end the supervisor with SIGBUS at its next read.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.map = mmap.mmap(self.fd, size)

    def touch(self) -> None:
        """Have all of its pages now, in order, instead of one by one as they are used."""
        if self.size:
            os.posix_fallocate(self.fd, 0, self.size)

    def wipe(self) -> None:
        """Zeros, as in fresh pages: what an ended worker wrote is nobody's business. Pages that
        were never touched stay away.
        """
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        end = 0
        while True:
            try:
                first = os.lseek(self.fd, end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            end = os.lseek(self.fd, first, os.SEEK_HOLE)
            # By memset: torch would wake threads of ours, which then spin.
            ctypes.memset(start + first, 0, end - first)

    def close(self) -> None:
        """The mapping goes with its last view."""
        os.close(self.fd)


class Kept:
    """Pages that nobody uses; safe to use from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._free: list[Pages] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Pages:
        """At least `size` bytes of zeros."""
        with self._lock:
            fitting = [p for p in self._free if size <= p.size <= MOST_TIMES * size]
            if fitting:
                best = min(fitting, key=lambda pages: pages.size)
                self._free.remove(best)
                return best
        return Pages(_rounded(size))

    def give(self, pages: Pages) -> None:
        """Of a worker that has ended with all its processes: no process but this one maps them."""
        if not LEAST_BYTES <= pages.size <= self._limit:
            pages.close()
            return
        pages.wipe()
        with self._lock:
            self._free.append(pages)
            while sum(p.size for p in self._free) > self._limit or len(self._free) > MOST_ENTRIES:
                self._free.pop(0).close()


def _rounded(size: int) -> int:
    """Up to an eighth more, so that tasks of nearly one size have pages in common."""
    step = max(LEAST_BYTES, 1 << max(0, size.bit_length() - 4))
    return size if size < LEAST_BYTES else -(-size // step) * step


def usable_bytes() -> int:
    """Of this machine's memory, or of the container's."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(most, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such limit, or "max"
        return most


def _one_node() -> bool:
    """Whether all memory is equally far."""
    try:
        return Path("/sys/devices/system/node/online").read_text().strip() == "0"
    except OSError:
        return False


_limit = min(int(KEPT_SHARE * usable_bytes()), KEPT_BYTES)
trusted = Kept(_limit)
"""Of references' workers."""
untrusted = Kept(_limit if _one_node() else 0)
"""Of candidates': whoever maps a file may say on which node its pages are to be, which outlasts the
process, so that a candidate could slow down another one, or the reference."""
