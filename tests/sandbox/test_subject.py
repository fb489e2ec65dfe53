"""The order of what the supervisor does in the arenas and what a worker is asked to, on a GPU that
keeps none between processes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.subject import Subject
from sandbox.types import EvalConfig, Task

ASKS = {
    "request": lambda subject: subject.request("vary", 1.0),
    "warm": lambda subject: subject.warm([]),
    "collect": lambda subject: subject.collect([0]),
}


class Worker:
    """Notes what it is asked."""

    pid = 1
    core = None

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def request(self, op: str, **_: Any) -> dict[str, Any]:
        self.seen.append(op)
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
