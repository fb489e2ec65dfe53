"""How often each operator's kernel ran, and how often the reference did instead, and why."""

from __future__ import annotations

from collections import defaultdict

from agent.export.runtime import locks

HIT = "kernel"


class Counts:
    """Of one operator; any thread may add."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self._counter: dict[str, int] = defaultdict(int)

    def add(self, what: str) -> None:
        with self._lock:
            self._counter[what] += 1

    def read(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counter)
