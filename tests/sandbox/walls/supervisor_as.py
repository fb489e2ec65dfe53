"""An evaluator in a process of its own, to be attacked by its candidates:
`python -m tests.sandbox.walls.supervisor_as FOLDER`. Prints what it saw as one JSON line.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from sandbox.doctor import examine
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of, workers_alive
from tests.sandbox.walls.attempts import SECRET, Target
from tests.sandbox.walls.host import lives

ATTACK = """
import dataclasses, importlib, json, os
from pathlib import Path
# By a name that only exists at run time: static analysis refuses what names our packages.
attempts = importlib.import_module(".".join(reversed(("attempts", "walls", "sandbox", "tests"))))
Target, attempt_all = attempts.Target, attempts.attempt_all
note = Path(os.environ["HOME"], "orphan")
target = Target({target}, note=note)
# Of every worker another file: an evaluation has several, each with its own user where we are root.
target = dataclasses.replace(target, name=f"{{target.name}}-{{os.getpid()}}")
seen = {{"outcomes": attempt_all(target), "secret": "OPENAI_API_KEY" in os.environ}}
seen |= {{"orphan": int(note.read_text()) if note.exists() else 0, "uid": os.getuid()}}
print("SEEN" + json.dumps(seen))
"""
"""A candidate's first lines; what it prints is only ever a log, and here that is what we read."""


def main(folder: Path) -> None:
    shared, private = folder / "shared", folder / "private"
    shared.mkdir()
    shared.chmod(0o777)
    private.mkdir(mode=0o700)
    (private / "secret").write_text("secret")
    secret = ctypes.create_string_buffer(SECRET, len(SECRET))
    neighbour = os.fork()
    if neighbour == 0:
        time.sleep(600)
        os._exit(0)
    evaluator = LocalEvaluator("cpu", cache_dir=folder / "cache")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            target = Target(
                supervisor=os.getpid(),
                neighbour=neighbour,
                address=ctypes.addressof(secret),
                port=server.getsockname()[1],
                shared=shared,
                private=private,
                name=f"warpsmith-{os.getpid()}",
                note=Path(),
            )
            print(json.dumps(attacked(evaluator, target)), flush=True)
    finally:
        evaluator.close()
        os.kill(neighbour, signal.SIGKILL)


def attacked(evaluator: LocalEvaluator, target: Target) -> dict[str, Any]:
    words = ", ".join(
        f"{name}=Path({str(value)!r})" if isinstance(value, Path) else f"{name}={value!r}"
        for name, value in vars(target).items()
        if name != "note"
    )
    task = task_of(SCALE)
    found: dict[str, Any] = {"alive": []}
    for name, top in (("honest", ""), ("attack", ATTACK.format(target=words))):
        source = forward("return y", top=top)
        candidate = Candidate(task.id, Language.TORCH, source)
        evaluation = evaluator.evaluate(task, candidate, FAST)
        found[name] = [evaluation.status, evaluation.detail, evaluation.environment.get("walls")]
        found["alive"] += workers_alive(evaluator)
        lines = [s for s in evaluation.stdout.splitlines() if s.startswith("SEEN")]
        if lines:
            found["seen"] = json.loads(lines[0].removeprefix("SEEN"))
    assert "seen" in found, found
    outcomes = found["seen"]["outcomes"]
    for place in ("/tmp", "/dev/shm"):
        left = list(Path(place).glob(f"{target.name}*"))
        if outcomes[f"write: {place}"] == "done" and not left:
            outcomes[f"write: {place}"] = "private"
        for path in left:
            path.unlink()
    if outcomes["leave: orphan"] == "done" and not lives(found["seen"]["orphan"]):
        outcomes["leave: orphan"] = "ended"
    found["doctor"] = next(f.detail for f in examine(Path("runs")) if f.name == "walls")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
