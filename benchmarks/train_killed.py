"""RL that is killed and goes on, beside RL that is not: the same curve, and nothing lost?

    python -m benchmarks.train_killed --start POLICY --config cpu --kills-s 60 90 --out FILE

Runs `warpsmith train rl` from one policy with one config and seed `--pairs` times to its end, and
as often killed (SIGKILL to all its processes) so many seconds after each beginning, then to its
end. Rewards are measured anew each time, so that curves differ by noise; the record has every
update of every run, how many replies its updates had of those asked for, and how many kernels were
judged for them, of which some may have no verdict by a fault of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.journals.journal import Journal
from agent.learner import LEARN
from agent.runs import find_run, tried_in
from benchmarks.keeping import header, keep_json, stop_cleanly
from rl.config import load_train

# Not all are known of an update that was taken again: how long it was waited for is not.
FIGURES = ("correct", "hacks", "speedup", "reward", "group_variance", "idle", "trl/entropy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--start", type=Path, required=True, help="checkpoint of every run")
    parser.add_argument("--config", default="cpu", help="preset of configs/train, or a file")
    parser.add_argument("--name", default="killed", help="begins the names of the runs")
    parser.add_argument("--pairs", type=int, default=2, help="so many runs killed, and not killed")
    parser.add_argument("--kills-s", type=float, nargs="+", default=[60.0], metavar="SECONDS")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    stop_cleanly()
    record: dict[str, Any] = {**header("train_killed"), "runs": []}
    for number in range(given.pairs):
        for kind, kills_s in {"whole": [], "killed": given.kills_s}.items():
            name = f"{given.name}-{kind}-{number}"
            began_s = time.monotonic()
            kills = reinforced(name, given.start, given.config, kills_s)
            seconds = round(time.monotonic() - began_s, 1)
            found = {"name": name, "kills": kills, "seconds": seconds, **told(name, given.config)}
            record["runs"].append(found)
            print(json.dumps(found), flush=True)
            keep_json(given.out, record)


def reinforced(
    name: str, start: Path, config: str, kills_s: Sequence[float]
) -> list[dict[str, float]]:
    """To its end, killed at these seconds after each beginning: when, and what it had by then."""
    command = [sys.executable, "-m", "warpsmith", "train", "rl", "--start", str(start)]
    command += ["--config", config, "--name", name]
    kills = []
    for seconds in kills_s:
        process = subprocess.Popen(command, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done, tried = len(updates(name)), tried_in(name)
            kills.append({"seconds": seconds, "updates": done, "candidates": tried})
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"train_killed: {shlex.join(command)} failed")
    return kills


def updates(name: str) -> list[dict[str, Any]]:
    """Of a run, if it has begun."""
    if not tried_in(name):
        return []
    with Journal(find_run(name), read_only=True) as journal:
        return [json.loads(detail) for detail in journal.events(LEARN)]


def told(name: str, config: str) -> dict[str, Any]:
    """What a run came to."""
    settings = load_train(config)
    with Journal(find_run(name), read_only=True) as journal:
        found = [a.evaluation for task in journal.tasks() for a in journal.attempts(task.id)]
    lessons = updates(name)
    return {
        "curve": [
            {key: round(u["figures"][key], 4) for key in FIGURES if key in u["figures"]}
            for u in lessons
        ],
        "replies": sum(u["rollouts"] for u in lessons),
        "asked": sum(u["seen"] for u in lessons) * settings.rl.group,
        "kernels": len(found),
        "unscored": sum(not evaluation.status.scored for evaluation in found),
    }


if __name__ == "__main__":
    main()
