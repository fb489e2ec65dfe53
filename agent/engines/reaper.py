"""Ends what Ray leaves behind on this machine, should the driver be killed.

Ray's processes die with the driver, except two agents of its raylet, which first try for a minute
to reach the dead cluster (seen with Ray 2.60). They hold logs in their session's folder; of their
environment the titles that they give themselves leave now more, now less.
This module also runs as the script that waits for our end: standard library only, to start fast.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 0.5
TITLE = b"ray::"
"""Of workers and agents; who reads the logs has another."""


class Reaper:
    """Kills the processes of a Ray session once this process has ended, or once it is closed."""

    def __init__(self, session: str) -> None:
        """`session`: its folder."""
        self.session = os.path.realpath(session)
        # -I: else this folder comes first on the path and agent/types.py poses as `types`.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.session],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        self._process.communicate()


def of_session(session: str) -> Iterator[int]:
    """Processes of this user with a title of Ray's that have files of the session open."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            titled = (folder / "cmdline").read_bytes().startswith(TITLE)
            ours = titled and any(file.startswith(f"{session}/") for file in _files(folder))
        except OSError:
            continue  # It has ended, or is another user's.
        if ours:
            yield int(folder.name)


def _files(process: Path) -> Iterator[str]:
    for file in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was closed meanwhile.
            yield os.readlink(file)


def main() -> None:
    sys.stdin.read()
    time.sleep(GRACE_S)
    for pid in of_session(sys.argv[1]):
        with contextlib.suppress(ProcessLookupError):  # It ended meanwhile; the others go on.
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
