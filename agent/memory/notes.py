"""A technique note: what bounded a task, what its kernel does, what was measured. And their file.

JSON lines, appended under a lock, one line per confirmed win; a line that cannot be read is left
out. A note holds names from closed lists and figures, never words of a reply; the kernel's source
is there only where the settings allow it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from sandbox.errors import ConfigError, unread
from sandbox.figures import Interval
from sandbox.records import from_record, to_record
from sandbox.types import Language

log = logging.getLogger(__name__)
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Memory:
    """Settings (`memory:` in a config); without them nothing is recalled and nothing written."""

    file: str
    recalled: int = 3
    """Notes that a prompt shows, at most."""
    write: bool = True
    """Add this campaign's confirmed wins when it ends."""
    sources: bool = False
    """Notes carry their kernel, and a prompt shows that of its first note."""
    held_out: tuple[str, ...] = ("kernelbench*",)
    """Patterns of task ids whose kernels are neither written nor shown."""
    held_out_sources: bool = False
    """Allows them all the same: what is found then is no longer held out."""

    def __post_init__(self) -> None:
        if not self.file or self.recalled < 0:
            raise ValueError("expected a file's name and recalled of 0 or more")

    def shows_source(self, task_id: str) -> bool:
        """Whether a task's kernel may be kept and shown."""
        held_out = any(fnmatchcase(task_id, pattern) for pattern in self.held_out)
        return self.sources and (self.held_out_sources or not held_out)


@dataclass(frozen=True)
class Note:
    """One confirmed win."""

    id: str
    """Equal for the same candidate, confirmed on the same kind of machine."""
    task_id: str
    task_hash: str
    operators: tuple[str, ...]
    """Of the reference."""
    device: str
    hardware: str
    dtype: str
    language: Language
    bottleneck: str
    """Of the reference in eager mode."""
    techniques: tuple[str, ...]
    """That its source shows."""
    feature: str
    """That the question asked for; empty where it named none."""
    speedup: Interval
    """Confirmed, against eager."""
    over_parent: float | None = None
    """Ratio of confirmed speedups; None where no parent was confirmed."""
    roofline: float | None = None
    """Share of it that the kernel reached."""
    source: str | None = None
    schema_version: int = SCHEMA_VERSION


def read_notes(path: Path) -> list[Note]:
    """All notes, oldest first; none where there is no file. Raises ConfigError where it cannot be
    read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the memory file cannot be read ({unread(error)})") from error
    # Not splitlines: a kernel may hold U+2028 and its like, which are not escaped.
    lines = [line for line in text.split("\n") if line.strip()]
    found = (note_of(line) for line in lines)
    notes = [note for note in found if note is not None]
    if lines and not any(map(_is_record, lines)):
        raise ConfigError(f"{path}: holds no notes, and none are added to it; name another file")
    if len(notes) < len(lines):
        log.warning("%s: %d lines are no notes", path, len(lines) - len(notes))
    return notes


def note_lines(settings: Memory) -> list[str]:
    """The file's notes as a journal keeps them; without the kernels that may not be shown. Raises
    ConfigError where there is no file, and none is to be made.
    """
    file = Path(settings.file)
    if not settings.write and not file.exists():
        raise ConfigError(f"{file}: no such memory file, and with write: false none is made")
    notes = read_notes(file)
    return [
        line_of(note if settings.shows_source(note.task_id) else replace(note, source=None))
        for note in notes
    ]


def note_of(line: str) -> Note | None:
    try:
        record = json.loads(line)
        if record["schema_version"] > SCHEMA_VERSION:
            return None
        return from_record(Note, record)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_record(line: str) -> bool:
    """A note's, of this version or a newer one."""
    try:
        return "schema_version" in json.loads(line)
    except (ValueError, TypeError):
        return False


def line_of(note: Note) -> str:
    return json.dumps(to_record(note), sort_keys=True, ensure_ascii=False)


def append_notes(path: Path, notes: Sequence[Note]) -> int:
    """Add those that the file lacks; returns how many. Raises ConfigError where it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            known = {note.id for note in read_notes(path)}
            fresh = {note.id: note for note in notes if note.id not in known}
            if stream.tell() and not _ends_a_line(path):  # Torn by a kill or a full disk.
                stream.write("\n")
            stream.write("".join(f"{line_of(note)}\n" for note in fresh.values()))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: the memory file cannot be written ({error})") from error
    return len(fresh)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"
