"""Lone calls that begin and end by a bell in shared memory, between two real processes."""

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


def answer(bell: Bell, ticket: int, seconds: float) -> int:
    """A child process that answers one ring, and ends with 0 if it got the values."""
    child = os.fork()
    if child:
        return child
    warmed: list[None] = []
    bell.stand_by(ticket, lambda: warmed.append(None))
    right = bytes(bell.given.numpy()) == VALUES and bool(warmed)
    time.sleep(seconds)
    bell.end(ticket)
    os._exit(0 if right else 1)


def test_a_call_is_timed_from_its_ring_and_gets_its_values(bells: tuple[Bell, Bell]) -> None:
    supervisor, worker = bells
    for ticket in (1, 2):
        child = answer(worker, ticket, 0.01)
        start, seen = supervisor.ring(ticket, VALUES)
        assert seen
        assert 0.01 <= time.perf_counter() - start < STANDS_BY_S
        assert os.waitpid(child, 0)[1] == 0


def test_a_call_that_outlasts_the_wait_is_left_to_the_pipe(bells: tuple[Bell, Bell]) -> None:
    supervisor, worker = bells
    child = answer(worker, 7, 2 * STANDS_BY_S)
    start, seen = supervisor.ring(7, VALUES)
    assert not seen
    assert time.perf_counter() - start < 2 * STANDS_BY_S
    assert os.waitpid(child, 0)[1] == 0


def test_a_worker_that_never_stands_by_does_not_hold_the_supervisor(
    bells: tuple[Bell, Bell],
) -> None:
    supervisor, _ = bells
    start = time.perf_counter()
    assert not supervisor.ring(1, VALUES)[1]
    assert time.perf_counter() - start < 10 * STANDS_BY_S
