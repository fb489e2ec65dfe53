"""What the trusted worker finds out about a task, without a process around it."""

from __future__ import annotations

import time
from pathlib import Path

from sandbox.worker.reference import ReferenceSession

CALL_S = 0.004


class Queue(ReferenceSession):
    """A device that takes calls at once and works them off when it is waited for."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.made = self.queued = 0
        self.model = self.launch

    def launch(self) -> None:
        self.made += 1
        self.queued += 1

    def synchronize(self) -> None:
        time.sleep(CALL_S * self.queued)
        self.queued = 0


def test_calls_that_only_queue_are_not_counted_by_the_hosts_clock() -> None:
    device = Queue()
    assert CALL_S <= device.latency([]) < 3 * CALL_S
    assert device.made <= 12
