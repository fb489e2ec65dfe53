"""Scratch folders of the dead are removed; of the living none, whatever their number is here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.machine.scratch import LOCK, clear_scratch, scratch_name, scratch_root

MAKES = """
import sys
from pathlib import Path
from sandbox.machine.scratch import scratch_name
root = Path(sys.argv[1])
(root / scratch_name(root) / "inside").mkdir(parents=True)
print("made", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARPSMITH_SCRATCH", str(tmp_path))
    return scratch_root()


def test_what_a_killed_process_left_is_removed_and_what_lives_is_not(root: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", MAKES, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"made\n"
    mine = root / scratch_name(root)
    mine.mkdir()
    clear_scratch(root)
    assert len(list(root.iterdir())) == 4, "two folders and their locks"
    other.kill()
    other.communicate()
    clear_scratch(root)
    assert {path.suffix for path in root.iterdir()} == {"", LOCK}
    assert mine.is_dir()
    assert len(list(root.iterdir())) == 2


def test_a_number_that_nobody_has_here_may_live_in_another_container(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders were removed under it, since /proc did not know it."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(os, "getpid", lambda: gone.pid)
    elsewhere = root / scratch_name(root)
    elsewhere.mkdir()
    old = root / f"{gone.pid}-{6 * '0a'}"
    old.mkdir()
    clear_scratch(root)
    assert elsewhere.is_dir()
    assert not old.exists(), "of a version without locks"
