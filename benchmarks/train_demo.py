"""Proof of the loop by the command line alone: data, SFT, self-supervised, RL, evaluation.

Every step is a `warpsmith` command that goes on where it stopped, and a step that has ended is not
run again: call this as often as it takes, each call for about `--piece-s` seconds. It sets no
target and hides no figure: the last step prints what each stage's checkpoint samples on the tasks.

    python benchmarks/train_demo.py --config small --to runs/train-demo --piece-s 480
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

SHORTEST_S = 30.0
"""No step begins with less left."""
OWN_END = 0.85
"""Of the seconds given: a campaign stops searching at 0.88 of them (agent/budget.py), so one that
was sooner had come to its end by itself."""
WARPSMITH = Path(__file__).parents[1] / "warpsmith.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="small", help="preset of configs/train, or a file")
    parser.add_argument("--campaign", default="train-small", help="preset of configs/optimize")
    parser.add_argument("--to", type=Path, required=True, help="folder for data and checkpoints")
    parser.add_argument("--piece-s", type=float, default=480.0, help="seconds of this call")
    given = parser.parse_args()
    until_s = time.monotonic() + given.piece_s
    for place in range(len(steps(given.config, given.campaign, given.to))):
        # Anew each time: the newest checkpoint is known only once RL has ended.
        name, command = steps(given.config, given.campaign, given.to)[place]
        done = given.to / f"{name}.done"
        if done.exists():
            continue
        began_s = time.monotonic()
        left_s = until_s - began_s
        if left_s < SHORTEST_S:
            print(f"next: {name}; run the same command again")
            return
        if command[0] == "optimize" or command[:2] == ["train", "rl"]:
            command = [*command, "--max-seconds", f"{left_s:.0f}"]
        print(f"== {name}: warpsmith {' '.join(command)}", flush=True)
        code = subprocess.run([sys.executable, WARPSMITH, *command], check=False).returncode
        if code:
            sys.exit(code)
        if time.monotonic() - began_s < OWN_END * left_s:
            done.write_text("")


def steps(config: str, campaign: str, to: Path) -> list[tuple[str, list[str]]]:
    """Each with its name, in order; the policies by which a stage ends are at fixed places."""
    sys.path.insert(0, str(WARPSMITH.parent))
    from rl.config import load_train
    from rl.grpo import FOLDER, versions

    settings = load_train(config)
    run, common = to.name, ["--config", config]
    data, first, second = to / "data", to / "sft", to / "self"
    rounds = second / f"round-{settings.self_supervised.rounds - 1}"
    learner = Path("runs") / f"{run}-rl" / FOLDER
    newest = learner / str(max(versions(learner), default=0))
    self_supervised = ["train", "self", "--start", str(first), "--to", str(second)]
    rows = [
        ("search", ["optimize", "--config", campaign, "--name", f"{run}-features"]),
        ("data", ["data", f"{run}-features", "--to", str(data), *common]),
        ("sft", ["train", "sft", "--data", str(data), "--to", str(first), *common]),
        ("self", [*self_supervised, "--name", f"{run}-self", *common]),
        ("rl", ["train", "rl", "--start", str(rounds), "--name", f"{run}-rl", *common]),
    ]
    for stage, policy in (("sft", first), ("self", rounds), ("rl", newest)):
        command = ["optimize", "--config", "quickstart", "--model", f"local:{policy}"]
        command += ["--train", config, "--strategy", "best-of-n", "--name", f"{run}-after-{stage}"]
        rows.append((f"evaluate-{stage}", command))
    return rows


if __name__ == "__main__":
    main()
