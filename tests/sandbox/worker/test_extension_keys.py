"""Which calls of an extension's builder share a library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox.worker.extension_keys import Keys

SOURCE = "int one() { return 1; }"


def inline(folder: Path, name: str, source: str = SOURCE, **options: Any) -> str:
    return Keys(folder).key("load_inline", (name, source), options)


def test_name_place_and_folder_of_a_process_do_not_matter(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    flags = [f"-I{first}/include"], [f"-I{second}/include"]
    found = inline(first, "own_17", build_directory=str(first), extra_cflags=flags[0])
    assert found == inline(second, "own_18", build_directory=str(second), extra_cflags=flags[1])
    named = Keys(second).key("load_inline", (), {"name": "x", "cpp_sources": SOURCE})
    assert named == inline(first, "own_17")


@pytest.mark.parametrize(
    "other",
    [
        {"source": SOURCE.replace("1", "2")},
        {"functions": ["one"]},
        {"extra_cflags": ["-O3"]},
        {"with_cuda": True},
    ],
)
def test_what_is_compiled_does(tmp_path: Path, other: dict[str, Any]) -> None:
    assert inline(tmp_path, "a", **other) != inline(tmp_path, "a")


def test_equal_calls_of_other_names_in_one_process_stay_apart(tmp_path: Path) -> None:
    """Such as variants that differ by a header or by the environment."""
    here, there = Keys(tmp_path), Keys(tmp_path / "elsewhere")
    calls = [here.key("load_inline", (name, SOURCE), {}) for name in ("k1", "k2", "k1")]
    assert calls[0] == calls[2] != calls[1]
    assert calls[:2] == [there.key("load_inline", (n, SOURCE), {}) for n in ("k1_9", "k2_9")]


def test_files_count_by_their_contents(tmp_path: Path) -> None:
    found = []
    for folder, text in (("a", SOURCE), ("b", SOURCE), ("c", SOURCE + "\n")):
        path = tmp_path / folder / "own.cpp"
        path.parent.mkdir()
        path.write_text(text)
        for sources in (str(path), [str(path)]):
            found.append(Keys(tmp_path).key("load", ("x",), {"sources": sources}))
    assert found[0] == found[1] == found[2] == found[3] != found[4]
    missing = Keys(tmp_path).key("load", ("x", [str(tmp_path / "none.cpp")]), {})
    assert missing not in found


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {}", {}),
        (SOURCE, {"is_python_module": False}),
        ('#include "cols.h"\n' + SOURCE, {}),
        ("#include <cols.h>\n" + SOURCE, {"extra_include_paths": ["/tmp/made"]}),
    ],
)
def test_who_is_found_by_its_name_keeps_it(
    tmp_path: Path, source: str, options: dict[str, Any]
) -> None:
    assert inline(tmp_path, "a", source, **options) != inline(tmp_path, "b", source, **options)
    assert inline(tmp_path, "a", source, **options) == inline(tmp_path, "a", source, **options)
