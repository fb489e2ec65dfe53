"""Arenas that a candidate has once, and those that it has before its turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sandbox import arenas, memory
from sandbox.arenas import Early, early
from sandbox.plan import Plan
from sandbox.pool import Pool
from sandbox.quiet import Quiet
from sandbox.spawn import Zygote
from sandbox.stand import Stand
from sandbox.subject import BLANK, Signature, Subject
from sandbox.trees import Layout, Leaf
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

LEAF = Leaf((1 << 18,), "float32", (1,), 4)
SIGNATURE = Signature(
    shape=0,
    seed=0,
    init={"u": []},
    input_tree={"l": [{"t": 0}]},
    inputs=(LEAF,),
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
EARLY = Early({"inputs": 8 << 20, "slots": 64 << 20, "state": 4096}, 0, SIGNATURE, 2, 100 << 20)


@pytest.fixture
def stand(zygote: Zygote) -> Stand:
    return Stand(zygote, Quiet(same_cores=False))


def loaded(stand: Stand, **options: object) -> Subject:
    task = replace(task_of(SCALE))
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    return stand.candidate(task, candidate, FAST, **options)  # type: ignore[arg-type]


def test_an_arena_that_is_made_for_later_stays_for_another_shape(stand: Stand) -> None:
    subject = loaded(stand)
    subject.room = {"slots": 64 << 20}
    subject.attach("slots", Layout((LEAF,), 2))
    first = subject.arenas["slots"]
    subject.release()
    subject.attach("slots", Layout((LEAF,), 48))
    assert subject.arenas["slots"] is first
    assert subject.set_bytes("slots", 47).numel() == 1 << 20
    subject.attach("slots", Layout((LEAF,), 80))
    assert subject.arenas["slots"] is not first
    for_now(subject)
    stand.retire(subject).result()


def for_now(subject: Subject) -> None:
    subject.room = {}
    subject.attach("slots", Layout((LEAF,), 2))
    subject.release()
    assert not subject.arenas


def test_a_worker_that_waits_has_blank_arenas_and_later_the_same(
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
    for name, size in EARLY.sizes.items():
        assert before[name].fit(size)
        assert bool((before[name].bytes == BLANK).all())
        before[name].fit(subject.layouts[name].bytes)
    subject.worker.thaw()
    asked.clear()
    subject.attach_all(SIGNATURE, 2, 2)
    assert not asked, "the first shape's arenas are there"
    subject.attach_all(SIGNATURE, 8, 8)
    assert subject.arenas == before
    assert subject.set_bytes("inputs", 7).numel() == LEAF.bytes
    subject.attach_all(SIGNATURE, 9, 9)
    assert subject.arenas["inputs"] is not before["inputs"]
    stand.retire(subject).result()


def test_without_memory_it_is_loaded_without_arenas(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = memory.allocate

    def short(size: int, device: str, **options: bool) -> memory.Arena:
        if size == EARLY.sizes["slots"]:
            raise memory.OutOfMemoryError("none")
        return allocate(size, device, **options)

    monkeypatch.setattr(memory, "allocate", short)
    subject = loaded(stand, early=EARLY)
    assert not subject.arenas
    subject.attach_all(SIGNATURE, 1, 1)
    stand.retire(subject).result()


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
    pools = [pool(SIGNATURE, 3), pool(SIGNATURE, 5)]
    plan = Plan(sets=40, warm=4)
    whole, verified = 44 * LEAF.bytes, 5 * LEAF.bytes
    for memory_bytes, inputs in ((1 << 33, whole), (1 << 30, verified), (1 << 24, None)):
        found = early(pools, pools[1], plan, memory_bytes)
        assert (found and found.sizes["inputs"]) == inputs
        if found is not None:
            assert sum(found.sizes.values()) <= arenas.EACH_SHARE * memory_bytes
            assert found.calls == 5


def pool(signature: Signature, cases: int) -> Pool:
    return Pool(signature, torch.empty(0), (None,) * cases, "float64")  # type: ignore[arg-type]
