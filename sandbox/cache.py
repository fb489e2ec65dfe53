"""Where facts, baselines, traces and builds are kept between runs; all of it may be lost at any
time.

A file that cannot be read or does not parse is a miss. Keys include everything a value depends on.
Entries appear whole, by one rename, and leave whole; the least recently used leave first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sandbox.cleanup import on_failure

logger = logging.getLogger(__name__)

GIB = 1 << 30
LIMITS = {
    "builds": 8 * GIB,
    "preludes": 4 * GIB,
    "inductor": 8 * GIB,
    "graphs": GIB // 4,
    "baselines": GIB // 16,
}
"""Bytes that each folder of the cache may hold."""
KEEP_S = 600.0
"""Entries used this recently stay whatever the limit: another process may be reading them."""
TRIM_EVERY = 32
"""Entries put in per search for old ones, on average: the search looks at all of them."""
FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
"""Where a cache may only be read, as another user's."""
LEFTOVER_S = 24 * 3600.0
"""A temporary entry this old belongs to a process that was killed."""


TEMPORARY = ".*-*-????????"
"""Names of entries that are not whole yet, as `temporary_of` makes them."""


def cache_root() -> Path:
    """$WARPSMITH_CACHE, else the user's cache folder."""
    base = os.environ.get("WARPSMITH_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "warpsmith"


def read_json(path: Path) -> Any:
    """What `write_json` kept there; None for a miss."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    _used(path)
    return value


def _used(path: Path) -> None:
    """Note that, where it may be noted: a cache may be another user's, or on a read-only disk."""
    with contextlib.suppress(OSError):
        os.utime(path)


def keep_json(path: Path, value: Any) -> None:
    """Keep what can be had again in a cache; what is full, or may only be read, keeps it to this
    process.
    """
    try:
        write_json(path, value)
    except OSError as error:
        if error.errno not in (*FULL, *FORBIDDEN):
            raise
        logger.warning("%s: is not kept (%s)", path, error.strerror)


def write_json(path: Path, value: Any) -> None:
    """Keep a value in a cache, whose size is held to its limit."""
    write_text(path, json.dumps(value))
    limit = LIMITS.get(path.parent.name)
    if limit is not None:
        Shelf(path.parent, limit).tidy()


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Replace a file as a whole; readers see the old one or the new one, never a part. `errors`:
    of what UTF-8 has no bytes for, as `open` has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    with on_failure(lambda: temporary.unlink(missing_ok=True)):
        temporary.write_text(text, encoding="utf-8", errors=errors)
        temporary.replace(path)


def temporary_of(path: Path) -> Path:
    """A new hidden name beside `path`, for an entry that is not whole yet."""
    return path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of one entry; other processes and threads that ask for it wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def hold(path: Path) -> IO[str] | None:
    """The open file of a lock that nobody else holds; None where somebody does, or removed it."""
    file = open(path, "a")  # noqa: SIM115  held until it is closed
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
    except OSError:
        pass
    file.close()
    return None


def idle(path: Path) -> bool:
    """Whether nobody holds this lock."""
    with contextlib.suppress(OSError), open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@dataclass(frozen=True)
class Shelf:
    """One folder of the cache whose entries, files or folders, are together limited in size."""

    folder: Path
    limit_bytes: int

    def find(self, name: str) -> Path | None:
        """The entry, now the one used last; None for a miss."""
        path = self.folder / name
        _used(path)
        return path if path.exists() else None

    def put(self, name: str, made: Path) -> Path:
        """Move a finished entry in, made beside it by `temporary_of`; the first of two stays."""
        target = self.folder / name
        try:
            made.rename(target)
        except OSError:
            if not target.exists():
                raise
            discard(made)
        self.tidy()
        return target

    def tidy(self) -> None:
        """Now and then, `trim`; where another user's files or a full disk forbid it, not now."""
        if secrets.randbelow(TRIM_EVERY) == 0:
            try:
                self.trim()
            except OSError as error:
                logger.warning("%s: old entries are not removed (%s)", self.folder, error)

    def trim(self) -> None:
        """Remove the entries used longest ago until the rest fits, and leftovers of the dead."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder.with_name(f".{self.folder.name}.lock")):
            now = time.time()
            entries = []
            for path in self.folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    used = path.stat().st_mtime
                    if not path.name.startswith("."):
                        entries.append((used, bytes_of(path), path))
                    elif now - used > LEFTOVER_S and (path.suffix != ".lock" or idle(path)):
                        discard(path)
            total = sum(size for _, size, _ in entries)
            for used, size, path in sorted(entries):
                if total <= self.limit_bytes or now - used < KEEP_S:
                    return
                discard(path)
                total -= size


def bytes_of(path: Path) -> int:
    """Of a file, or of every file below a folder; what vanishes meanwhile counts nothing."""
    files = [path] if not path.is_dir() else path.rglob("*")
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            total += file.lstat().st_size
    return total


def discard(path: Path) -> None:
    """Remove a file or folder; it vanishes under its name at once."""
    dead = temporary_of(path)
    with contextlib.suppress(OSError):
        path.rename(dead)
        if dead.is_dir():
            shutil.rmtree(dead, ignore_errors=True)
        else:
            dead.unlink()
