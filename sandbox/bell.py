"""A bell in shared memory, for a timed call that is alone in its "go".

Through the pipe such a call takes 160 us and more: both ends have to wake, and the GPU has to come
back from our context, in which its inputs were written, while the host goes on unseen. Here the
worker stands by, awake and warmed up; inputs come through host memory, in its own context; and the
supervisor sees within a microsecond that the call has ended. A worker that says so too early has
gained nothing: its inputs are poisoned next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

HEADER_BYTES = 64
STANDS_BY_S = 0.05
"""For so long the supervisor waits awake; then the pipe has to tell."""
LISTENS_S = 100e-6
"""Between two warm-up calls; writing a set and ringing takes some 10 us."""
PATIENCE_S = 10.0
"""A worker's, so that it does not spin for ever."""
READY, RING, DONE = range(3)
"""What the cells hold: the ticket of a call. All but RING are written by the worker."""


class Bell:
    """One end of it, over (HEADER_BYTES + bytes of one input set,) uint8 that both processes map.
    Tickets grow.
    """

    def __init__(self, shared: torch.Tensor) -> None:
        self.given = shared[HEADER_BYTES:]
        """(bytes of one set,) uint8: the call's inputs."""
        self._cells = memoryview(shared[:HEADER_BYTES].numpy()).cast("Q")
        self._writable = memoryview(self.given.numpy())

    def stand_by(self, ticket: int, keep_warm: Callable[[], None]) -> None:
        """Worker: wait for the ring, and do again and again what keeps caches and threads awake."""
        cells, patience = self._cells, time.perf_counter() + PATIENCE_S
        while cells[RING] != ticket and time.perf_counter() < patience:
            keep_warm()
            cells[READY] = ticket
            end = time.perf_counter() + LISTENS_S
            while cells[RING] != ticket and time.perf_counter() < end:
                pass
            cells[READY] = 0

    def end(self, ticket: int) -> None:
        """Worker: the call is over."""
        self._cells[DONE] = ticket

    def ring(self, ticket: int, values: bytes) -> tuple[float, bool]:
        """Supervisor: (when the clock was started, whether the end was seen already).

        The clock runs while inputs are written: who looks for them instead of waiting for the ring
        is not ahead of it.
        """
        self._wait(READY, 0)
        self._wait(READY, ticket)
        start = time.perf_counter()
        self._writable[:] = values
        self._cells[RING] = ticket
        return start, self._wait(DONE, ticket)

    def _wait(self, cell: int, ticket: int) -> bool:
        """Whether it came to hold the ticket."""
        cells, end = self._cells, time.perf_counter() + STANDS_BY_S
        while cells[cell] != ticket:
            if time.perf_counter() > end:
                return False
            os.sched_yield()  # the worker may need this core
        return True
