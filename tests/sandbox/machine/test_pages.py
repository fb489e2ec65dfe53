"""Shared memory that goes from one worker to the next."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.machine import memory, pages, processes
from sandbox.machine.memory import HostArena, OpenedArena
from sandbox.machine.pages import Kept, Pages
from sandbox.machine.trees import Layout, Leaf
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, Language, Status
from sandbox.worker.session import Session
from tests.sandbox.conftest import FAST, LINEAR, SCALE, forward, task_of

MIB = 1 << 20


def file_of(given: Pages) -> int:
    return os.fstat(given.fd).st_ino


@pytest.fixture
def kept() -> Kept:
    return Kept(1024 * MIB)


def test_memory_of_an_ended_worker_is_all_zeros_for_the_next(kept: Kept) -> None:
    first = HostArena(3 * MIB, kept)
    known = os.fstat(first.fds[0]).st_ino
    first.bytes.fill_(7)
    first.close(unshared=True)
    second = HostArena(3 * MIB - 5, kept)
    assert os.fstat(second.fds[0]).st_ino == known
    assert not second.bytes.any()


def test_memory_that_a_worker_may_still_map_is_not_used_again(kept: Kept) -> None:
    first = HostArena(3 * MIB, kept)
    known = os.fstat(first.fds[0]).st_ino
    first.close()
    assert os.fstat(HostArena(3 * MIB, kept).fds[0]).st_ino != known


def test_an_arena_has_the_size_that_was_asked_for(kept: Kept) -> None:
    """Whole arenas are copied into each other, whatever memory each happens to have."""
    HostArena(3 * MIB, kept).close(unshared=True)
    arena = HostArena(2 * MIB + 64, kept)
    assert arena.bytes.numel() == arena.ticket()["size"] == 2 * MIB + 64
    other = OpenedArena(arena.ticket(), os.dup(arena.fds[0]))
    assert other.bytes.numel() == 2 * MIB + 64
    assert arena.fit(2 * MIB + 65)
    assert arena.bytes.numel() == 2 * MIB + 65
    assert not arena.fit(4 * MIB)


def test_what_a_candidate_had_serves_no_reference() -> None:
    arena = memory.allocate(3 * MIB, "cpu", trusted=False)
    known = os.fstat(arena.fds[0]).st_ino
    arena.close(unshared=True)
    assert os.fstat(memory.allocate(3 * MIB, "cpu").fds[0]).st_ino != known


def test_memory_that_was_made_for_a_figure_is_not_kept(kept: Kept) -> None:
    for fresh, count in ((True, 0), (False, 1)):
        memory.HostArena(4 * MIB, kept, fresh=fresh).close(unshared=True)
        assert len(kept._free) == count


def test_pages_that_were_never_touched_stay_away_when_others_are_wiped() -> None:
    pages = Pages(64 * MIB)
    pages.map[10 * MIB] = 1
    pages.wipe()
    assert pages.map[10 * MIB] == 0
    assert os.fstat(pages.fd).st_blocks * 512 < MIB


def test_large_memory_waits_for_large_arenas() -> None:
    kept = Kept(64 * MIB)
    large = Pages(8 * MIB)
    kept.give(large)
    assert file_of(kept.take(3 * MIB)) != file_of(large)
    assert file_of(kept.take(5 * MIB)) == file_of(large)


def test_the_smallest_memory_that_fits_is_taken() -> None:
    kept = Kept(64 * MIB)
    given = [Pages(size * MIB) for size in (6, 4, 5)]
    for one in given:
        kept.give(one)
    assert file_of(kept.take(4 * MIB)) == file_of(given[1])


def test_no_more_than_the_limit_is_kept_and_the_oldest_goes_first() -> None:
    kept = Kept(5 * MIB)
    given = [Pages(2 * MIB) for _ in range(3)]
    known = [file_of(one) for one in given]
    for one in given:
        kept.give(one)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given[0].fd)
    assert {file_of(kept.take(2 * MIB)) for _ in range(2)} == set(known[1:])


def test_small_and_huge_memory_is_not_kept() -> None:
    kept = Kept(4 * MIB)
    for size in (4096, 5 * MIB):
        one = Pages(size)
        kept.give(one)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(one.fd)


def test_sizes_are_rounded_by_an_eighth_at_most() -> None:
    for size in (1, 4097, MIB, MIB + 1, 9 * MIB + 3, 100 * MIB + 1, (1 << 30) + 1):
        assert size <= pages._rounded(size) <= max(size * 1.125, size + MIB)


def test_a_worker_goes_on_with_an_arena_under_another_layout(tmp_path: Path) -> None:
    session = Session(tmp_path)
    arena = HostArena(4096)

    def attach(leaf: Leaf, sets: int, *, anew: bool) -> None:
        session.do_attach(
            {
                "name": "slots",
                "ticket": arena.ticket() if anew else {"kind": "same", "size": 4096},
                "leaves": [leaf.to_json()],
                "sets": sets,
            },
            [os.dup(arena.fds[0])] if anew else [],
        )

    attach(Leaf((4,), "float32", (1,), 4), 2, anew=True)
    before = session.arenas["slots"]
    other = Leaf((2, 3), "float64", (3, 1), 8)
    attach(other, 3, anew=False)
    assert session.arenas["slots"] is before
    arena.bytes.zero_()
    memory.leaf_view(arena.bytes, Layout((other,), 3), 2, 0).fill_(1.5)
    mine = memory.leaf_view(before.bytes, session.slots, 2, 0)
    assert torch.equal(mine, torch.full((2, 3), 1.5, dtype=torch.float64))


@pytest.mark.slow
def test_the_memory_of_one_candidate_serves_the_next(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("trusted", "untrusted"):
        monkeypatch.setattr(pages, side, Kept(1024 * MIB))
    made: list[int] = []
    fresh = Pages.__init__

    def counted(self: Pages, size: int) -> None:
        made.append(size)
        fresh(self, size)

    monkeypatch.setattr(Pages, "__init__", counted)
    task = task_of(SCALE.replace("7, 129", "700, 1290"))
    counts = []
    for number in range(3):
        source = forward("return y") + f"\n# {number}"
        searched = Candidate(task.id, Language.TORCH, source)
        found = evaluator.evaluate(task, searched, FAST, to_beat=1.0)
        assert found.status is Status.PASSED, found.detail
        counts.append(sum(size >= MIB for size in made))
        made.clear()
    if os.getuid() == 0:  # a slot has a uid of its own
        assert counts[2] <= counts[0] / 2, counts


@pytest.mark.slow
def test_the_pairs_behind_a_figure_share_no_memory(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[tuple[bool, int]] = []
    attach_all = Subject.attach_all

    def noted(self: Subject, *arguments: Any) -> None:
        attach_all(self, *arguments)
        held.extend((self.fresh, os.fstat(a.fds[0]).st_ino) for a in self.arenas.values())

    monkeypatch.setattr(Subject, "attach_all", noted)
    slower = SCALE.replace("relu(x)", "relu(torch.relu(torch.relu(x)))")
    task = task_of(slower.replace("7, 129", "700, 1290"))
    # Of one that some noise makes look slower than eager a single pair may be enough.
    quicker = Candidate(task.id, Language.TORCH, forward("return y"))
    assert evaluator.evaluate(task, quicker, FAST).status is Status.PASSED
    timed = [file for fresh, file in held if fresh]
    assert len(timed) >= 2 * 2 * 3
    assert len(set(timed)) == len(timed)


@pytest.mark.slow
def test_states_of_a_megabyte_fit_whatever_memory_each_side_has(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = Kept(1024 * MIB)
    monkeypatch.setattr(pages, "trusted", trusted)
    task = task_of(LINEAR.replace("33", "520"))
    source = LINEAR.replace("33", "520").replace("class Model(", "class ModelNew(")
    for number in range(2):
        trusted.give(Pages(2 * MIB - 4096 * number))
        same = Candidate(task.id, Language.TORCH, f"{source}\n# {number}")
        found = evaluator.evaluate(task, same, FAST)
        assert found.status is Status.PASSED, found.detail


def test_no_pages_are_given_away_while_a_thread_of_theirs_is_in_the_kernel(tmp_path: Path) -> None:
    """Its leader is a zombie at once; a copy of half a gigabyte goes on."""
    copying = (
        "import mmap, os, sys, threading, time\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "arena = mmap.mmap(-1, 512 << 20)\n"
        "def copy():\n"
        "    print('copies', flush=True)\n"
        "    os.preadv(file, [arena], 0)\n"
        "threading.Thread(target=copy).start()\n"
        "time.sleep(60)\n"
    )
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(512 << 20)
    command = [sys.executable, "-c", copying, str(sparse)]
    worker = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"copies\n"
    time.sleep(0.02)
    processes.kill_tree(worker.pid)
    # Neither reaped nor waited for: what is left of it is the leader's entry.
    assert len(os.listdir(f"/proc/{worker.pid}/task")) == 1
    worker.wait()
