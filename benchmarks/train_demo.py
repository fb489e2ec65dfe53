"""Proof of the loop by the command line alone: data, SFT, self-supervised, RL, judged after each.

Data are kernels of the feature proposer: of some tasks measured, of all as made (rl/made.py).
Every step is a `warpsmith` command that goes on where it stopped, and a step that has ended is not
run again: call this as often as it takes, each call for about `--piece-s` seconds. Steps that could
go on for ever have a time of their own. It sets no target and hides no figure: report.json and the
table at the end hold what one greedy reply to each held-out task is worth after every stage, beside
one kernel of the feature proposer's on the same tasks: its first, and one drawn by chance.

    python benchmarks/train_demo.py --config small --to runs/train-demo --piece-s 480
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from agent.config import read_yaml  # noqa: E402
from agent.journal import Journal  # noqa: E402
from agent.learner import LEARN  # noqa: E402
from agent.runs import find_run  # noqa: E402
from benchmarks.waiting import Relay  # noqa: E402
from kernelbench.metrics import bootstrap  # noqa: E402
from rl.campaign import tasks_of  # noqa: E402
from rl.config import SPLITS, load_train  # noqa: E402
from rl.data import family_of, load_examples  # noqa: E402
from rl.grpo import FOLDER, versions  # noqa: E402
from rl.judging import judged  # noqa: E402
from rl.policy import FILE  # noqa: E402
from sandbox.records import to_record  # noqa: E402
from sandbox.types import Evaluation  # noqa: E402

OVERHEAD_S = 60.0
"""Of a boxed step, outside its box: imports, a context, what is under way when the time is over."""
EXPECTED_S = {"data": 90.0, "sft": 240.0}
"""Of steps without a box, on one H100: with less left they wait for another call, as far as one is
so long."""
JUDGING_S = 150.0
STAGES = ("sft", "self", "rl")
ARMS = {"features": "search", "random": "random"}
"""How the feature proposer chooses what the policy is compared with."""
SEARCHED = 8
"""Training tasks of which kernels are measured: to know the machine by, and what contrasts with
scores look like."""
QUICK = {"confirm": False, "search_figures": True}
SEARCH = {"proposals_per_round": 4, "max_candidates_per_task": 4} | QUICK
REPORT = "report.json"


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    box_s: float | None = None
    """Time it is given in all; None for a step that ends by itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="small", help="preset of configs/train, or a file")
    parser.add_argument("--to", type=Path, required=True, help="folder for data and checkpoints")
    parser.add_argument("--piece-s", type=float, default=480.0, help="seconds of this call")
    parser.add_argument("--search-s", type=float, default=45.0, help="for kernels to learn from")
    parser.add_argument("--self-s", type=float, default=150.0, help="of a self-supervised round")
    parser.add_argument("--rl-s", type=float, default=360.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    until_s = time.monotonic() + given.piece_s
    given.to.mkdir(parents=True, exist_ok=True)
    config = given.to / "train.yaml"
    config.write_text(yaml.safe_dump(read_yaml(given.config, "train")[1] | {"seed": given.seed}))
    settings = load_train(str(config))
    for arm, order in ARMS.items():
        campaign = one_kernel(settings.campaign, order)
        (given.to / f"{arm}.yaml").write_text(yaml.safe_dump(campaign))
    search = read_yaml(settings.campaign, "optimize")[1] | SEARCH
    (given.to / "search.yaml").write_text(yaml.safe_dump(search))
    seconds: dict[str, float] = {}
    searched = tasks_of(settings, SPLITS[:1], SEARCHED)
    judged_on = tasks_of(settings, SPLITS[1:], settings.held_out.judged)
    with Relay() as relay:
        for place in range(len(steps(given, config, searched, judged_on))):
            # Anew each time: the newest checkpoint is known only once RL has ended.
            step = steps(given, config, searched, judged_on)[place]
            done = given.to / f"{step.name}.done"
            if not ended(step, given.to):
                left_s = until_s - time.monotonic()
                box_s = step.box_s or EXPECTED_S.get(step.name, 0.0)
                if left_s < min(box_s + OVERHEAD_S, 0.9 * given.piece_s):
                    print(f"next: {step.name}; run the same command again")
                    return
                if step.name == "data":
                    # A kill left it half written.
                    shutil.rmtree(given.to / "data", ignore_errors=True)
                spent_s = run_step(step, left_s, relay)
                done.write_text(f"{spent_s:.1f}")
            if done.exists():
                seconds[step.name] = float(done.read_text())
    report(given.to, config, seconds)


def ended(step: Step, to: Path) -> bool:
    """Whether it needs no further call: a kill may have come before its end was noted."""
    return (to / f"{step.name}.done").exists() or (
        step.name == "sft" and (to / "sft" / FILE).is_file()
    )


def run_step(step: Step, left_s: float, relay: Relay) -> float:
    """Seconds it took; exits as it did where it failed."""
    box_s = None if step.box_s is None else min(step.box_s, left_s)
    command = [*step.command, *(["--max-seconds", f"{box_s:.0f}"] if box_s else [])]
    print(f"== {step.name}: warpsmith {' '.join(command)}", flush=True)
    began_s = time.monotonic()
    code = relay.run(command)
    if code:
        sys.exit(code)
    return time.monotonic() - began_s


def steps(
    given: argparse.Namespace, config: Path, searched: Sequence[str], judged_on: Sequence[str]
) -> list[Step]:
    """In order; the policies by which a stage ends are at fixed places."""
    settings = load_train(str(config))
    to, run = given.to, given.to.name
    common = ["--config", str(config)]
    data, first, second = to / "data", to / "sft", to / "self"
    learner = Path("runs") / f"{run}-rl" / FOLDER
    newest = learner / str(max(versions(learner), default=0))
    ends = {"sft": first, "self": second / f"round-{settings.self_supervised.rounds - 1}"}
    ends["rl"] = newest if versions(learner) else ends["self"]
    self_supervised = ["train", "self", "--start", str(first), "--to", str(second)]
    search = ["optimize", *searched, "--config", str(to / "search.yaml")]
    made = [word for spec in settings.tasks for word in ("--made", spec)]
    made += ["--made-per-task", "1"]
    stages = {
        "sft": Step("sft", ["train", "sft", "--data", str(data), "--to", str(first), *common]),
        "self": Step(
            "self",
            [*self_supervised, "--name", f"{run}-self", *common],
            given.self_s,
        ),
        "rl": Step(
            "rl",
            ["train", "rl", "--start", str(ends["self"]), "--name", f"{run}-rl", *common],
            given.rl_s,
        ),
    }
    found = [
        Step("search", [*search, "--name", f"{run}-features"], given.search_s),
        Step("data", ["data", "examples", f"{run}-features", "--to", str(data), *made, *common]),
    ]
    for stage in STAGES:
        judge = ["train", "judge", "--policy", str(ends[stage]), "--name", f"{run}-after-{stage}"]
        found += [stages[stage], Step(f"judge-{stage}", [*judge, *common], JUDGING_S)]
    for arm in ARMS:
        options = ["--config", str(to / f"{arm}.yaml"), "--name", f"{run}-arm-{arm}"]
        found.append(Step(f"arm-{arm}", ["optimize", *judged_on, *options], JUDGING_S))
    return found


def one_kernel(campaign: str, order: str) -> dict[str, object]:
    """The campaign with one kernel of the feature proposer's a task."""
    one = {"proposals_per_round": 1, "max_candidates_per_task": 1} | QUICK
    return read_yaml(campaign, "optimize")[1] | one | {"features": order}


def report(to: Path, config: Path, seconds: Mapping[str, float]) -> None:
    """Prints and writes what came of it."""
    settings = load_train(str(config))
    runs = {arm: f"{to.name}-arm-{arm}" for arm in ARMS}
    runs |= {stage: f"{to.name}-after-{stage}" for stage in STAGES}
    tables, firsts = {}, {}
    for stage, run in runs.items():
        with Journal(find_run(run), read_only=True) as journal:
            tables[stage] = [j for j in judged(journal, settings.held_out) if j.split != SPLITS[0]]
            firsts[stage] = {
                task.id: attempts[0].evaluation
                for task in journal.tasks()
                if (attempts := journal.attempts(task.id))
                and attempts[0].evaluation.status.scored
                and settings.held_out.split(task.id, family_of(task)) != SPLITS[0]
            }
    with Journal(find_run(f"{to.name}-rl"), read_only=True) as journal:
        curve = [json.loads(detail) for detail in journal.events(LEARN)]
    updates = max(versions(Path("runs") / f"{to.name}-rl" / FOLDER), default=0)
    gain = against(firsts["rl"], firsts["sft"])
    beside = {arm: against(firsts["rl"], firsts[arm]) for arm in ARMS}
    kernels = load_examples(to / "data")
    examples = {"verified": sum(bool(e.run) for e in kernels)}
    examples["as made"] = len(kernels) - examples["verified"]
    record = {
        "examples": examples,
        "config": to_record(settings),
        "stages": {stage: [to_record(j) for j in table] for stage, table in tables.items()},
        "updates": updates,
        "paired_tasks": {stage: len(firsts["rl"].keys() & firsts[stage].keys()) for stage in runs},
        "rl_against_sft": gain,
        "rl_against": beside,
        "seconds": dict(seconds),
        "curve": curve,
    }
    (to / REPORT).write_text(json.dumps(record, indent=1))
    print(f"proof of the loop: {settings.name}, seed {settings.seed}, one greedy reply a task")
    print(f"{updates} updates by rewards")
    print("examples of sft: " + ", ".join(f"{count} {kind}" for kind, count in examples.items()))
    for stage, table in tables.items():
        for row in table:
            print(f"{stage:9} {row}")
    for arm, found in {"sft": gain, **beside}.items():
        if found is not None:
            print(f"rl against {arm}, paired over held-out tasks: {found[0]:.3f}x ", end="")
            print(f"({found[1]:.3f} to {found[2]:.3f})")
    print(", ".join(f"{name} {spent:.0f} s" for name, spent in seconds.items()))


def against(
    after: Mapping[str, Evaluation], before: Mapping[str, Evaluation]
) -> tuple[float, float, float] | None:
    """Geometric mean of the ratio of speedups by task, failures as 1.0x, with its interval."""

    def log_of(evaluation: Evaluation) -> float:
        return 0.0 if evaluation.speedup is None else math.log(evaluation.speedup.value)

    logs = [log_of(after[task]) - log_of(before[task]) for task in after if task in before]
    if not logs:
        return None
    ratio = bootstrap(logs)
    return ratio.value, ratio.low, ratio.high


if __name__ == "__main__":
    main()
