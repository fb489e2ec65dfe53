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

LEAST_BYTES = 1 << 20
"""Smaller ones are cheap, and would be many."""
MOST_TIMES = 2
"""Memory more than so many times as large as what is asked for waits for something larger."""
KEPT_SHARE = 1 / 16
"""Of this machine's memory, kept in all."""


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

    def wipe(self) -> None:
        """Zeros, as in fresh pages: what an ended worker wrote is nobody's business."""
        # By memset: torch would wake threads of ours, which then spin.
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self.map)), 0, self.size)

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
            while sum(p.size for p in self._free) > self._limit:
                self._free.pop(0).close()


def _rounded(size: int) -> int:
    """Up to an eighth more, so that tasks of nearly one size have pages in common."""
    step = max(LEAST_BYTES, 1 << max(0, size.bit_length() - 4))
    return size if size < LEAST_BYTES else -(-size // step) * step


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


kept = Kept(int(KEPT_SHARE * _machine_bytes()))
