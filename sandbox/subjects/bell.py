"""A bell in shared memory, for a timed call that is alone in its "go".

Begun through the pipe such a call takes 160 us and more: the worker has to wake, and the GPU has to
come back from our context, in which its inputs were written, while the host goes on unseen. Here
the worker stands by, awake and warmed up. Small inputs come with the ring, through host memory;
larger ones are on the device before, but scrambled (sandbox/subjects/scrambling.py), and the ring
brings the key. In the bell the worker also says that a call is over, and answers through the pipe
afterwards: that took half of 95 us, and 7 us more from behind a candidate's walls than from a
reference (H100), which left kernels of 9 us lower bounds of 0.45x. Who says so too early has its
inputs poisoned next, and what they were made of is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import torch

HEADER_BYTES = 64
CARRIED_BYTES = 128 << 10
"""Of one input set, up to which it comes with the ring: one copy makes it out. Scrambled, a merged
call of 10 us passed once in three times (H200)."""
STANDS_BY_S = 0.05
"""For so long the supervisor waits for a worker that stands by."""
LISTENS_S, WRITTEN_PER_S = 100e-6, 2e9
"""Seconds between two warm-up calls, and bytes that the supervisor writes per second at least: a
worker that is busy warming up would begin late."""
READY, RING, KEY, OVER = range(4)
"""What the cells hold: the ticket of a call that the worker stands by for, that is rung for, the
key to its inputs, and the ticket of the last call that is over, written by the worker."""
GONE = 0xFF


def carried(input_bytes: int) -> int:
    """Of so many, those that come with the ring: all or none."""
    return input_bytes if input_bytes <= CARRIED_BYTES else 0


class Bell:
    """One end of it, over (HEADER_BYTES + carried bytes,) uint8 that both processes map. Tickets
    grow.
    """

    def __init__(self, shared: torch.Tensor) -> None:
        self.given = shared[HEADER_BYTES:]
        """(carried bytes,) uint8: the call's inputs, if they come with the ring."""
        self._cells = memoryview(shared[:HEADER_BYTES].numpy()).cast("Q")
        self._writable = memoryview(self.given.numpy())
        self._gone = bytes([GONE]) * len(self._writable)
        self._writable[:] = self._gone  # its pages are there when it counts
        self._barrier = threading.Lock()
        self._listens_s = LISTENS_S + len(self._writable) / WRITTEN_PER_S

    def stand_by(self, ticket: int, keep_warm: Callable[[], None]) -> int:
        """Worker: the key, once it is rung for; until then do again and again what keeps caches and
        threads awake.
        """
        cells = self._cells
        while cells[RING] != ticket:
            keep_warm()
            cells[READY] = ticket
            end = time.perf_counter() + self._listens_s
            while cells[RING] != ticket and time.perf_counter() < end:
                pass
            cells[READY] = 0
        with self._barrier:  # what was written before the ring is seen, on ARM too
            return cells[KEY]

    def tell(self, ticket: int) -> None:
        """Worker: the call is over."""
        with self._barrier:
            pass
        self._cells[OVER] = ticket

    def over(self, ticket: int) -> bool:
        """Supervisor: whether the worker has said so."""
        return self._cells[OVER] == ticket

    def ring(self, ticket: int, key: int = 0, values: bytes = b"") -> float:
        """Supervisor: when the clock was started, which is before the key or the carried values are
        there: who looks for them instead of waiting for the ring is not ahead.
        """
        self._wait(0)
        self._wait(ticket)
        start = time.perf_counter()
        self._cells[KEY] = key
        self._writable[:] = values
        with self._barrier:
            pass
        self._cells[RING] = ticket
        return start

    def forget(self) -> None:
        """Supervisor: neither key nor values are there any more."""
        self._cells[KEY] = 0
        self._writable[:] = self._gone  # no operator: its threads would stay awake

    def _wait(self, ticket: int) -> None:
        """Until READY holds it, or STANDS_BY_S have passed."""
        cells, end = self._cells, time.perf_counter() + STANDS_BY_S
        while cells[READY] != ticket and time.perf_counter() < end:
            os.sched_yield()  # the worker may need this core
