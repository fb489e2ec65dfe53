"""Proof of the loop by the command line alone: data, SFT, self-supervised, RL, judged after each.

Data are kernels of the feature proposer: of some tasks measured, of all as made (rl/made.py).
Every step is a `warpsmith` command that goes on where it stopped, and a step that has ended is not
run again: call this as often as it takes, each call for about `--piece-s` seconds. Steps that could
go on for ever have a time of their own. It sets no target and hides no figure: report.json and the
table at the end hold what one greedy reply to each held-out task is worth after every stage, beside
one kernel of the feature proposer's on the same tasks: its first, and one drawn by chance.

    python benchmarks/train_demo.py --config small --to runs/train-demo --piece-s 480

With `--ablation` three arms follow from the same checkpoint, with as many replies judged (after
CUDA-L1's ablation): further self-supervised rounds on RL's tasks, one for each of its updates, RL
without exemplars, and RL with exemplars drawn by chance among what passed. All are judged by
prompts without exemplars. `--arm NAME YAML` is RL once more from there, by what the YAML says of
the config: `--arm bold '{rl: {iterations: 8}}'`. `rl.updates` of the config is the budget;
`--rl-s` only ends what would last too long, and the report tells how many updates and replies an
arm had.
Calls on other GPUs may take a part each of what follows a checkpoint, in the same folder: each
skips what is the others'.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from agent.journals.journal import Journal  # noqa: E402
from agent.learner import LEARN  # noqa: E402
from agent.presets import read_yaml  # noqa: E402
from agent.runs import find_run  # noqa: E402
from benchmarks.staged import Failed, Step, run_steps, seconds_of  # noqa: E402
from benchmarks.waiting import Relay  # noqa: E402
from kernelbench.metrics import bootstrap  # noqa: E402
from rl.campaign import tasks_of  # noqa: E402
from rl.config import SPLITS, TrainConfig, load_train  # noqa: E402
from rl.data import load_examples, split_of  # noqa: E402
from rl.grpo import FOLDER, versions  # noqa: E402
from rl.judging import judged  # noqa: E402
from rl.policy import FILE  # noqa: E402
from rl.self_supervised import round_of  # noqa: E402
from sandbox.errors import ConfigError  # noqa: E402
from sandbox.records import to_record  # noqa: E402
from sandbox.types import Evaluation, Status  # noqa: E402

STAGES = ("sft", "self", "rl")
ARMS = {"features": "search", "random": "random"}
"""How the feature proposer chooses what the policy is compared with."""
ABLATION: Mapping[str, Mapping[str, object]] = {
    "rl-unshown": {"unshown_share": 1.0},
    "rl-random": {"selection": "random"},
}
"""Of RL, by what differs in its config."""
MORE = "self-more"
"""The arm without rewards."""
ARM_STEPS = tuple(f"arm-{arm}" for arm in ARMS)
OPTIONAL = ("judge-sft", "self", "judge-self", "rl", MORE, *ABLATION, *ARM_STEPS)
"""Steps that a call may leave to another; of a stage, with its judgement."""
JUDGING_S, JUDGED_S = 150.0, 60.0
"""At most, and what it takes where references are known (49 to 61 s on an H200, 110 at first)."""
REINFORCED_S = 270.0
"""What the updates of the preset take (239 to 269 s on an H200), of a box with room for more."""
SEARCHED = 2
"""Training tasks of which kernels are measured: to know the machine by, and what contrasts with
scores look like."""
QUICK = {"confirm": False, "search_figures": True}
SEARCH = {"proposals_per_round": 4, "max_candidates_per_task": 4} | QUICK
REPORT = "report.json"


def main() -> None:
    began_s = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="small", help="preset of configs/train, or a file")
    parser.add_argument("--to", type=Path, required=True, help="folder for data and checkpoints")
    parser.add_argument("--piece-s", type=float, default=480.0, help="seconds of this call")
    parser.add_argument("--search-s", type=float, default=45.0, help="for kernels to learn from")
    parser.add_argument("--self-s", type=float, default=100.0, help="of a self-supervised round")
    parser.add_argument("--rl-s", type=float, default=420.0)
    parser.add_argument("--ablation", action="store_true", help="RL in other ways as well")
    parser.add_argument(
        "--arm", nargs=2, action="append", default=[], metavar=("NAME", "YAML"), help="see above"
    )
    parser.add_argument("--skip", nargs="+", choices=OPTIONAL, default=[], help="in this call")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    try:
        demo = Demo(given)
    except ConfigError as error:
        sys.exit(f"train_demo: {error}")

    def clear(step: Step) -> None:
        if step.name == "data":  # A kill left it half written.
            shutil.rmtree(demo.data, ignore_errors=True)

    parts = [demo.steps, *([demo.ablation] if given.ablation else []), demo.further]
    try:
        with Relay() as relay:
            for part in parts:
                waits = run_steps(
                    lambda part=part: demo.wanted(part()),
                    given.to,
                    relay,
                    piece_s=given.piece_s,
                    began_s=began_s,
                    before=clear,
                )
                report(demo)
                if waits is not None:
                    print(f"next: {waits}; run the same command again")
                    return
    except Failed as failed:
        sys.exit(failed.code)


class Demo:
    """Its folders, configs and steps."""

    def __init__(self, given: argparse.Namespace) -> None:
        """Writes the configs that its commands read."""
        self.given, self.to, self.run = given, given.to, given.to.name
        self.data, self.sft = self.to / "data", self.to / "sft"
        values = read_yaml(given.config, "train")[1] | {"seed": given.seed}
        self.config = self.written("train", values)
        self.settings: TrainConfig = load_train(str(self.config))
        self.arms = arms_of(given.arm)
        self.different = {MORE: more(self.settings), **ABLATION, **self.arms}
        for name, different in self.different.items():
            load_train(str(self.written(name, merged(values, different))))
        campaign = read_yaml(self.settings.campaign, "optimize")[1]
        for arm, order in ARMS.items():
            one = {"proposals_per_round": 1, "max_candidates_per_task": 1, "features": order}
            self.written(arm, campaign | QUICK | one)
        self.written("search", campaign | SEARCH)
        self.searched = tasks_of(self.settings, SPLITS[:1], SEARCHED)
        self.judged_on = tasks_of(self.settings, SPLITS[1:], self.settings.held_out.judged)

    def written(self, name: str, values: Mapping[str, object]) -> Path:
        file = self.to / f"{name}.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        return file

    def steps(self) -> list[Step]:
        """In order; a policy by which a stage ends is the newest once that stage has ended."""
        made = [word for spec in self.settings.tasks for word in ("--made", spec)]
        data = ["data", "examples", f"{self.run}-search", *made, "--against", "builtin"]
        sft = ["train", "sft", "--data", str(self.data)]
        found = [
            self.campaign("search", self.searched, "search", self.given.search_s),
            self.train("data", [*data, "--to", str(self.data)], expected_s=90.0),
            self.train(
                "sft", [*sft, "--to", str(self.sft)], expected_s=200.0, result=self.sft / FILE
            ),
            self.judge("sft", self.sft),
            *self.supervised_itself("self", self.sft, "train", self.settings),
            *self.reinforced("rl", "train"),
        ]
        for arm in ARMS:
            found.append(self.campaign(arm, self.judged_on, f"arm-{arm}", JUDGING_S))
        return found

    def wanted(self, steps: Sequence[Step]) -> list[Step]:
        """Those of this call."""
        skipped = {*self.given.skip, *(f"judge-{name}" for name in self.given.skip)}
        return [step for step in steps if step.name not in skipped]

    def ablation(self) -> list[Step]:
        settings = load_train(str(self.to / f"{MORE}.yaml"))
        found = self.supervised_itself(MORE, self.last_self_supervised, MORE, settings)
        return [*found, *(step for name in ABLATION for step in self.reinforced(name, name))]

    def further(self) -> list[Step]:
        """Arms that this call names."""
        return [step for name in self.arms for step in self.reinforced(name, name)]

    @property
    def last_self_supervised(self) -> Path:
        return round_of(self.to / "self", self.settings.self_supervised.rounds - 1)

    def supervised_itself(
        self, name: str, start: Path, config: str, settings: TrainConfig
    ) -> list[Step]:
        """Rounds from a checkpoint, and what they led to."""
        out, rounds = self.to / name, settings.self_supervised.rounds
        command = ["train", "self", "--start", str(start), "--name", f"{self.run}-{name}"]
        box_s = self.given.self_s
        return [
            self.train(
                name,
                [*command, "--to", str(out)],
                box_s,
                expected_s=rounds * box_s,
                config=config,
                result=round_of(out, rounds - 1) / FILE,
            ),
            self.judge(name, round_of(out, rounds - 1)),
        ]

    def learner(self, name: str) -> Path:
        return Path("runs") / f"{self.run}-{name}" / FOLDER

    def reinforced(self, name: str, config: str) -> list[Step]:
        """RL from the last self-supervised checkpoint, and what it led to."""
        start = self.last_self_supervised
        newest = max(versions(self.learner(name)), default=0)
        command = ["train", "rl", "--start", str(start), "--name", f"{self.run}-{name}"]
        expected_s = min(REINFORCED_S, self.given.rl_s)
        return [
            self.train(name, command, self.given.rl_s, expected_s=expected_s, config=config),
            self.judge(name, self.learner(name) / str(newest) if newest else start),
        ]

    def train(
        self,
        name: str,
        command: Sequence[str],
        box_s: float | None = None,
        *,
        expected_s: float = 0.0,
        result: Path | None = None,
        config: str = "train",
    ) -> Step:
        full = [*command, "--config", str(self.to / f"{config}.yaml")]
        return Step(name, full, box_s, expected_s, result)

    def judge(self, stage: str, policy: Path) -> Step:
        run = f"{self.run}-after-{stage}"
        command = ["train", "judge", "--policy", str(policy), "--name", run]
        return self.train(f"judge-{stage}", command, JUDGING_S, expected_s=JUDGED_S)

    def campaign(self, config: str, tasks: Sequence[str], run: str, box_s: float) -> Step:
        """Without a policy."""
        options = ["--config", str(self.to / f"{config}.yaml"), "--name", f"{self.run}-{run}"]
        return Step(run, ["optimize", *tasks, *options], box_s)


def report(demo: Demo) -> None:
    """Prints and writes what came of it so far; nothing before a stage was judged."""
    settings, to = demo.settings, demo.to
    seconds = seconds_of([*demo.steps(), *demo.ablation(), *demo.further()], to)
    runs = {arm: f"{to.name}-arm-{arm}" for arm in ARMS if f"arm-{arm}" in seconds}
    stages = [name for name in (*STAGES, *demo.different) if f"judge-{name}" in seconds]
    runs |= {stage: f"{to.name}-after-{stage}" for stage in stages}
    if not stages:
        return
    tables, firsts = {}, {}
    for stage, run in runs.items():
        with Journal(find_run(run), read_only=True) as journal:
            tables[stage] = [j for j in judged(journal, settings.held_out) if j.split != SPLITS[0]]
            firsts[stage] = {
                task.id: attempts[0].evaluation
                for task in journal.tasks()
                if (attempts := journal.attempts(task.id))
                and attempts[0].evaluation.status.scored
                and split_of(task, settings.held_out) != SPLITS[0]
            }
    curves, replies = {}, {}
    different = {name: how for name, how in demo.different.items() if name in stages}
    learners = [name for name in ("rl", *demo.different) if name != MORE]
    for name in (name for name in learners if name in seconds):
        with Journal(find_run(f"{to.name}-{name}"), read_only=True) as journal:
            curves[name] = [json.loads(detail) for detail in journal.events(LEARN)]
            replies[name] = sum(len(journal.attempts(task.id)) for task in journal.tasks())
    updates = {name: max(versions(demo.learner(name)), default=0) for name in curves}
    if MORE in stages:
        replies[MORE] = sampled(demo)
    others = [name for name in runs if name != "rl" and "rl" in runs]
    gains = {name: against(firsts["rl"], firsts[name]) for name in others}
    wrong = {
        name: {t: f"{e.status.value}: {e.detail}" for t, e in evaluations.items() if not e.passed}
        for name, evaluations in firsts.items()
    }
    accused = {
        f"{name}, {task}": found.detail
        for name, evaluations in firsts.items()
        for task, found in evaluations.items()
        if found.status is Status.REWARD_HACK
    }
    kernels = load_examples(demo.data)
    examples = {"verified": sum(bool(e.run) for e in kernels)}
    examples["as made"] = len(kernels) - examples["verified"]
    record = {
        "examples": examples,
        "config": to_record(settings),
        "ablation": different,
        "stages": {stage: [to_record(j) for j in table] for stage, table in tables.items()},
        "updates": updates,
        "replies_judged": replies,
        "paired_tasks": {name: len(firsts["rl"].keys() & firsts[name].keys()) for name in others},
        "rl_against": gains,
        "wrong": wrong,
        "accused": accused,
        "seconds": dict(seconds),
        "curves": curves,
    }
    (to / REPORT).write_text(json.dumps(record, indent=1))
    print(f"proof of the loop: {settings.name}, seed {settings.seed}, one greedy reply a task")
    learned = [f"{name} {updates.get(name, 0)} ({n} replies)" for name, n in replies.items()]
    print("updates by rewards: " + ", ".join(learned))
    print("examples of sft: " + ", ".join(f"{count} {kind}" for kind, count in examples.items()))
    for stage, table in tables.items():
        for row in table:
            print(f"{stage:10} {row}")
    for name, found in gains.items():
        if found is not None:
            print(f"rl against {name}, paired over held-out tasks: {found[0]:.3f}x ", end="")
            print(f"({found[1]:.3f} to {found[2]:.3f})")
    for whose, words in accused.items():
        print(f"reward hack: {whose}: {words}")
    print(", ".join(f"{name} {spent:.0f} s" for name, spent in seconds.items()))


def more(settings: TrainConfig) -> Mapping[str, object]:
    """What the config of the arm without rewards has of its own: RL's tasks and replies."""
    rl = settings.rl
    budget = {"rounds": rl.updates or 1, "tasks": rl.tasks, "samples_per_task": rl.group}
    return {"self_supervised": budget}


def arms_of(given: Sequence[tuple[str, str]]) -> dict[str, Mapping[str, object]]:
    """By name, what differs; raises ConfigError where that is no mapping, or a name is taken."""
    found: dict[str, Mapping[str, object]] = {}
    for name, text in given:
        try:
            different = yaml.safe_load(text)
        except yaml.YAMLError:
            different = None
        if not isinstance(different, Mapping) or name in (*OPTIONAL, *STAGES, *found):
            raise ConfigError(f"--arm {name} {text}: expected a new name, and keys with values")
        found[name] = different
    return found


def merged(values: Mapping[str, Any], different: Mapping[str, Any]) -> dict[str, Any]:
    """The values with others in their places, section by section."""
    both = {
        key: merged(values[key], other)
        for key, other in different.items()
        if isinstance(other, Mapping) and isinstance(values.get(key), Mapping)
    }
    return {**values, **different, **both}


def sampled(demo: Demo) -> int:
    """Replies that were judged in the arm without rewards."""
    count = 0
    for number in range(demo.settings.rl.updates or 1):
        with Journal(find_run(f"{demo.run}-{MORE}-{number}"), read_only=True) as journal:
            count += sum(len(journal.attempts(task.id)) for task in journal.tasks())
    return count


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
