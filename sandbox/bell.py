"""A bell in shared memory, for a timed call that is alone in its "go".

Begun through the pipe such a call takes 160 us and more: the worker has to wake, and the GPU has to
come back from our context, in which its inputs were written, while the host goes on unseen. Here
the inputs are in the worker's memory before, but scrambled; the worker stands by, awake and warmed
up, and the ring brings the key. That a call is over is told through the pipe, as ever: who says so
too early has its inputs poisoned next, and the key is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import torch

BELL_BYTES = 64
KEY_BITS = 63
STANDS_BY_S = 0.05
"""For so long the supervisor waits for a worker that stands by."""
LISTENS_S = 100e-6
"""Between two warm-up calls."""
READY, RING, KEY = range(3)
"""What the cells hold: the ticket of a call, twice, the first one written by the worker; and the
key to its inputs."""


class Scrambler:
    """Puts the output of torch's generator (Philox on a GPU) over values; once more under the same
    key, and they are what they were. What it needs is there before it counts.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        """For (count,) int64."""
        self._generator = torch.Generator(device)
        self._pad = torch.empty(count, dtype=torch.int64, device=device)

    def scramble(self, values: torch.Tensor, key: int, out: torch.Tensor) -> None:
        """Both (count,) int64; `out` is overwritten, and must have that size: torch would give it
        another, and what lies behind it is another call's.
        """
        assert values.shape == out.shape == self._pad.shape
        self._pad.random_(-(1 << 63), None, generator=self._generator.manual_seed(key))
        torch.bitwise_xor(values, self._pad, out=out)


class Bell:
    """One end of it, over (BELL_BYTES,) uint8 that both processes map. Tickets grow."""

    def __init__(self, shared: torch.Tensor) -> None:
        self._cells = memoryview(shared.numpy()).cast("Q")
        self._barrier = threading.Lock()

    def stand_by(self, ticket: int, keep_warm: Callable[[], None]) -> int:
        """Worker: the key, once it is rung for; until then do again and again what keeps caches and
        threads awake.
        """
        cells = self._cells
        while cells[RING] != ticket:
            keep_warm()
            cells[READY] = ticket
            end = time.perf_counter() + LISTENS_S
            while cells[RING] != ticket and time.perf_counter() < end:
                pass
            cells[READY] = 0
        with self._barrier:  # what was written before the ring is seen, on ARM too
            return cells[KEY]

    def ring(self, ticket: int, key: int) -> float:
        """Supervisor: when the clock was started, which is before the key is there: who looks for
        that instead of waiting for the ring is not ahead.
        """
        self._wait(0)
        self._wait(ticket)
        start = time.perf_counter()
        self._cells[KEY] = key
        with self._barrier:
            pass
        self._cells[RING] = ticket
        return start

    def forget(self) -> None:
        """Supervisor: no key is there."""
        self._cells[KEY] = 0

    def _wait(self, ticket: int) -> None:
        """Until READY holds it, or STANDS_BY_S have passed."""
        cells, end = self._cells, time.perf_counter() + STANDS_BY_S
        while cells[READY] != ticket and time.perf_counter() < end:
            os.sched_yield()  # the worker may need this core
