"""Copies out of a folder that another process writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.machine.copying import copy_folder
from sandbox.machine.handle import remove_tree

LIMIT = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "from/inner").mkdir(parents=True)
    (tmp_path / "from/one").write_text("1")
    (tmp_path / "from/inner/two").write_text("22")
    return tmp_path


def test_regular_files_are_copied_and_links_and_pipes_are_not(source: Path) -> None:
    (source / "from/link").symlink_to("/etc/passwd")
    (source / "from/inner/elsewhere").symlink_to("/etc")
    os.mkfifo(source / "from/pipe")
    copy_folder(source, "from", source / "to", LIMIT)
    found = {str(p.relative_to(source / "to")) for p in (source / "to").rglob("*") if p.is_file()}
    assert found == {"one", "inner/two"}
    assert (source / "to/inner/two").read_text() == "22"


def test_names_that_end_as_is_said_are_left_out(source: Path) -> None:
    (source / "from/inner/one.best").write_text("1")
    copy_folder(source, "from", source / "to", LIMIT, without=(".best",))
    assert sorted(p.name for p in (source / "to").rglob("*")) == ["inner", "one", "two"]


def test_a_folder_behind_a_link_is_none(source: Path) -> None:
    (source / "linked").symlink_to(source / "from")
    with pytest.raises(OSError, match="linked"):
        copy_folder(source, "linked", source / "to", LIMIT)


def test_more_than_the_limit_is_refused(source: Path) -> None:
    with pytest.raises(ValueError, match="more than"):
        copy_folder(source, "from", source / "to", 2)


def test_what_is_named_by_its_content_is_copied_once_and_counts_as_used(source: Path) -> None:
    copy_folder(source, "from", source / "to", LIMIT)
    kept = source / "to/inner/two"
    kept.write_text("xx")
    os.utime(kept.parent, (1, 1))
    copy_folder(source, "from", source / "to", LIMIT, named_by_content=True)
    assert kept.read_text() == "xx"
    assert kept.parent.stat().st_mtime > 1
    (source / "from/inner/two").write_text("333")
    copy_folder(source, "from", source / "to", LIMIT, named_by_content=True)
    assert kept.read_text() == "333"
    kept.write_text("xxx")
    copy_folder(source, "from", source / "to", LIMIT)
    assert kept.read_text() == "333", "a name may be used again elsewhere"


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Nested deeper than Python's stack, as no path could name it."""
    root = tmp_path / "deep"
    root.mkdir()
    folder = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    return root


@pytest.mark.slow
def test_folders_nested_without_end_are_refused_and_removed(deep: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        copy_folder(deep, ".", tmp_path / "copy", LIMIT)
    remove_tree(deep)
    assert not deep.exists()
