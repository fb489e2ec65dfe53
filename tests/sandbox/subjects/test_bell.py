"""Lone calls that begin by a bell in shared memory, between two real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sandbox.machine.memory import Arena, HostArena
from sandbox.pairs.pair import ProcessPair
from sandbox.subjects.bell import CARRIED_BYTES, HEADER_BYTES, STANDS_BY_S, Bell
from sandbox.subjects.plan import Plan
from sandbox.subjects.scrambling import Scrambler
from sandbox.subjects.subject import Subject
from sandbox.types import Status
from tests.sandbox.conftest import SCALE, Evaluate, forward

SECRET = 0x7EDC_BA98_7654_3210
VALUES = bytes(range(32))


@pytest.fixture
def bells() -> Iterator[tuple[Bell, Bell]]:
    arena = HostArena(HEADER_BYTES + len(VALUES))
    yield Bell(arena.bytes), Bell(arena.bytes)
    arena.close()


def answer(bell: Bell, ticket: int, late_s: float = 0.0) -> int:
    """A child process that waits for one ring, and ends with 0 if it got key and values then, and
    with 1 if it got them before it could warm up.
    """
    child = os.fork()
    if child:
        return child
    warmed: list[None] = []
    time.sleep(late_s)
    key = bell.stand_by(ticket, lambda: warmed.append(None))
    found = key == SECRET and bytes(bell.given.numpy()) == VALUES
    os._exit(2 if not found else 0 if warmed else 1)


def test_a_worker_that_is_rung_has_its_key_and_values(
    bells: tuple[Bell, Bell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sandbox.subjects.bell.STANDS_BY_S", 30.0
    )  # a loaded machine may start it late
    supervisor, worker = bells
    for ticket in (1, 2):
        child = answer(worker, ticket)
        before = time.perf_counter()
        start = supervisor.ring(ticket, SECRET, VALUES)
        assert before <= start <= time.perf_counter()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        supervisor.forget()
        assert VALUES not in bytes(worker.given.numpy())


def test_a_worker_that_stands_by_late_is_rung_all_the_same(bells: tuple[Bell, Bell]) -> None:
    supervisor, worker = bells
    child = answer(worker, 7, late_s=4 * STANDS_BY_S)
    start = time.perf_counter()
    supervisor.ring(7, SECRET, VALUES)
    assert time.perf_counter() - start < 4 * STANDS_BY_S
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1  # the ring was there before


def test_a_worker_that_never_stands_by_does_not_hold_the_supervisor(
    bells: tuple[Bell, Bell],
) -> None:
    supervisor, _ = bells
    start = time.perf_counter()
    supervisor.ring(1, SECRET, VALUES)
    assert time.perf_counter() - start < 10 * STANDS_BY_S


def test_a_call_is_over_once_the_worker_says_so(bells: tuple[Bell, Bell]) -> None:
    supervisor, worker = bells
    worker.tell(3)
    assert supervisor.over(3)
    assert not supervisor.over(4)  # of the call before


def test_scrambled_values_say_nothing_without_their_key() -> None:
    values = torch.ones(1 << 16, dtype=torch.float64).view(torch.int64)
    hidden, found = torch.empty_like(values), torch.empty_like(values)
    Scrambler(len(values), values.device).scramble(values, SECRET, hidden)
    bits = (hidden[:, None] >> torch.arange(64)) & 1
    assert (bits.float().mean(0) - 0.5).abs().max() < 0.01  # every bit of it, signs included
    assert hidden.unique().numel() == hidden.numel()
    other = Scrambler(len(values), values.device)
    other.scramble(hidden, SECRET - 1, found)
    assert (found == values).sum() == 0
    other.scramble(hidden, SECRET, found)
    assert torch.equal(found, values)


def test_nothing_is_scrambled_beyond_its_place() -> None:
    values, memory = torch.arange(8), torch.zeros(16, dtype=torch.int64)
    with pytest.raises(AssertionError):
        Scrambler(8, values.device).scramble(values, SECRET, memory[:4])
    assert memory.sum() == 0


PAGE = 1 << 16


def in_pages(size: int, kept: object, *, fresh: bool = False) -> Arena:
    """An arena that is larger than asked for, as on a GPU; the bell's is on the host."""
    bell = size % HEADER_BYTES == 0 and size % (4 * HEADER_BYTES) != 0
    return HostArena(size if bell else -(-size // PAGE) * PAGE, fresh=fresh)


@pytest.mark.parametrize("pages", [False, True], ids=["exact", "in pages"])
@pytest.mark.parametrize("carried", [CARRIED_BYTES, 0], ids=["carried", "scrambled"])
def test_lone_calls_that_are_rung_for_get_fresh_values_of_their_own(
    pages: bool, carried: int, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU's host, here on the CPU: what came out of the scrambling is judged."""
    start, ring, rung = ProcessPair.start, Subject.ring, list[int]()

    def start_rung(pair: ProcessPair, *arguments: Any, **options: Any) -> Plan:
        pair.rung = True
        return start(pair, *arguments, **options)

    def told_ring(subject: Subject, index: int, warm: int, values: torch.Tensor) -> float:
        expected, place = values.clone(), subject.set_bytes("inputs", index)
        others = [i for i in range(subject.layouts["inputs"].sets) if i != index]
        before = [subject.set_bytes("inputs", i).clone() for i in others]
        rung.append(index)
        seconds = ring(subject, index, warm, values)
        assert torch.equal(place, expected)
        assert carried or not torch.equal(subject.set_bytes("scrambled", 0), expected)
        for i, kept in zip(others, before, strict=True):
            assert torch.equal(subject.set_bytes("inputs", i), kept)
        return seconds

    monkeypatch.setattr("sandbox.subjects.bell.CARRIED_BYTES", carried)
    monkeypatch.setattr(ProcessPair, "start", start_rung)
    monkeypatch.setattr(Subject, "ring", told_ring)
    if pages:
        monkeypatch.setattr("sandbox.machine.memory.HostArena", in_pages)
    task = SCALE + f"\n# {pages}\n"  # prepared with the same arenas
    found = evaluate(forward("return y"), task)  # too few lone rounds to convict: cores are few
    assert found.status is Status.PASSED, found.detail
    assert len(rung) > 2
