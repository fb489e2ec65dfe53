"""Which calls of `load_inline` and `load` are the same one in every process that runs a source."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

SCHEME = 6
"""How keys and libraries are made: what was kept under another one is built anew."""
FIRST = {
    "load_inline": ("name", "cpp_sources", "cuda_sources"),
    "load": ("name", "sources"),
}
"""Names of the arguments that are given by position."""
PROCESSES_OWN = {"name", "build_directory"}
INCLUDES = re.compile(r'#\s*include\s*\\"')
"""Of a file that may be the candidate's, in JSON."""
REGISTERS = "TORCH_LIBRARY"
"""In a source that gives torch operators a name, which may be the extension's."""


class Keys:
    """Of one process: equal keys compile to equal libraries on one toolchain.

    Left out is what is a process's own: its folder, where the library is to lie, and the name,
    into which some write the process's number. Of calls that are equal but for their names the
    first, the second and so on have keys of their own. Files of `load` count by their contents.
    Where files are included, which may be others each time, the name tells calls apart.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, list[str]] = {}

    def key(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
        named = {**dict(zip(FIRST[kind], arguments, strict=False)), **options}
        rest = arguments[len(FIRST[kind]) :]
        kept = {key: value for key, value in named.items() if key not in PROCESSES_OWN}
        if "sources" in named:
            paths = named["sources"]
            paths = [paths] if isinstance(paths, str) else list(paths)
            kept["sources"] = [[Path(str(path)).name, _text(path)] for path in paths]
        name = str(named.get("name"))
        text = json.dumps([kind, rest, kept], sort_keys=True, default=str)
        text = text.replace(str(self.folder), "")
        named_for = REGISTERS in text or named.get("is_python_module") is False
        if named_for or named.get("extra_include_paths") or INCLUDES.search(text):
            return _hash(text, name)  # who loads such a one asks for it by its name
        names = self._names.setdefault(_hash(text), [])
        if name not in names:
            names.append(name)
        return _hash(text, str(names.index(name)))


def _hash(*words: str) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _text(path: Any) -> str:
    """Of a source file; empty where there is none: torch will say so."""
    try:
        return Path(str(path)).read_text(errors="replace")
    except OSError:
        return ""
