"""Workers kept ready: forked, walled, their device set up, and waiting for something to load.

They have run no code of a task or a candidate, so that each can serve either side. Where one is
ready, a start costs what the load costs; the next one is made in the background. A candidate's
serves once. A reference's, whose code is the user's own, may come back when its task is over: for
null experiments, baselines and searches, never for a figure of a candidate that is reported.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from sandbox.cleanup import on_failure
from sandbox.errors import SandboxFault
from sandbox.machine import queues
from sandbox.machine.handle import Worker, WorkerFailed
from sandbox.machine.queues import SEARCHED
from sandbox.machine.quiet import Quiet
from sandbox.machine.spawn import Zygote
from sandbox.types import EvalConfig

SETUP_TIMEOUT_S = 120.0
PROFILED = "profiled"
"""The role of a candidate whose worker has let the profiler begin, which takes seconds (CUPTI), and
which is then not the candidate's to spend."""


def side_of(role: str) -> str:
    """What a worker of this role is on: the reference's side or the candidate's."""
    return "candidate" if role in (PROFILED, SEARCHED) else role


class Ready:
    """Keeps up to `count` workers of each role that was asked for; safe for several threads."""

    def __init__(self, zygote: Zygote, quiet: Quiet, count: int, used: int = 0) -> None:
        """`count` of each role that is asked for, and `used` ones that may come back, are bounded
        by the device's memory: a CUDA context takes about 0.5 GB.
        """
        self._zygote, self._quiet, self._count, self._most_used = zygote, quiet, count, used
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[Worker]] = {}
        self._used: deque[Worker] = deque()
        """Of references, whose task is over."""
        self._makers: dict[str, ThreadPoolExecutor] = {}
        """By role, one thread each: the profiler takes four seconds to begin."""
        self._refilling: set[str] = set()
        self._making: set[Worker] = set()
        self._closed = False

    def take_used(self) -> Worker | None:
        """One that has served a reference before and lives."""
        with self._changed:
            return self._living(self._used)

    def give_back(self, worker: Worker) -> bool:
        """A reference's worker whose task is over; whether it is kept."""
        with self._changed:
            kept = not self._closed and len(self._used) < self._most_used
            if kept:
                self._used.append(worker)
        return kept

    def end_used(self) -> None:
        """End those that have served, for the memory they hold."""
        while (worker := self.take_used()) is not None:
            worker.close()

    @property
    def keeps_used(self) -> bool:
        return self._most_used > 0

    def take(self, role: str) -> Worker | None:
        """One that lives; None where none is ready. For one in which the profiler is about to begin
        this waits: another would need as long.
        """
        with self._changed:
            found = self._pop(role)
            while found is None and role == PROFILED and role in self._refilling:
                self._changed.wait()
                found = self._pop(role)
        self.expect(role)
        return found

    def expect(self, role: str) -> None:
        """Make some in the background, where any are kept: one will be asked for."""
        with self._changed:
            if not self._count or self._closed or role in self._refilling:
                return
            self._refilling.add(role)
            if role not in self._makers:
                self._makers[role] = ThreadPoolExecutor(1, "ready")
            self._makers[role].submit(self._refill, role)

    def close(self) -> None:
        """End those that wait or are being made, and make no more."""
        with self._changed:
            self._closed = True
            making = list(self._making)
        for worker in making:
            worker.close()
        for maker in self._makers.values():
            maker.shutdown()
        for waiting in (*self._waiting.values(), self._used):
            for worker in waiting:
                worker.close()
            waiting.clear()

    def _pop(self, role: str) -> Worker | None:
        return self._living(self._waiting.setdefault(role, deque()))

    def _living(self, waiting: deque[Worker]) -> Worker | None:
        while waiting:
            worker = waiting.popleft()
            if worker.living:
                return worker
            worker.close()
        return None

    def _refill(self, role: str) -> None:
        try:
            # Where that fails, whoever asks next starts its own, and hears why.
            with suppress(SandboxFault, WorkerFailed, OSError):
                while self._lacks(role):
                    worker = self._make(role)
                    with self._changed:
                        self._waiting[role].append(worker)
                        self._changed.notify_all()
        finally:
            self._end_refill(role)  # whoever waits for it would wait for ever

    def _lacks(self, role: str) -> bool:
        count = 1 if role == PROFILED else self._count
        with self._changed:
            lacks = not self._closed and len(self._waiting.setdefault(role, deque())) < count
            if not lacks:
                self._end_refill(role)  # at once: a worker taken from now on needs another refill
            return lacks

    def _end_refill(self, role: str) -> None:
        with self._changed:
            self._refilling.discard(role)
            self._changed.notify_all()

    def _make(self, role: str) -> Worker:
        worker = self._zygote.spawn(
            side_of(role),
            memory_limit_bytes=EvalConfig().memory_limit_bytes,
            environment=queues.environment(role),
            quiet=self._quiet,
        )
        with on_failure(worker.close), self._noted(worker), self._quiet.beside(worker):
            worker.request(
                "setup",
                stage="load",
                timeout_s=SETUP_TIMEOUT_S,
                device=self._zygote.device,
                dtype="float32",
                threads=self._zygote.threads,
                tf32=None,
            )
            if role == PROFILED:
                worker.request("arm", stage="load", timeout_s=SETUP_TIMEOUT_S)
        return worker

    @contextmanager
    def _noted(self, worker: Worker) -> Iterator[None]:
        """`close` ends it, rather than wait for it."""
        with self._changed:
            self._making.add(worker)
        try:
            yield
        finally:
            with self._changed:
                self._making.discard(worker)
