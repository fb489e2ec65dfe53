"""Work on a user's model in a process of its own: it may crash, hang, print or exit.

The child is `python -m MODULE`; it reads one JSON request and writes one JSON reply. An error it
tells is the caller's ConfigError, in one line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox.errors import ConfigError, WarpsmithError
from sandbox.walls.privileges import die_with


def ask(module: str, about: str, request: dict[str, Any], timeout_s: float) -> Any:
    """The child's reply; raises ConfigError where it fails, with `about` in front."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    try:
        child = subprocess.run(
            [sys.executable, "-m", module, str(os.getpid())],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # whatever the user's code prints
            timeout=timeout_s,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{about}: no end within {timeout_s:g} s; use smaller inputs") from error
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise ConfigError(f"{about}: its process was ended by {name}")
    try:
        reply = json.loads(child.stdout)
    except ValueError as error:
        last = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise ConfigError(f"{about}: its process ended without a result: {last}") from error
    if "error" in reply:
        raise ConfigError(reply["error"])
    return reply["found"]


def answer(work: Callable[[dict[str, Any]], Any]) -> None:
    """What the child's main does: one request, one reply, nothing else on stdout."""
    die_with(int(sys.argv[1]))
    # Whatever the user's code prints, from C as well, must not get into the reply.
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    try:
        reply: dict[str, Any] = {"found": work(request)}
    except WarpsmithError as error:
        reply = {"error": str(error)}
    json.dump(reply, stream)
    stream.flush()
