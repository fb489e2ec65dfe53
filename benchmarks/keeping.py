"""Results that are there whatever ends a run: a GPU is lent for minutes, and then gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandbox.cache import temporary_of


def keep(path: Path, text: str) -> None:
    """Replace the file as a whole: a run that is killed meanwhile leaves what it kept before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(path)
    temporary.write_text(text)
    temporary.replace(path)


def keep_json(path: Path, record: Any) -> None:
    keep(path, json.dumps(record, indent=1) + "\n")
