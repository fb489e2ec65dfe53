"""A local checkout of KernelBench (Ouyang et al. 2025) -> Tasks, ids `kernelbench/level1/19_ReLU`.

Every version keeps `level1/19_ReLU.py` under `KernelBench/`, older ones also one folder deeper.
Scores are not comparable across versions: record `checkout_version` beside them. It says nothing
about uncommitted changes; `Task.hash` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelbench.problem import given_task, read_problem
from kernelbench.selection import LEVELS, Entry, Selection
from sandbox.errors import TaskError
from sandbox.types import Task

COMMIT = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True)
class ProblemFile(Entry):
    path: Path


def checkout_tasks(root: Path, selection: Selection, device: str, dtype: str | None) -> list[Task]:
    """The selected problems; TaskError where the folder is no checkout or a file no problem."""
    files = _problem_files(levels_folder(root))
    chosen = selection.pick(files, str(root))
    return [given_task(f.task_id, read_problem(f.path), device, dtype) for f in chosen]


def levels_folder(root: Path) -> Path:
    """The folder that holds level1, level2, ...: the root itself or up to two folders below it."""
    for folder in (root, root / "KernelBench", root / "KernelBench" / "KernelBench"):
        if any((folder / f"level{level}").is_dir() for level in LEVELS):
            return folder
    if re.fullmatch(r"level\d+", root.name) and root.is_dir():
        raise TaskError(f"{root} is one level; write kernelbench:{root.parent}:{root.name}")
    what = "has no level1 folder" if root.is_dir() else "is not a folder"
    raise TaskError(f"{root} {what}; expected the root of a KernelBench checkout")


def checkout_version(root: Path) -> str | None:
    """The commit that a checkout's HEAD names, read without git; None if it is no repository.

    A repository further out does not count: its commit says nothing about a vendored copy.
    """
    folder = levels_folder(root)
    for parent in (folder, folder.parent, folder.parent.parent):
        git = parent / ".git"
        if git.is_dir():
            return _head(git)
        if git.is_file():  # a worktree or submodule: "gitdir: PATH"
            return _head(parent / _text(git).removeprefix("gitdir:").strip())
    return None


def _problem_files(folder: Path) -> Iterator[ProblemFile]:
    for level in LEVELS:
        for path in (folder / f"level{level}").glob("*.py"):
            match = re.match(r"(\d{1,6})_", path.name, flags=re.ASCII)
            if match is not None:
                yield ProblemFile(level, int(match[1]), path.stem, path)


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD")
    if COMMIT.fullmatch(head):
        return head
    name = head.removeprefix("ref:").strip()
    shared = _text(git / "commondir")  # a worktree keeps its branches in the main repository
    common = git / shared if shared else git
    loose = _text(common / name)
    if COMMIT.fullmatch(loose):
        return loose
    lines = (line.split() for line in _text(common / "packed-refs").splitlines())
    return next((words[0] for words in lines if words[1:] == [name]), None)


def _text(path: Path) -> str:
    """The file's stripped text; empty if it is not there."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""
