"""The command line as a user calls it: `warpsmith` in a process and a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

COMMAND = [sys.executable, str(Path(__file__).parents[1] / "warpsmith.py")]
PROTOCOL = """\
baselines: []
rounds: 4
batch_ms: 4
max_sets: 16
min_pairs: 3
max_pairs: 3
run_timeout_s: 20
load_timeout_s: 20
build_timeout_s: 60
"""
"""A YAML file for --preset: a verdict in seconds, enough pairs for a win, figures that say little."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def environment_of(folder: Path, **variables: str) -> dict[str, str]:
    """Builds and measurements are made anew, and one thread each: two spin on a busy machine."""
    return os.environ | {"WARPSMITH_CACHE": str(folder / "cache"), **variables}


def one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Done:
    """One command line, to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment_of(folder, **(environment or {})),
        preexec_fn=one_core,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
