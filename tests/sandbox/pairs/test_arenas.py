"""Arenas that a candidate has once, and those that it has before its turn."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch

from sandbox.checking.pool import Pool
from sandbox.machine import memory
from sandbox.machine.domains import Domain
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.quiet import Quiet
from sandbox.machine.spawn import Zygote
from sandbox.machine.trees import Layout, Leaf
from sandbox.pairs import arenas
from sandbox.pairs.arenas import early
from sandbox.subjects.early import Early
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

LEAF = Leaf((1 << 18,), "float32", (1,), 4)
SIGNATURE = Signature(
    shape=0,
    seed=0,
    init={"tree": {"l": [{"v": 2.0}]}, "tensors": []},
    input_tree={"l": [{"t": 0}]},
    inputs=(LEAF,),
    domains=(Domain.REAL,),
    state=(),
    output_tree={"t": 0},
    outputs=(LEAF,),
    classes=("contiguous",),
    repeatable=True,
    mutates=False,
    moves_state=False,
    aliases=False,
    latency_s=1e-4,
    fill_s=1e-4,
)
WIDE = Leaf((1 << 20,), "float32", (1,), 4)
LARGE = replace(SIGNATURE, inputs=(WIDE,), outputs=(WIDE,))
EARLY = Early(
    {"inputs": 8 << 20, "slots": 64 << 20, "state": 4096}, 0, SIGNATURE, 2, None, 100 << 20, 0
)


@pytest.fixture
def stand(zygote: Zygote) -> Stand:
    return Stand(zygote, Quiet(same_cores=False))


def loaded(stand: Stand, source: str = forward("return y"), **options: Any) -> Subject:
    task = task_of(SCALE)
    return stand.candidate(task, Candidate(task.id, Language.TORCH, source), FAST, **options)


def test_an_arena_that_is_made_for_later_stays_for_another_shape(stand: Stand) -> None:
    subject = loaded(stand)
    subject.room = {"slots": 64 << 20}
    subject.attach("slots", Layout((LEAF,), 2))
    first = subject.arenas["slots"]
    subject.release()
    subject.attach("slots", Layout((LEAF,), 48))
    assert subject.arenas["slots"] is first
    assert subject.set_bytes("slots", 47).numel() == 1 << 20
    subject.attach("slots", Layout((LEAF,), 200))
    assert subject.arenas["slots"] is not first
    subject.room = {}
    subject.release()
    assert not subject.arenas
    stand.retire(subject).result()


def test_with_the_arenas_the_model_does_not_stay(stand: Stand) -> None:
    source = forward("return y") + "    def __del__(self):\n        print('gone', flush=True)\n"
    subject = loaded(stand, source, first=SIGNATURE)
    subject.room = {"slots": 1 << 20}
    subject.attach("slots", Layout((LEAF,), 1))
    stand.open_candidate(subject, SIGNATURE)
    assert "gone" not in subject.worker.stdout()
    subject.release()
    assert "gone" in subject.worker.stdout()
    assert subject.arenas
    stand.retire(subject).result()


def test_a_worker_that_waits_has_arenas_and_later_the_same(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = Subject.request

    def noted(self: Subject, op: str, *arguments: Any, **fields: Any) -> Any:
        asked.append(op)
        return request(self, op, *arguments, **fields)

    monkeypatch.setattr(Subject, "request", noted)
    subject = loaded(stand, early=EARLY, then_stop=True)
    before = dict(subject.arenas)
    assert asked.count("attach") == 3
    assert psutil.Process(subject.worker.pid).status() == psutil.STATUS_STOPPED
    for name, size in EARLY.sizes.items():
        assert before[name].room >= size
    subject.worker.thaw()
    asked.clear()
    subject.attach_all(SIGNATURE, 2, 2)
    assert not asked, "the first shape's arenas are there"
    subject.attach_all(SIGNATURE, 8, 8)
    assert subject.arenas == before
    assert subject.set_bytes("inputs", 7).numel() == LEAF.bytes
    subject.attach_all(SIGNATURE, 32, 32)
    assert subject.arenas["inputs"] is not before["inputs"]
    stand.retire(subject).result()


@pytest.mark.parametrize("error", [memory.OutOfMemoryError, torch.OutOfMemoryError])
def test_without_memory_it_is_loaded_without_arenas(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    allocate = memory.allocate

    def short(size: int, device: str, **options: bool) -> memory.Arena:
        if size == EARLY.sizes["slots"]:
            raise error("none")
        return allocate(size, device, **options)

    monkeypatch.setattr(memory, "allocate", short)
    first = loaded(stand, early=EARLY)
    assert not first.arenas
    first.attach_all(SIGNATURE, 1, 1)
    monkeypatch.undo()
    second = loaded(stand, early=EARLY)
    assert second.arenas, "the first one has nothing of what all may have"
    few = replace(EARLY, least_free=1 << 60, within=1 << 40)
    third = loaded(stand, early=few)
    assert not third.arenas
    for subject in (first, second, third):
        stand.retire(subject).result()


def test_a_candidate_that_ends_meanwhile_leaves_nothing(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    close = memory.HostArena.close

    def noted(self: memory.HostArena, **options: bool) -> None:
        closed.append(self)
        close(self, **options)

    monkeypatch.setattr(memory.HostArena, "close", noted)

    def killed(self: Subject, size: int) -> None:
        os.kill(self.worker.pid, signal.SIGKILL)
        self.request("reserve", 10, count=0)

    monkeypatch.setattr(Subject, "reserve_bytes", killed)
    with pytest.raises(WorkerFailed):
        loaded(stand, early=replace(EARLY, outputs=1))
    stand.settle()
    assert len(closed) == 3
    monkeypatch.undo()
    after = loaded(stand, early=EARLY)
    assert after.arenas
    stand.retire(after).result()


def test_those_that_wait_have_so_much_together(stand: Stand) -> None:
    first, second = (loaded(stand, early=EARLY) for _ in range(2))
    assert first.arenas
    assert not second.arenas
    stand.begin(first, SIGNATURE)
    third = loaded(stand, early=EARLY)
    assert third.arenas
    for subject in (third, first, second):
        stand.retire(subject).result()
    fourth = loaded(stand, early=EARLY)
    assert fourth.arenas, "the third one's are gone"
    stand.retire(fourth).result()


def test_small_ones_are_for_all_of_it_and_larger_ones_for_being_verified() -> None:
    pools = [pool(LARGE, 3), pool(SIGNATURE, 5)]
    plan = Plan(sets=40, warm=4)
    leaf = LARGE.inputs[0].bytes
    for memory_bytes, inputs in ((1 << 34, 44 * leaf), (3 << 30, 3 * leaf), (1 << 24, None)):
        found = early(pools, pools[1], plan, memory_bytes)
        assert (found and found.sizes["inputs"]) == inputs
        if found is not None:
            assert found.outputs == (3 + arenas.MORE_CALLS) * leaf, "a MiB is in small segments"
            assert found.bytes == sum(found.sizes.values()) + found.outputs
            assert found.bytes <= arenas.EACH_SHARE * memory_bytes
            assert (found.first, found.calls) == (SIGNATURE, 5)
            assert found.rung_for is LARGE
            assert found.sizes["scrambled"] == leaf


def pool(signature: Signature, cases: int) -> Pool:
    return Pool(signature, torch.empty(0), (None,) * cases, "float64")  # type: ignore[arg-type]
