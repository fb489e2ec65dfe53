"""Workers kept ready: forked, walled, their device set up, and waiting for something to load.

They have run no code of a task or a candidate, so that each can serve either side, once. Where one
is ready, a start costs what the load costs; the next one is made in the background.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from sandbox.cleanup import on_failure
from sandbox.errors import SandboxFault
from sandbox.handle import Worker, WorkerFailed
from sandbox.quiet import Quiet
from sandbox.spawn import Zygote
from sandbox.types import EvalConfig

SETUP_TIMEOUT_S = 120.0
PROFILED = "profiled"
"""The role of a candidate whose worker has let the profiler begin, which takes seconds (CUPTI), and
which is then not the candidate's to spend."""


def side_of(role: str) -> str:
    """What a worker of this role is on: the reference's side or the candidate's."""
    return "candidate" if role == PROFILED else role


class Ready:
    """Keeps up to `count` workers of each role that was asked for; safe for several threads."""

    def __init__(self, zygote: Zygote, quiet: Quiet, count: int) -> None:
        """`count` is bounded by the device's memory: a CUDA context takes about 0.5 GB."""
        self._zygote, self._quiet, self._count = zygote, quiet, count
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Worker]] = {}
        self._maker = ThreadPoolExecutor(1, "ready")
        self._closed = False

    def take(self, role: str, config: EvalConfig) -> Worker | None:
        """One that lives, under this config's limits; None where none is ready."""
        if not self._count:
            return None
        found = None
        with self._lock:
            waiting = self._waiting.setdefault(role, deque())
            while waiting and found is None:
                worker = waiting.popleft()
                if worker.living:
                    found = worker
                else:
                    worker.close()
            if not self._closed:
                self._maker.submit(self._refill, role)
        if found is not None:
            found.limit(config.memory_limit_bytes, config.log_limit_bytes)
        return found

    def close(self) -> None:
        """End those that wait, and make no more."""
        with self._lock:
            self._closed = True
        self._maker.shutdown(cancel_futures=True)
        for waiting in self._waiting.values():
            for worker in waiting:
                worker.close()
            waiting.clear()

    def _refill(self, role: str) -> None:
        count = min(1, self._count) if role == PROFILED else self._count
        while not self._closed and len(self._waiting[role]) < count:
            try:
                worker = self._make(role)
            except (SandboxFault, WorkerFailed):
                return  # whoever asks next starts its own, and hears why that fails
            with self._lock:
                self._waiting[role].append(worker)

    def _make(self, role: str) -> Worker:
        with self._quiet.noise():
            worker = self._zygote.spawn(
                side_of(role), memory_limit_bytes=EvalConfig().memory_limit_bytes
            )
        with on_failure(worker.close), self._quiet.beside(worker):
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
