"""Ends what Ray leaves behind on this machine, should the driver be killed.

Ray's processes die with the driver, except two agents of its raylet, which first try for a minute
to reach the dead cluster (seen with Ray 2.60). They carry their node's id in their environment.
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


class Reaper:
    """Kills the processes of a Ray node once this process has ended, or once it is closed."""

    def __init__(self, node_id: str) -> None:
        # -I: else this folder comes first on the path and agent/types.py poses as `types`.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, node_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        self._process.communicate()


def of_node(node_id: str) -> Iterator[int]:
    """Processes of this user that Ray started for the node."""
    mark = f"RAY_NODE_ID={node_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # It has ended, or is another user's.
        if mark in variables:
            yield int(folder.name)


def main() -> None:
    sys.stdin.read()
    time.sleep(GRACE_S)
    for pid in of_node(sys.argv[1]):
        with contextlib.suppress(ProcessLookupError):  # It ended meanwhile; the others go on.
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
