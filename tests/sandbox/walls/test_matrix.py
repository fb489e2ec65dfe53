"""Every attempt on the walls, by each kind of user, on each kind of host: what holds where.

What a host lacks is refused by its kernel (tests/sandbox/walls/host.py); nothing of ours is
patched. Where an attempt succeeds the grade is weak, and docs/walls.md says so.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox.machine.probe import ask
from sandbox.walls.enclose import Enclosure, Grade, Walls
from sandbox.walls.folders import prepare_scratch, python_folders
from sandbox.walls.privileges import closed_to
from tests.sandbox.walls.attempts import SECRET, Target, attempt_all
from tests.sandbox.walls.host import Host, in_host, lives

SLOT_UID = 61_000 + os.getpid() % 2_000
"""Unlike any other test run's on this host: limits count, and kill_tree sweeps, by uid."""
ORDINARY = 63_000 + os.getpid() % 2_000
ROOT = os.geteuid() == 0
USERS = ("root", "ordinary") if ROOT else ("ordinary",)
KINDS = ("network", "write", "secrets", "memory", "ptrace", "signal", "leave", "starve")
GRADES = {
    ("root", Host.WHOLE): Grade.FULL,
    ("root", Host.NO_UNSHARE): Grade.UNPRIVILEGED,
    ("ordinary", Host.WHOLE): Grade.UNPRIVILEGED,
    ("ordinary", Host.NO_UNSHARE): Grade.UNPRIVILEGED,
}
"""Weak otherwise."""
EXPOSED: dict[tuple[str, Host], set[str]] = {
    # A file of our own user outside our home; another lane's worker.
    ("ordinary", Host.NO_LANDLOCK): {"secrets: files", "starve: neighbour"},
    ("root", Host.NEITHER): {"write: shared folder", "write: /tmp", "write: /dev/shm"},
    ("ordinary", Host.NEITHER): {
        "write: shared folder",
        "write: private folder",
        "write: /tmp",
        "write: /dev/shm",
        "secrets: environment",
        "secrets: files",
        "memory: /proc",
        "starve: neighbour",
    },
}
"""What succeeds, where anything does."""
IF_PYTHON_IS_CLOSED = {("root", Host.NEITHER): {"secrets: files", "secrets: passwords"}}
"""Then the slot keeps the right to read past permissions, and nothing bounds it."""
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@dataclass(frozen=True)
class Cell:
    """What one kind of user saw on one kind of host."""

    grade: Grade
    missing: tuple[str, ...]
    outcomes: dict[str, str]

    def succeeded(self, kind: str) -> set[str]:
        return {n for n, o in self.outcomes.items() if o == "done" and n.startswith(f"{kind}: ")}


@functools.cache
def cell(who: str, host: Host) -> Cell:
    """All attempts of a walled child whose supervisor is that user on that host."""
    found = supervised(who, host)
    return Cell(Grade(found["grade"]), tuple(found["missing"]), found["outcomes"])


def supervised(who: str, host: Host, *, bare: bool = False) -> Any:
    folder = Path(tempfile.mkdtemp(prefix="warpsmith-matrix-", dir="/var/tmp"))
    folder.chmod(0o777)
    user = ORDINARY if ROOT and who == "ordinary" else None
    uid = SLOT_UID if who == "root" else None
    try:
        return in_host(host, user, lambda: supervise(folder, uid, bare=bare))
    finally:
        shutil.rmtree(folder)


def look(target: Target, walls: Walls | None = None) -> Any:
    """In the child; without walls in a plain one of its own."""
    if walls is None:
        return {"outcomes": in_host(Host.WHOLE, None, lambda: attempt_all(target))}
    return {"grade": walls.grade, "missing": walls.missing, "outcomes": attempt_all(target)}


def supervise(folder: Path, uid: int | None, *, bare: bool = False) -> Any:
    """In the host process: put one child behind walls, and look at what it left."""
    shared, private = folder / "shared", folder / "private"
    shared.mkdir()
    shared.chmod(0o777)
    private.mkdir(mode=0o700)
    (private / "secret").write_text("secret")
    scratch = prepare_scratch(folder / "scratch", uid)
    secret = ctypes.create_string_buffer(SECRET, len(SECRET))
    neighbour = os.fork()
    if neighbour == 0:
        time.sleep(60)
        os._exit(0)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            name = f"warpsmith-{os.getpid()}"
            target = Target(
                supervisor=os.getpid(),
                neighbour=neighbour,
                address=ctypes.addressof(secret),
                port=server.getsockname()[1],
                shared=shared,
                private=private,
                name=name,
                note=scratch / "orphan",
            )
            enclosure = Enclosure(scratch, (), uid, (), 30, 1 << 20, 64, None, os.getpid())
            answer = look(target) if bare else ask(enclosure, lambda walls: look(target, walls))
    finally:
        os.kill(neighbour, signal.SIGKILL)
        os.waitpid(neighbour, 0)
    outcomes = answer["outcomes"]
    for place in ("/tmp", "/dev/shm"):
        left = Path(place, name)
        if outcomes[f"write: {place}"] == "done" and not left.exists():
            outcomes[f"write: {place}"] = "private"
        left.unlink(missing_ok=True)
    if outcomes["leave: orphan"] == "done":
        orphan = int(target.note.read_text())
        if not lives(orphan):
            outcomes["leave: orphan"] = "ended"
        else:
            os.kill(orphan, signal.SIGKILL)
    return answer


def python_is_closed() -> bool:
    """To the slots' users: a folder above the interpreter or its packages."""
    return closed_to(SLOT_UID, python_folders()) is not None


def offered(who: str, host: Host) -> Cell:
    """The cell; skips where this machine lacks what the host would offer."""
    found = cell(who, host)
    lacking = " ".join(found.missing)
    if host in (Host.WHOLE, Host.NO_LANDLOCK) and "network namespace" in lacking:
        pytest.skip("this machine refuses namespaces")
    if host in (Host.WHOLE, Host.NO_UNSHARE) and "landlock" in lacking:
        pytest.skip("this kernel has no Landlock, or an old one")
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", Host)
@pytest.mark.parametrize("who", USERS)
def test_an_attempt_succeeds_only_where_it_is_known_to(who: str, host: Host, kind: str) -> None:
    found = offered(who, host)
    known = set(EXPOSED.get((who, host), ()))
    if python_is_closed():
        known |= IF_PYTHON_IS_CLOSED.get((who, host), set())
    expected = {name for name in known if name.startswith(f"{kind}: ")}
    assert found.succeeded(kind) == expected, found.outcomes


@pytest.mark.parametrize("host", Host)
@pytest.mark.parametrize("who", USERS)
def test_the_grade_is_weak_wherever_something_succeeds(who: str, host: Host) -> None:
    found = offered(who, host)
    assert found.grade is GRADES.get((who, host), Grade.WEAK), found.missing
    assert found.grade is Grade.WEAK or "done" not in found.outcomes.values(), found.outcomes
    assert len(found.outcomes) > 25


@pytest.mark.parametrize("who", USERS)
def test_without_walls_the_attempts_would_succeed(who: str) -> None:
    """Or the matrix would prove nothing: the same attempts by a plain child."""
    found = supervised(who, Host.WHOLE, bare=True)["outcomes"]
    fails = {name for name, result in found.items() if result != "done"}
    # An ordinary user may not do these anyway; a kernel with Yama lets no child trace its parent.
    allowed = {"secrets: passwords", "starve: own priority", "leave: session"}
    if YAMA.exists() and YAMA.read_text().strip() != "0":
        allowed |= {n for n in found if n.startswith(("ptrace: ", "memory: "))}
    assert fails <= allowed, found
