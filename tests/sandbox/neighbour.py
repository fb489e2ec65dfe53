"""Another lane at work while something breaks on the first one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Evaluation, Task


class Neighbour:
    """Judges one honest candidate over and over, in a thread of its own: its GPU is the thread's
    current one.
    """

    def __init__(
        self,
        opener: Callable[[], LocalEvaluator],
        task: Task,
        honest: Candidate,
        config: EvalConfig,
    ) -> None:
        self._lane = ThreadPoolExecutor(1, "neighbour")
        self._evaluator = self._lane.submit(opener).result()
        self._judge = lambda: self._evaluator.evaluate(task, honest, config)
        self._lane.submit(self._judge).result()  # its null experiment is made in peace

    def during(self, act: Callable[[], Evaluation]) -> tuple[Evaluation, list[Evaluation]]:
        """What `act` returns, and what this lane concluded meanwhile."""
        over = threading.Event()

        def work() -> list[Evaluation]:
            seen = [self._judge()]
            while not over.is_set():
                seen.append(self._judge())
            return seen

        others = self._lane.submit(work)
        try:
            found = act()
        finally:
            over.set()
            others.exception()
        return found, others.result()

    def close(self) -> None:
        self._lane.submit(self._evaluator.close).result()
        self._lane.shutdown()
