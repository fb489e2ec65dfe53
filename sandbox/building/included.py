"""Folders of headers that an extension names, beside those of the toolchain: which files they held
when a library was built, so that it is built again once they are others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from sandbox.building.toolchain import nvcc
from sandbox.types import digest

MOST_FILES = 50_000
"""In all of them; of more nothing is told, and what is built with them serves one run."""
UNKNOWN = ""


def included(items: Iterable[Mapping[str, Any]], scratch: Path) -> dict[str, str]:
    """What is in the folders that a build process says its extensions name, less the toolchain's
    and what it wrote itself, which its source says.
    """
    known = [Path(torch.__file__).parent, Path(nvcc()).parents[1], scratch]
    named = sorted({str(path) for item in items for path in item.get("includes", ())})
    own = [f for f in map(Path, named) if f.is_absolute() and not any(map(f.is_relative_to, known))]
    return _held(own)


def unchanged(known: Mapping[str, str]) -> bool:
    """Whether these folders hold what they held."""
    return UNKNOWN not in known.values() and _held(map(Path, known)) == known


def _held(folders: Iterable[Path]) -> dict[str, str]:
    """Of each a digest of the place, size and time of change of every file below it."""
    found, left = {}, MOST_FILES
    for folder in folders:
        files = list(islice(_files(folder), left + 1))
        left -= len(files)
        found[str(folder)] = UNKNOWN if left < 0 else digest(sorted(files))
        if left < 0:
            break
    return found


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # not there, or not to be read: by the compiler neither
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.is_file():
            state = entry.stat()
            yield entry.path, state.st_size, state.st_mtime_ns
