"""Where scratch folders live, and whose they are: what a killed supervisor left is removed by the
next one.

A supervisor holds the lock of a file as long as it lives, and its folders begin with that file's
name: by its number alone it would be dead to who has other numbers for processes, as in another
container on the same folder.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
from functools import cache
from pathlib import Path
from typing import IO

from sandbox.cache import hold, idle

LOCK = ".lock"
_held: list[IO[str]] = []
"""Closed, and so released, when this process ends, however it does."""


def scratch_root() -> Path:
    """Below WARPSMITH_SCRATCH or /var/tmp, a folder of this user's."""
    base = Path(os.environ.get("WARPSMITH_SCRATCH", "/var/tmp"))
    root = base / f"warpsmith-{os.geteuid()}"
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)
    return root


def scratch_name(root: Path) -> str:
    """Of a new folder there, which nobody removes while this process lives."""
    return f"{_owner(root, os.getpid())}-{secrets.token_hex(6)}"


@cache
def _owner(root: Path, pid: int) -> str:
    """Begins this process's names, once it holds their lock."""
    while True:
        name = f"{pid}-{secrets.token_hex(4)}"
        lock = root / f"{name}{LOCK}"
        file = hold(lock)
        if file is not None:
            _held.append(file)
            atexit.register(_leave, lock, pid)
            return name


def _leave(lock: Path, pid: int) -> None:
    if os.getpid() == pid:  # not of a fork
        lock.unlink(missing_ok=True)


def clear_scratch(root: Path) -> None:
    """Remove the folders of supervisors that have ended, and then their locks."""
    for locks in (False, True):
        for leftover in root.iterdir():
            if (leftover.suffix == LOCK) == locks and _ended(leftover):
                if locks:
                    leftover.unlink(missing_ok=True)
                else:
                    shutil.rmtree(leftover, ignore_errors=True)


def _ended(leftover: Path) -> bool:
    """Whether whose it is has ended: by its lock, else, of folders without one, by its number."""
    pid, _, rest = leftover.name.removesuffix(LOCK).partition("-")
    if not pid.isdigit():
        return False
    lock = leftover.with_name(f"{pid}-{rest.partition('-')[0]}{LOCK}")
    return idle(lock) if lock.exists() else not Path(f"/proc/{pid}").exists()
