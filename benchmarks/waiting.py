"""`warpsmith` commands one after the other, each in an interpreter that started and imported while
the command before ran: of one that trains 20 to 28 s were outside its campaign (H100).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "warpsmith.py"
WAIT = """
import gc, json, signal, sys
handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # An interrupt is for who has a command.
sys.path.insert(0, sys.argv[1])
gc.disable()  # until all is there that stays
import agent.commands.app, rl.campaign, rl.sft, warpsmith
gc.freeze()
gc.enable()
line = sys.stdin.readline()
signal.signal(signal.SIGINT, handler)
if line:
    sys.argv = json.loads(line)
    warpsmith.main()
"""


class Relay:
    """Of interpreters, one of which waits for the next command until the block ends."""

    def __enter__(self) -> Relay:
        self._next = _started()
        return self

    def __exit__(self, *_: object) -> None:
        self._next.kill()
        self._next.wait()

    def run(self, command: Sequence[str]) -> int:
        """The exit code of `warpsmith COMMAND`."""
        now, self._next = self._next, _started()
        assert now.stdin is not None
        now.stdin.write(json.dumps([str(PROGRAM), *command]) + "\n")
        now.stdin.close()
        return now.wait()


def _started() -> subprocess.Popen[str]:
    # Training takes one GPU, and so do the lanes beside it: the first that may be used.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    return subprocess.Popen(
        [sys.executable, "-c", WAIT, str(PROGRAM.parent)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": seen},
        stdin=subprocess.PIPE,
        text=True,
    )
