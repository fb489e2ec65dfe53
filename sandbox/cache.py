"""Where facts, baselines, traces and builds are kept between runs; JSON files that may be lost at
any time.

A file that cannot be read or does not parse is a miss. Keys include everything a value depends on.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def cache_root() -> Path:
    """$WARPSMITH_CACHE, else the user's cache folder."""
    base = os.environ.get("WARPSMITH_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "warpsmith"


def read_json(path: Path) -> Any:
    """What `write_json` kept there; None for a miss."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Keep a value; readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)
