"""Runs of a module's `main`, each in a process of its own that may be killed at any moment: forked
from one that has imported what they need, so that a kill meets a campaign and no import, for
seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK_S = 0.01


class Killable:
    """Of one module, until the block ends."""

    def __init__(self, module: str, **variables: str) -> None:
        self._command = [sys.executable, "-m", __name__, module]
        self._environment = os.environ | variables

    def __enter__(self) -> Killable:
        self._process = subprocess.Popen(
            self._command,
            bufsize=0,  # What is read is not there for `select` any more.
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._told()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(
        self, *arguments: str, kill_after_s: float, begun: Callable[[], bool] = lambda: True
    ) -> bool:
        """True if `main` returned before it could be killed, so long after it has `begun`; it may
        not raise.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        pid = self._told()
        ended = self._has_ended(0.0)
        while not ended and not begun():
            ended = self._has_ended(LOOK_S)
        if not ended and not self._has_ended(kill_after_s):
            os.kill(pid, signal.SIGKILL)
        code = self._told()
        assert code in (0, -signal.SIGKILL)
        return code == 0

    def _has_ended(self, within_s: float) -> bool:
        return bool(select.select([self._process.stdout], [], [], within_s)[0])

    def _told(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _serve(module: str) -> None:
    """A fork for every line of arguments: its pid is told, and how it ended."""
    main = importlib.import_module(module).main
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(number: int) -> None:
        replies.write(f"{number}\n")
        replies.flush()

    tell(os.getpid())
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                main(*json.loads(line))
                code = 0
            except BaseException:  # noqa: BLE001  the fork ends here, whatever it met
                traceback.print_exc()
            finally:
                os._exit(code)
        tell(pid)
        tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    _serve(sys.argv[1])
