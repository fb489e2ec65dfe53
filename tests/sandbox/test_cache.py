"""Folders of the cache stay within their limits, also under several processes at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.cache import (
    KEEP_S,
    LEFTOVER_S,
    Shelf,
    keep_json,
    locked,
    read_json,
    temporary_of,
    write_json,
)

PROCESSES = multiprocessing.get_context("spawn")


def entry(shelf: Shelf, name: str, size: int, age_s: float) -> Path:
    made = temporary_of(shelf.folder / name)
    made.mkdir(parents=True)
    (made / "file").write_bytes(b"x" * size)
    used = time.time() - age_s
    os.utime(made, (used, used))  # not later: another process may have trimmed it by then
    return shelf.put(name, made)


def test_the_entries_used_longest_ago_leave_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.cache.TRIM_EVERY", 1 << 30)  # only when it is asked to
    shelf = Shelf(tmp_path / "shelf", 2500)
    for age, name in enumerate(("newest", "middle", "oldest")):
        entry(shelf, name, 1000, KEEP_S + 100 * (age + 1))
    assert shelf.find("oldest") is not None  # now used last
    shelf.trim()
    assert sorted(p.name for p in shelf.folder.iterdir()) == ["newest", "oldest"]


def test_a_full_disk_keeps_nothing_and_fails_nothing_that_can_be_had_again(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "warpsmith-test", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        keep_json(tmp_path / "small.json", 1)
        keep_json(tmp_path / "large.json", "x" * (1 << 20))
        with pytest.raises(OSError, match="No space left"):
            write_json(tmp_path / "large.json", "x" * (1 << 20))
        assert [path.name for path in tmp_path.iterdir()] == ["small.json"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_is_kept_is_kept_where_old_entries_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.cache.TRIM_EVERY", 1)
    for name in ("builds", "baselines"):  # locks that cannot be opened, as another user's cannot
        (tmp_path / f".{name}.lock").mkdir()
    assert entry(Shelf(tmp_path / "builds", 10), "made", 1000, 0).is_dir()
    write_json(tmp_path / "baselines" / "one.json", 1)
    assert read_json(tmp_path / "baselines" / "one.json") == 1


def test_an_entry_in_use_stays_whatever_the_limit(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", 10)
    entry(shelf, "now", 1000, 0)
    shelf.trim()
    assert shelf.find("now") is not None


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", 10)
    shelf.folder.mkdir()
    for name, age in ((".half-1-aa", LEFTOVER_S + 60), (".half-2-bb", 60)):
        (shelf.folder / name).mkdir()
        used = time.time() - age
        os.utime(shelf.folder / name, (used, used))
    shelf.trim()
    assert [p.name for p in shelf.folder.iterdir()] == [".half-2-bb"]


def test_the_first_of_two_equal_entries_stays_and_nothing_is_left_of_the_second(
    tmp_path: Path,
) -> None:
    shelf = Shelf(tmp_path / "shelf", 1 << 20)
    for text in ("first", "second"):
        made = temporary_of(shelf.folder / "same")
        made.mkdir(parents=True)
        (made / "file").write_text(text)
        kept = shelf.put("same", made)
    assert (kept / "file").read_text() == "first"
    assert [p.name for p in shelf.folder.iterdir()] == ["same"]


def fill(folder: str, writer: int) -> None:
    shelf = Shelf(Path(folder), 20_000)
    for number in range(40):
        entry(shelf, f"{(writer + number) % 25}", 1000, KEEP_S + number)
        shelf.trim()
        found = shelf.find(str(number % 25))
        if found is not None:
            with contextlib.suppress(FileNotFoundError):  # gone whole, between two looks
                assert (found / "file").stat().st_size == 1000


def test_several_processes_fill_read_and_trim_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shelf"
    writers = [PROCESSES.Process(target=fill, args=(str(folder), n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert not list(folder.glob(".*"))
    shelf = Shelf(folder, 5_000)
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    shelf.trim()
    assert len(list(folder.iterdir())) == 5


def hold(path: str, log: str) -> None:
    with locked(Path(path)):
        for word in ("in", "out"):
            with open(log, "a") as file:
                file.write(word + "\n")
            time.sleep(0.05)


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 77
exec "$2" -c '
import sys
from pathlib import Path
from sandbox.cache import Shelf, read_json
folder = Path(sys.argv[1])
print(read_json(folder / "value.json"), Shelf(folder, 1).find("entry"), Shelf(folder, 1).find("no"))
' "$1"
"""


def test_a_cache_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "value.json", 5)
    found = entry(Shelf(tmp_path, 100), "entry", 40, age_s=3600)
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    done = subprocess.run(
        [*namespace, "sh", "-c", READ_ONLY, "sh", str(tmp_path), sys.executable],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    if "Traceback" not in done.stderr and done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert done.stdout.split() == ["5", str(found), "None"], done.stderr


def test_a_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    lock, log = str(tmp_path / "lock"), str(tmp_path / "log")
    holders = [PROCESSES.Process(target=hold, args=(lock, log)) for _ in range(3)]
    for holder in holders:
        holder.start()
    for holder in holders:
        holder.join(60)
    assert Path(log).read_text().split() == ["in", "out"] * 3


def test_json_entries_are_limited_too(tmp_path: Path) -> None:
    folder = tmp_path / "graphs"
    for number in range(6):
        write_json(folder / f"{number}.json", "x" * 1000)
        os.utime(folder / f"{number}.json", (number, number))
    assert read_json(folder / "0.json") == "x" * 1000  # now used last
    Shelf(folder, 3500).trim()
    assert sorted(p.name for p in folder.iterdir()) == ["0.json", "4.json", "5.json"]
