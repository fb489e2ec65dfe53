"""Arenas that a candidate has once, and those that it has before its turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox import memory
from sandbox.quiet import Quiet
from sandbox.spawn import Zygote
from sandbox.stand import Stand
from sandbox.subject import BLANK, NONE, Subject
from sandbox.trees import Layout, Leaf
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

LEAF = Leaf((1 << 18,), "float32", (1,), 4)
ROOM = {"inputs": 8 << 20, "slots": 64 << 20, "state": 4096}


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
    subject.room = NONE
    subject.attach("slots", Layout((LEAF,), 2))
    subject.release()
    assert not subject.arenas


def test_a_worker_that_waits_has_blank_arenas_and_later_the_same(stand: Stand) -> None:
    subject = loaded(stand, room=ROOM, then_stop=True)
    early = dict(subject.arenas)
    assert {name: arena.bytes.numel() for name, arena in early.items()} == ROOM
    assert all(bool((arena.bytes == BLANK).all()) for arena in early.values())
    subject.worker.thaw()
    subject.attach("slots", Layout((LEAF,), 3))
    subject.attach("inputs", Layout((LEAF,), 3), {"l": [{"t": 0}]})
    subject.attach("state", Layout((), 1))
    assert {**subject.arenas} == early
    subject.set_bytes("inputs", 0).fill_(1)
    stand.retire(subject).result()


def test_without_memory_it_is_loaded_without_arenas(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = memory.allocate

    def short(size: int, device: str, **options: bool) -> memory.Arena:
        if size == ROOM["slots"]:
            raise memory.OutOfMemoryError("none")
        return allocate(size, device, **options)

    monkeypatch.setattr(memory, "allocate", short)
    subject = loaded(stand, room=ROOM)
    assert not subject.arenas
    subject.attach("inputs", Layout((LEAF,), 1), {"l": [{"t": 0}]})
    stand.retire(subject).result()
