"""Copies out of a folder that hostile code writes: no link followed, nothing that blocks, bounded.

The supervisor may be root: a link planted in a scratch folder would otherwise hand its files out,
and a named pipe would hang it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.cache import temporary_of

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
MAX_FILES = 10_000
MAX_DEPTH = 32


@contextmanager
def opened_folder(root: Path, place: str) -> Iterator[int]:
    """A descriptor of `root/place`; raises OSError where any part below `root` is no folder."""
    folder = os.open(root, FOLDER)
    try:
        for part in Path(place).parts:
            inner = os.open(part, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def read_regular(folder: int, name: str, limit_bytes: int) -> bytes:
    """The contents of a regular file in an open folder.

    Raises ValueError where it is none or is larger than `limit_bytes`.
    """
    fd = os.open(name, FILE, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise ValueError(f"{name!a} is no regular file")
        found = file.read(limit_bytes + 1)
        if len(found) > limit_bytes:
            raise ValueError(f"{name!a} has more than {limit_bytes} bytes")
        return found


def copy_folder(
    root: Path,
    place: str,
    target: Path,
    limit_bytes: int,
    *,
    named_by_content: bool = False,
    without: tuple[str, ...] = (),
    since_s: float = 0.0,
) -> None:
    """Copy the regular files of `root/place` to `target`; links, empty folders and other things are
    left out.

    `named_by_content`: one of the same name and size is there already, and is not copied again.
    `without`: what ends so is left out, and `since_s`: what was last written before that Unix time.
    Raises ValueError beyond `limit_bytes`, MAX_FILES or MAX_DEPTH, OSError where there is no such
    folder.
    """
    count = 0
    with opened_folder(root, place) as folder:
        for path, _, names, inner in os.fwalk(".", dir_fd=folder):
            if path.count("/") > MAX_DEPTH:
                raise ValueError(f"folders are nested deeper than {MAX_DEPTH}")
            for name in names:
                count += 1
                if count > MAX_FILES:
                    raise ValueError(f"more than {MAX_FILES} files")
                seen = os.lstat(name, dir_fd=inner)
                old = seen.st_mtime < since_s
                if not stat.S_ISREG(seen.st_mode) or old or name.endswith(without):
                    continue
                if named_by_content and size_of(target / path / name) == seen.st_size:
                    os.utime(target / path)  # it is in use, like one that was copied
                    continue
                found = read_regular(inner, name, limit_bytes)
                limit_bytes -= len(found)
                (target / path).mkdir(parents=True, exist_ok=True)
                # Whole or not at all: other processes may copy to, and read, the same folder.
                temporary = temporary_of(target / path / name)
                temporary.write_bytes(found)
                temporary.replace(target / path / name)


def size_of(path: Path) -> int | None:
    """In bytes; None where there is no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
