"""Folders of headers that extensions name: whether they hold what they held."""

import os
from pathlib import Path

import pytest
import torch

from sandbox.building.included import UNKNOWN, included, unchanged


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "headers"
    (found / "below").mkdir(parents=True)
    for name in ("a.h", "b.h", "below/c.h"):
        (found / name).write_text("1")
    return found


def told(*folders: Path | str) -> dict[str, str]:
    return included([{"includes": [str(f) for f in folders]}, {}], Path("/nowhere"))


def test_a_file_that_comes_goes_or_changes_is_seen(folder: Path) -> None:
    known = told(folder)
    assert unchanged(known)
    (folder / "below" / "c.h").write_text("2 and more")
    assert not unchanged(known)
    known = told(folder)
    (folder / "a.h").unlink()
    assert not unchanged(known)
    known = told(folder)
    os.utime(folder / "b.h", (1, 1))
    assert not unchanged(known)
    assert unchanged({})


def test_a_folder_that_is_not_there_may_come(folder: Path) -> None:
    known = told(folder / "later")
    assert unchanged(known)
    (folder / "later").mkdir()
    (folder / "later" / "a.h").write_text("")
    assert not unchanged(known)


def test_the_toolchains_headers_and_the_candidates_own_are_told_by_other_means(
    folder: Path,
) -> None:
    named = [str(Path(torch.__file__).parent / "include"), str(folder / "below"), "relative"]
    assert included([{"includes": named}], folder) == {}


def test_what_is_too_much_to_look_at_is_never_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.building.included.MOST_FILES", 2)
    known = told(folder, "/usr/include")
    assert UNKNOWN in known.values()
    assert not unchanged(known)
