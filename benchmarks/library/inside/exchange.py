"""What the process says, a line of JSON each."""

from __future__ import annotations

import json
from typing import Any

MARK = "CHECK "
"""Begins such a line: a library's own code may print, too."""


def say(**fields: Any) -> None:
    print(f"\n{MARK}{json.dumps(fields)}", flush=True)


def told(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines() or [""]
    return f"{type(failure).__name__}: {lines[0][:300]}"
