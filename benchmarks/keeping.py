"""Results that are there whatever ends a run: a GPU is lent for minutes, and then gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandbox.cache import write_text


def keep_json(path: Path, record: Any) -> None:
    """Replace the file as a whole: a run that is killed meanwhile leaves what it kept before."""
    write_text(path, json.dumps(record, indent=1) + "\n")
