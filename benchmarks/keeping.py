"""Results that are there whatever ends a run: a rented GPU goes back when its time is over."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from sandbox.cache import write_text
from sandbox.errors import WarpsmithError


def stop_cleanly() -> None:
    """From now on SIGTERM, which `timeout` and job schedulers send, ends this process as an
    exception does: results are kept and workers end. What a user can mend is told in one line.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, WarpsmithError):
        sys.stderr.write(f"{error}\n")
    else:
        sys.__excepthook__(kind, error, trace)


def header(benchmark: str) -> dict[str, str]:
    """What every record begins with: when it was made, and by which command."""
    command = ["python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]]
    return {"date": datetime.now(UTC).isoformat(), "command": shlex.join(command)}


def keep_json(path: Path, record: Any) -> None:
    """Replace the file as a whole: a run that is killed meanwhile leaves what it kept before."""
    write_text(path, json.dumps(record, indent=1) + "\n")
