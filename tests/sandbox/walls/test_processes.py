"""The supervisor's side: a process group can be killed, frozen, thawed, measured and counted."""

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.machine.proc import count_processes, cpu_seconds, tree_memory_bytes
from sandbox.machine.processes import (
    adopt_orphans,
    freeze_tree,
    kill_tree,
    thaw_tree,
    woken,
)
from sandbox.machine.zygote import reap

SLOT_UID = 61_000 + os.getpid() % 2_000
"""Unlike any other test run's on this host: limits count, and kill_tree sweeps, by uid."""
CHUNK = 32 << 20


@contextmanager
def worker(act: Callable[[], None]) -> Iterator[int]:
    """A child that leads its own group and runs `act`; yields its pid."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        act()
        os._exit(0)
    try:
        while os.getpgid(child) != child:
            time.sleep(0.001)
        yield child
    finally:
        kill_tree(child)
        os.waitpid(child, 0)


def wait_until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def fork_sleepers(count: int) -> None:
    """`count` children, each with one child of its own, all asleep."""
    for _ in range(count):
        if os.fork() == 0:
            os.fork()
            break
    time.sleep(60)


def test_kill_tree_kills_grandchildren() -> None:
    with worker(lambda: fork_sleepers(3)) as pgid:
        assert wait_until(lambda: count_processes(pgid) == 7)
        kill_tree(pgid)
        assert count_processes(pgid) == 0


def test_of_a_killed_tree_the_zygote_leaves_no_zombie() -> None:
    keeper = os.fork()
    if keeper == 0:  # adopts in a process of its own, and answers with its exit code
        adopt_orphans()
        with worker(lambda: fork_sleepers(3)) as pgid:
            wait_until(lambda: count_processes(pgid) == 7)
            kill_tree(pgid)
            status = reap(pgid, {pgid: None}, timeout_s=5)
            reap(0, {}, timeout_s=5)  # whatever the leader's end has left
            left = [p for p in Path("/proc").glob("[0-9]*/stat") if f" {pgid} " in p.read_text()]
            os._exit(7 if status == signal.SIGKILL and not left else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1]) == 7


def test_kill_tree_beats_a_process_that_forks_for_ever() -> None:
    def bomb() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            if os.fork() == 0:
                time.sleep(10)  # longer than a busy machine takes for a few forks
                os._exit(0)
            time.sleep(0.001)

    with worker(bomb) as pgid:
        assert wait_until(lambda: count_processes(pgid) > 5)
        kill_tree(pgid)
        assert count_processes(pgid) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives uids")
def test_kill_tree_sweeps_the_slots_uid_beyond_the_group() -> None:
    reader, writer = os.pipe()

    def escape() -> None:
        os.setresuid(SLOT_UID, SLOT_UID, SLOT_UID)
        os.close(reader)
        if os.fork() == 0:
            os.setsid()  # no walls here: this one leaves the group
            os.write(writer, b"x")
            time.sleep(60)
        os.close(writer)
        time.sleep(60)

    with worker(escape) as pgid:
        os.close(writer)
        assert os.read(reader, 1) == b"x"
        kill_tree(pgid, SLOT_UID)
        assert os.read(reader, 1) == b""  # the escaped process held the last writing end


def test_a_frozen_tree_stands_still_until_it_is_thawed() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)

    def drain() -> int:
        try:
            return len(os.read(reader, 1 << 16))
        except BlockingIOError:
            return 0

    def tick() -> None:
        os.fork()
        while True:
            os.write(writer, b".")
            time.sleep(0.001)

    with worker(tick) as pgid:
        assert wait_until(lambda: drain() > 0)
        freeze_tree(pgid)
        drain()
        time.sleep(0.05)
        assert drain() == 0
        thaw_tree(pgid)
        assert wait_until(lambda: drain() > 0)


def wake_oneself(every_ns: int, begun: Callable[[], object]) -> None:
    """SIGCONT again and again for 20 s, and no rest; calls `begun` once all timers are set.

    A timer for each: one that repeats has ended where SIGSTOP discards its signal before that is
    delivered, as to a process that waits for a core (Linux rearms it at the delivery).
    """
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    signal.signal(signal.SIGCONT, lambda *_: None)
    event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)  # SIGEV_SIGNAL
    for after_ns in range(every_ns, 20_000_000_000, every_ns):
        at = (ctypes.c_long * 4)(0, 0, *divmod(after_ns, 1_000_000_000))
        assert libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0
        assert libc.timer_settime(timer, 0, at, None) == 0
    begun()
    while True:
        pass


def test_a_tree_that_wakes_itself_is_told() -> None:
    reader, writer = os.pipe()
    with worker(lambda: wake_oneself(20_000_000, lambda: os.write(writer, b"x"))) as pgid:
        assert os.read(reader, 1) == b"x"
        freeze_tree(pgid)
        assert wait_until(lambda: woken(pgid))


def test_a_frozen_tree_is_not_woken() -> None:
    with worker(lambda: fork_sleepers(1)) as pgid:
        freeze_tree(pgid)
        time.sleep(0.05)
        assert not woken(pgid)


def test_one_that_was_killed_while_it_was_frozen_is_not_woken() -> None:
    with worker(lambda: fork_sleepers(1)) as pgid:
        assert wait_until(lambda: count_processes(pgid) == 3)
        freeze_tree(pgid)
        os.kill(pgid, signal.SIGKILL)
        assert not woken(pgid)


@pytest.mark.parametrize("parents", [1, 3])
def test_parents_that_wait_for_their_childs_exec_count_as_frozen(parents: int) -> None:
    def leave_open() -> None:
        for _ in range(parents):
            if ctypes.CDLL(None).vfork() != 0:
                os._exit(0)
        time.sleep(60)

    with worker(leave_open) as pgid:
        assert wait_until(lambda: count_processes(pgid) == parents + 1)
        freeze_tree(pgid)
        assert not woken(pgid)


def end_first_thread() -> None:
    """The process goes on in its others; its first is a zombie until they end."""
    ctypes.CDLL(None).pthread_exit(None)


FIRST_THREADS = pytest.mark.parametrize(
    "first", [lambda: time.sleep(60), end_first_thread], ids=["living", "ended"]
)
"""What the first thread of a process does, which is the one that /proc shows."""


@FIRST_THREADS
def test_no_thread_goes_on_in_the_kernel_of_a_frozen_tree(first: Callable[[], None]) -> None:
    file, place = os.memfd_create("hole"), mmap.mmap(-1, 1 << 20)
    os.ftruncate(file, 1 << 30)

    def read() -> None:
        while True:
            os.preadv(file, [place] * 1000, 0)

    def act() -> None:
        threading.Thread(target=read, daemon=True).start()
        first()

    with worker(act) as pgid:
        assert wait_until(lambda: (cpu_seconds(pgid) or 0.0) > 0.05)
        for _ in range(5):
            freeze_tree(pgid)
            used = cpu_seconds(pgid)
            time.sleep(0.05)
            assert used is not None
            assert cpu_seconds(pgid) == pytest.approx(used, abs=0.002)
            thaw_tree(pgid)
            time.sleep(0.02)


def test_a_frozen_tree_can_be_killed() -> None:
    with worker(lambda: fork_sleepers(1)) as pgid:
        freeze_tree(pgid)
        kill_tree(pgid)
        assert count_processes(pgid) == 0


def test_memory_of_the_whole_tree_is_counted() -> None:
    # In a fresh interpreter: a fork of this process has its memory, of which kernels take back what
    # lies idle while it is looked at.
    hold = f"import os, time; os.fork(); block = b'x' * {2 * CHUNK}; time.sleep(60)"
    command = [sys.executable, "-S", "-c", hold]
    with worker(lambda: os.execv(sys.executable, command)) as pgid:
        assert wait_until(lambda: count_processes(pgid) == 2)
        assert wait_until(lambda: tree_memory_bytes(pgid) > 3 * CHUNK)
        assert tree_memory_bytes(pgid) < 5 * CHUNK


@FIRST_THREADS
def test_memory_counts_whichever_thread_holds_it(first: Callable[[], None]) -> None:
    def hold() -> None:
        time.sleep(0.1)  # the first thread has ended by then, if it does
        block = bytearray(CHUNK)
        block[:] = b"x" * CHUNK
        time.sleep(60)

    def act() -> None:
        threading.Thread(target=hold, daemon=True).start()
        first()

    with worker(act) as pgid:
        assert wait_until(lambda: tree_memory_bytes(pgid) > CHUNK)


def test_memory_that_a_fork_shares_is_divided_once_it_would_be_too_much() -> None:
    def hold() -> None:
        block = bytearray(CHUNK)
        block[:] = b"x" * CHUNK
        fork_sleepers(3)

    with worker(hold) as pgid:
        assert wait_until(lambda: count_processes(pgid) == 7)
        assert wait_until(lambda: tree_memory_bytes(pgid) > 7 * CHUNK)
        divided = tree_memory_bytes(pgid, limit_bytes=CHUNK)
        assert CHUNK < divided < tree_memory_bytes(pgid) - 5 * CHUNK


def test_memory_of_its_own_is_not_divided() -> None:
    def hold() -> None:
        os.fork()
        block = bytearray(CHUNK)
        block[:] = b"x" * CHUNK
        time.sleep(60)

    with worker(hold) as pgid:
        assert wait_until(lambda: tree_memory_bytes(pgid, limit_bytes=CHUNK) > 2 * CHUNK)


def test_a_group_that_has_ended_counts_nothing() -> None:
    with worker(lambda: None) as pgid:
        assert wait_until(lambda: count_processes(pgid) == 0)
        assert tree_memory_bytes(pgid) == 0
        freeze_tree(pgid)
        thaw_tree(pgid)


def test_the_supervisors_own_group_is_refused() -> None:
    for pgid in (0, 1, os.getpgrp()):
        with pytest.raises(ValueError, match="own group"):
            kill_tree(pgid)


def test_the_supervisors_own_uid_is_refused() -> None:
    with worker(lambda: time.sleep(60)) as pgid, pytest.raises(ValueError, match="own uid"):
        kill_tree(pgid, os.getuid())
