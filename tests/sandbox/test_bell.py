"""Lone calls that begin by a bell in shared memory, between two real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from sandbox.bell import HEADER_BYTES, STANDS_BY_S, Bell
from sandbox.memory import HostArena

VALUES = bytes(range(32))


@pytest.fixture
def bells() -> Iterator[tuple[Bell, Bell]]:
    arena = HostArena(HEADER_BYTES + len(VALUES))
    yield Bell(arena.bytes), Bell(arena.bytes)
    arena.close()


def answer(bell: Bell, ticket: int, late_s: float = 0.0) -> int:
    """A child process that waits for one ring, and ends with 0 if it got the values then."""
    child = os.fork()
    if child:
        return child
    warmed: list[None] = []
    time.sleep(late_s)
    bell.stand_by(ticket, lambda: warmed.append(None))
    os._exit(0 if warmed and bytes(bell.given.numpy()) == VALUES else 1)


def test_a_worker_that_is_rung_has_its_values(bells: tuple[Bell, Bell]) -> None:
    supervisor, worker = bells
    for ticket in (1, 2):
        child = answer(worker, ticket)
        before = time.perf_counter()
        start = supervisor.ring(ticket, VALUES)
        assert before <= start <= time.perf_counter()
        assert os.waitpid(child, 0)[1] == 0


def test_a_worker_that_stands_by_late_is_rung_all_the_same(bells: tuple[Bell, Bell]) -> None:
    supervisor, worker = bells
    child = answer(worker, 7, late_s=4 * STANDS_BY_S)
    start = time.perf_counter()
    supervisor.ring(7, VALUES)
    assert time.perf_counter() - start < 4 * STANDS_BY_S
    assert os.waitpid(child, 0)[1] in (0, 256)  # the ring was there before it could warm up


def test_a_worker_that_never_stands_by_does_not_hold_the_supervisor(
    bells: tuple[Bell, Bell],
) -> None:
    supervisor, _ = bells
    start = time.perf_counter()
    supervisor.ring(1, VALUES)
    assert time.perf_counter() - start < 10 * STANDS_BY_S
