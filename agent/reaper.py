"""Ends the processes of a Ray that we started, should we be killed.

Ray's processes die with the driver, except two agents of its raylet, which first try for a minute
to reach the dead cluster (seen with Ray 2.60). This module also runs as the script that waits for
our end; standard library only, since it must start fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

GRACE_S = 0.5


class Reaper:
    """Kills the watched processes once this one has ended, or once it is closed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],  # -I: agent/types.py is not `types`
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pids: Iterable[int]) -> None:
        """Add processes to those that end with this one."""
        lines = "".join(f"{pid} {start_time(pid)}\n" for pid in pids)
        assert self._process.stdin is not None
        self._process.stdin.write(lines.encode())
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate()


def start_time(pid: int) -> str | None:
    """Ticks from boot to the start of a process (proc(5), field 22): tells reused pids apart."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


def main() -> None:
    watched = {line.strip() for line in sys.stdin}
    time.sleep(GRACE_S)
    for line in watched:
        pid, started = line.split()
        if start_time(int(pid)) == started:
            os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main()
