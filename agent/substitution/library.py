"""A library as a user names it: a folder that `export` wrote, a package's folder, or an installed
package.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from sandbox.errors import ConfigError

EXPECTED = "expected what `export --format package` wrote, or the name of an installed library"


def find_library(given: str) -> dict[str, str]:
    """{"package": its import name, "path": what must be on sys.path, or ""}; imports nothing.

    Raises ConfigError.
    """
    folder = Path(given)
    if folder.is_dir():
        return _in_folder(folder)
    if folder.exists() or "/" in given:
        raise ConfigError(f"{given}: no folder; {EXPECTED}")
    try:
        spec = importlib.util.find_spec(given)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ConfigError(f"{given}: no folder and no installed package; {EXPECTED}")
    if not (Path(spec.origin).parent / "library.json").is_file():
        raise ConfigError(f"{given}: a package, but no library of kernels; {EXPECTED}")
    return {"package": given, "path": ""}


def _in_folder(folder: Path) -> dict[str, str]:
    root = folder.resolve()
    for tree in (root, root.parent, root / "source"):
        inner = [root] if tree == root.parent else sorted(p for p in tree.glob("*") if p.is_dir())
        for package in inner:
            if (package / "library.json").is_file():
                return {"package": _name(package / "library.json"), "path": str(package.parent)}
    raise ConfigError(f"{folder}: no library in it; {EXPECTED}")


def _name(record: Path) -> str:
    try:
        return str(json.loads(record.read_text())["package"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{record}: missing or damaged; export the library again") from error


def import_library(found: dict[str, str]) -> Any:
    """The package; raises ConfigError where it does not load or is of another version."""
    if found["path"]:
        sys.path.insert(0, found["path"])
    try:
        package = importlib.import_module(found["package"])
    except Exception as error:  # whatever a package raises when it is imported
        raise ConfigError(f"{found['package']}: cannot be imported: {error}") from error
    if not hasattr(package, "patch"):
        raise ConfigError(f"{found['package']}: it cannot patch models; export it again")
    return package
