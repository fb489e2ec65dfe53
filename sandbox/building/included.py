"""Folders of headers that an extension names, beside those of the toolchain: which files they held
when a library was built, so that it is built again once they are others.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sandbox.building.toolchain import nvcc
from sandbox.types import digest

MOST_FILES = 50_000
"""Of a folder; of one with more nothing is told, and each time it is another."""
MOST_FOLDERS = 64


def included(items: Iterable[Mapping[str, Any]], scratch: Path) -> dict[str, str]:
    """What is in the folders that a build process says its extensions name, less the toolchain's
    and what it wrote itself, which its source says.
    """
    known = [Path(torch.__file__).parent, Path(nvcc()).parents[1], scratch]
    named = {str(path) for item in items for path in item.get("includes", ())}
    folders = [Path(name) for name in sorted(named)[:MOST_FOLDERS]]
    own = [f for f in folders if f.is_absolute() and not any(map(f.is_relative_to, known))]
    return {str(folder): contents(folder) for folder in own}


def unchanged(known: Mapping[str, str]) -> bool:
    """Whether these folders hold what they held."""
    return all(contents(Path(folder)) == held for folder, held in known.items())


def contents(folder: Path) -> str:
    """Of every file below: its place, size and time of change."""
    found: list[tuple[str, int, int]] = []
    for entry in _files(folder):
        if len(found) == MOST_FILES:
            return secrets.token_hex(8)
        state = entry.stat()
        found.append((entry.path, state.st_size, state.st_mtime_ns))
    return digest(sorted(found))


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # not there, or not to be read: by the compiler neither
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.is_file():
            yield entry
