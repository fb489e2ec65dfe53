"""What the walls say of themselves: grade, layers held and missing, cost; the filter's shape."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.machine.probe import ask, probe
from sandbox.walls.enclose import Enclosure, Grade, Layer, Walls
from sandbox.walls.folders import prepare_scratch
from sandbox.walls.seccomp import ARCHITECTURES, program

SLOT_UID = 61_000 + os.getpid() % 2_000
"""Unlike any other test run's on this host: limits count, and kill_tree sweeps, by uid."""
NOBODY = 63_000 + os.getpid() % 2_000
ROOT = os.geteuid() == 0


def open_to_others(folder: Path) -> None:
    """Let nobody reach pytest's folder, which is root's alone."""
    for level in (folder, *folder.parents):
        if level == Path(tempfile.gettempdir()):
            return
        level.chmod(0o755)


def enclosure_of(scratch: Path, uid: int | None) -> Enclosure:
    return Enclosure(scratch, (), uid, (), 30, 1 << 20, 64, None, os.getpid())


@pytest.mark.parametrize(
    ("without", "grade"),
    [
        (frozenset(), Grade.FULL),
        (frozenset({Layer.NETWORK}), Grade.UNPRIVILEGED),
        (frozenset({Layer.OWN_UID}), Grade.UNPRIVILEGED),
        (frozenset({Layer.SCOPE}), Grade.FULL),
        (frozenset({Layer.SCOPE, Layer.OWN_UID}), Grade.WEAK),
        (frozenset({Layer.LANDLOCK}), Grade.WEAK),
        (frozenset({Layer.SECCOMP}), Grade.WEAK),
        (frozenset(Layer), Grade.WEAK),
    ],
)
@pytest.mark.skipif(not ROOT, reason="FULL needs root")
def test_the_grade_says_which_layers_hold(
    tmp_path: Path, without: frozenset[Layer], grade: Grade
) -> None:
    uid = None if Layer.OWN_UID in without else SLOT_UID
    scratch = prepare_scratch(tmp_path / "scratch", uid)

    def describe(walls: Walls) -> object:
        return [walls.grade, walls.layers, walls.missing]

    answer: Any = ask(enclosure_of(scratch, uid), describe, without=without)
    found, layers, missing = answer
    assert found == grade
    assert without.isdisjoint(layers)
    assert len(layers) + len(missing) == len(Layer)


@pytest.mark.skipif(not ROOT, reason="becomes another user")
def test_an_ordinary_user_gets_the_unprivileged_grade(tmp_path: Path) -> None:
    open_to_others(tmp_path)
    scratch = prepare_scratch(tmp_path / "scratch", NOBODY)
    grade = ask(enclosure_of(scratch, None), lambda walls: walls.grade, user=NOBODY)
    assert grade == Grade.UNPRIVILEGED


def test_probing_leaves_the_caller_as_it_was() -> None:
    before = (os.getuid(), os.getcwd(), dict(os.environ), os.readlink("/proc/self/ns/net"))
    walls = probe()
    assert set(walls.layers) <= set(Layer)
    assert walls.grade is Grade.FULL or not ROOT
    assert before == (os.getuid(), os.getcwd(), dict(os.environ), os.readlink("/proc/self/ns/net"))


@pytest.mark.alone
def test_enclosing_takes_milliseconds(tmp_path: Path) -> None:
    uid = SLOT_UID if ROOT else None
    scratch = prepare_scratch(tmp_path / "scratch", uid)

    def enclosed() -> None:
        ask(enclosure_of(scratch, uid), lambda walls: 0)

    def forked() -> None:  # which costs what this process is large
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def seconds(once: Callable[[], None]) -> float:
        began = time.monotonic()
        once()
        return time.monotonic() - began

    beyond_s = min(seconds(enclosed) - seconds(forked) for _ in range(10))
    assert beyond_s < 0.1  # walls, reply and kill: 8 ms on two idle cores


def test_every_machine_has_a_filter_whose_jumps_stay_inside() -> None:
    for machine in ARCHITECTURES:
        code = program(machine)
        assert len(code) < 4096  # BPF_MAXINSNS
        for place, (_, when_true, when_false, _) in enumerate(code):
            assert max(when_true, when_false) < 256
            assert place + 1 + max(when_true, when_false) < len(code) or place == len(code) - 1
