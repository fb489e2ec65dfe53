"""Whether a GPU has anything left to do for another process, seen from this one.

Contexts take turns: while another one has work, an operator of ours waits for the end of its time
slice (2.4 ms on an H200). On an idle GPU it takes 15 us, and 160 to 260 us where another context
had the last turn. So what a worker left running behind its "done" shows by our own clock, whatever
became of the synchronisation in its process.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

import torch

QUICK_S, QUICK_TIMES = 150e-6, 3.0
"""A probe that was over as soon, or within so many times the quickest that was ever seen here, met
nobody: what it waited for would have taken longer."""
LONGEST_S = 0.1
"""Where the GPU is never idle the reference is slower than alone, which voids the round."""
FREEZE_S = 1e-3
"""What stopping a worker's processes may take without counting: it takes longer for more of them,
and a candidate chooses how many it has."""


class Probe:
    """A few small operations on every engine that could be busy: on the processors, and a copy in
    each direction.
    """

    quickest_s = math.inf

    def __init__(self) -> None:
        self._cells = torch.zeros(2, 1 << 14, dtype=torch.int64, device="cuda")
        self._host = torch.zeros(1 << 14, dtype=torch.int64, pin_memory=True)

    def ask(self) -> None:
        """Queue them, and do not wait."""
        left, right = self._cells
        left.add_(1)
        right.copy_(left)
        self._host.copy_(right, non_blocking=True)
        left.copy_(self._host, non_blocking=True)

    def wait(self) -> None:
        """Until what was asked is over, and once more until that is quick."""
        stream = torch.cuda.current_stream()
        end = time.perf_counter() + LONGEST_S
        stream.synchronize()
        while (start := time.perf_counter()) < end:
            self.ask()
            stream.synchronize()
            seconds = time.perf_counter() - start
            Probe.quickest_s = min(Probe.quickest_s, seconds)
            if seconds < max(QUICK_S, QUICK_TIMES * Probe.quickest_s):
                return

    def until_idle(self) -> None:
        """Wait for what another process's GPU work was only said to have done."""
        self.ask()
        self.wait()


def probe_of(device: str) -> Probe | None:
    """None on the CPU, where processes are stopped instead."""
    return Probe() if device == "cuda" else None


class Afterwards:
    """The clock behind one batch's "done", for what a GPU may still do unpaid; it stands still
    without a probe. What is done in it is the same for both sides of a pair.
    """

    def __init__(self, probe: Probe | None) -> None:
        self.left_s = 0.0
        self._probe = probe
        self._start = time.perf_counter()
        if probe is not None:
            probe.ask()

    def settle(self, freeze_s: float) -> None:
        """Wait until the GPU is idle; meanwhile, for so long, the worker was being stopped."""
        if self._probe is not None:
            self._probe.wait()
            self.left_s = time.perf_counter() - self._start - min(freeze_s, FREEZE_S)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """A block of GPU work of ours, which takes longer beside anyone else's."""
        start = time.perf_counter()
        yield
        if self._probe is not None:
            self.left_s += time.perf_counter() - start

    def end(self) -> None:
        """Outputs were handed over: wait until that is true."""
        if self._probe is not None:
            with self.timed():
                self._probe.until_idle()
