"""The order of what the supervisor does in the arenas and what a worker is asked to, on a GPU that
keeps none between processes.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.subjects.subject import AWAKE_S, Subject
from sandbox.types import EvalConfig, Task

ASKS = {
    "request": lambda subject: subject.request("vary", 1.0),
    "warm": lambda subject: subject.warm([]),
    "collect": lambda subject: subject.collect([0]),
}


class Worker:
    """Notes what it is asked."""

    pid = 1
    core: object = None
    trusted = False
    lasts_s = 0.0

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def request(self, op: str, **_: Any) -> dict[str, Any]:
        self.seen.append(op)
        return {}

    def send(self, op: str, **_: Any) -> None:
        self.begun_s = time.perf_counter()

    def reply(self, *, asleep_s: float, awake_s: float, **_: Any) -> dict[str, Any]:
        self.asleep_s, self.awake_s = asleep_s, awake_s
        while time.perf_counter() - self.begun_s < self.lasts_s:
            pass
        return {}


def subject_on(device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Subject, list[str]]:
    seen: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: seen.append("ours is done"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    worker: Any = Worker(seen)
    return Subject(worker, Task("t", "", device), EvalConfig(), "verify"), seen


@pytest.mark.parametrize("ask", ASKS)
def test_what_we_do_in_arenas_is_done_before_a_worker_is_asked(monkeypatch, ask) -> None:
    subject, seen = subject_on("cuda", monkeypatch)
    subject.arenas["slots"] = SimpleNamespace()  # type: ignore[assignment]
    ASKS[ask](subject)
    assert seen == ["ours is done", "vary" if ask == "request" else ask]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_arenas_or_a_gpu_nothing_is_waited_for(monkeypatch, device) -> None:
    subject, seen = subject_on(device, monkeypatch)
    if device == "cpu":
        subject.arenas["slots"] = SimpleNamespace()  # type: ignore[assignment]
    subject.warm([])
    assert seen == ["warm"]


def test_we_are_awake_at_the_end_of_a_long_batch_too(monkeypatch) -> None:
    subject, _ = subject_on("cpu", monkeypatch)
    worker: Any = subject.worker
    worker.core, worker.lasts_s = object(), 0.2
    for _ in range(2):
        subject.go([0, 1, 2, 3])
        assert worker.asleep_s == 0
    subject.go([0, 1])
    assert 0 < 0.1 - AWAKE_S < worker.asleep_s < 0.1 < worker.asleep_s + worker.awake_s
    worker.lasts_s = 0.0
    subject.go([0])
    assert worker.asleep_s == 0, "how long a batch takes says nothing of a call alone"
    subject.go([0, 1])
    assert worker.asleep_s > 0, "nor that of a batch"
    subject.go([0, 1])
    assert worker.asleep_s == 0, "one slow batch says nothing of the next"


def test_who_has_no_core_to_itself_sleeps_all_the_while(monkeypatch) -> None:
    subject, _ = subject_on("cpu", monkeypatch)
    subject.go([0, 1])
    assert subject.worker.awake_s == 0  # type: ignore[attr-defined]
