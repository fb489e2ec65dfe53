"""What a worker's process tree holds in files: on the disk, and in memory that no process maps.

Limits on resident memory and on the size of one file leave both open: sixty files of a gigabyte
fill a disk, sixty `memfd`s the host's memory. Not seen: files on their way through a socket.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the filesystem (stat(2))."""
MEMORY_FILE = "/memfd:"
DELETED = " (deleted)"


def memory_file_bytes(pids: Iterable[int]) -> int:
    """Memory behind the `memfd`s that these processes hold, mapped or not; each counts once."""
    return sum(dict(_open_files(pids, in_memory=True)).values())


class Disk:
    """The disk use of one worker, walked only once that much is gone from the filesystem."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._free_at_start = _free_bytes(scratch)

    def exceeds(self, limit_bytes: int, pids: Callable[[], Iterable[int]]) -> int | None:
        """Bytes the worker keeps on the disk, where they are more than the limit."""
        if self._free_at_start - _free_bytes(self._scratch) <= limit_bytes:
            return None
        files = dict(_open_files(pids(), in_memory=False)) | dict(_files_below(self._scratch))
        used = sum(files.values())
        return used if used > limit_bytes else None


def _free_bytes(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0  # the folder is gone: nothing can be written to it
    return found.f_bfree * found.f_frsize


def _files_below(folder: Path) -> Iterator[tuple[tuple[int, int], int]]:
    """(device, inode) and bytes of every file; what vanishes meanwhile is left out."""
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            yield (found.st_dev, found.st_ino), found.st_blocks * BLOCK_BYTES


def _open_files(pids: Iterable[int], *, in_memory: bool) -> Iterator[tuple[tuple[int, int], int]]:
    """Files without a name that the processes hold open: `memfd`s, or deleted ones on a disk."""
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue  # it has ended, or is not ours to look at
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                target = os.readlink(path)
                if not target.endswith(DELETED):
                    continue
                if target.startswith(MEMORY_FILE) is in_memory:
                    found = os.stat(path)
                    yield (found.st_dev, found.st_ino), found.st_blocks * BLOCK_BYTES
            except OSError:
                continue  # closed meanwhile
