"""How long training at a preset's size waits for evaluations: a whole `optimize --learn`.

A model that knows nothing writes nothing that could be judged. So it samples, with random weights
and as many tokens a reply as asked for, and a kernel of the feature proposer's takes the place of
what it wrote. All else is the campaign's own: prompts with exemplars, judging on lanes, rewards,
updates on these prompts and kernels, checkpoints. The policy has a GPU of its own (each rank's),
the others are lanes; with --by-turns it shares the only one with its lane.

    python -m benchmarks.train_idle --preset qwen2.5-coder-1.5b --ahead 1 --to runs/idle --out FILE
    torchrun --nproc-per-node 3 -m benchmarks.train_idle --preset qwen2.5-coder-7b --to runs/idle

The record has every update's figures, among them `idle`: the share of the time since the update
before it (the first: since sampling began) in which nothing was sampled or updated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Qwen2Config

from agent.config import load_optimize
from agent.device import resolved
from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.journals.timings import EVENT
from agent.launch import launch
from agent.learner import LEARN, LocalPolicy, OpenPolicy
from agent.presets import read_yaml
from agent.prompts.render import fenced
from agent.runs import find_run
from benchmarks.keeping import header, keep_json
from benchmarks.train_size import CONTEXT, SIZES, make, texts
from kernelbench.suite import load_tasks, spec_of
from rl.config import SamplingConfig, load_train
from rl.grpo import GrpoLearner
from rl.local import LocalModel, Sampler
from rl.opening import local_policy
from rl.policy import FILE, Policy, Sample
from sandbox.doctor import resolve_device
from sandbox.types import Evaluation, Task

DRAWN = 64
"""Kernels of a task, whose features are drawn by chance; what more is asked for repeats them."""
MAKING_S = 600.0
"""In which rank 0 makes the checkpoint, for which the others wait."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="qwen2.5-coder-1.5b", choices=sorted(SIZES))
    parser.add_argument("--suite", default="builtin")
    parser.add_argument("--tasks", type=int, default=8, help="the suite's first so many")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=1024, help="sampled of each reply")
    parser.add_argument("--batch", type=int, help="replies sampled side by side")
    parser.add_argument("--ahead", type=int, default=0, help="as rl.ahead")
    parser.add_argument("--by-turns", action="store_true", help="policy and lane on one GPU")
    parser.add_argument("--seconds", type=float, help="of the campaign, at most")
    parser.add_argument("--to", type=Path, required=True, help="folder for model and config")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sampling: dict[str, object] = {"max_new_tokens": given.new_tokens}
    if given.batch:
        sampling["batch"] = given.batch
    changes = {"sampling": sampling, "rl": {"ahead": given.ahead, "updates": given.updates}}
    shape = Qwen2Config(**SIZES[given.preset], max_position_embeddings=CONTEXT, rope_theta=1e6)
    made = prepared(given.to, given.preset, changes, shape)
    where = {"engine": "local"} if given.by_turns else {"engine": "ray", "own_gpu": True}
    row = run(made, given.suite, given.tasks, max_seconds=given.seconds, **where)
    head = {"schema_version": 1, **header("train_idle"), "preset": given.preset}
    record = {**head, "changes": changes, "tasks": given.tasks, "where": where, **row}
    print(json.dumps(record, indent=1))
    if given.out:
        keep_json(given.out, record)


@dataclass(frozen=True)
class Made:
    model: Path
    train: Path
    """Its config."""


def prepared(
    folder: Path, preset: str, changes: Mapping[str, Mapping[str, object]], shape: Qwen2Config
) -> Made:
    """A checkpoint with random weights, and the preset with what is changed of it. Of several ranks
    the first one makes them.
    """
    made = Made(folder / "model", folder / "train.yaml")
    if int(os.environ.get("RANK", "0")):
        end_s = time.monotonic() + MAKING_S
        while not (made.model / FILE).is_file() and time.monotonic() < end_s:
            time.sleep(0.2)
        return made
    folder.mkdir(parents=True, exist_ok=True)
    values = read_yaml(preset, "train")[1]
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, Mapping) else value
    made.train.write_text(yaml.safe_dump(values))
    if not (made.model / FILE).is_file():
        config = load_train(str(made.train))
        device = resolve_device(config.device)
        make(shape, list(texts()), made.model, config, device)
        if device == "cuda":
            torch.cuda.empty_cache()
    return made


def run(made: Made, suite: str, count: int, **options: object) -> dict[str, Any]:
    """The campaign, from a new run to its end; of several ranks only the first returns."""
    train = load_train(str(made.train))
    features = FeatureProposer(order="random")
    known = load_tasks(suite, resolve_device(train.device))
    tasks = [task for task in known if features.unsupported(task) is None][:count]
    most = train.rl.group * (train.rl.updates or 1) * (2 + train.rl.resample)
    config = load_optimize(
        train.campaign,
        tasks=tuple(spec_of(suite, task.id) for task in tasks),
        model=f"local:{made.model}",
        learn=True,
        train=str(made.train),
        max_updates=train.rl.updates,
        max_candidates_per_task=most,
        confirm=False,
        search_figures=True,
        device=train.device,
        **options,
    )
    name = f"{made.model.parent.name}-{time.time_ns()}"
    kernels = Kernels(features, tasks)
    with local_policy(resolved(config)) as (config, opened):
        assert opened is not None
        ghost = Haunted(opened, kernels)
        began_s = time.monotonic()
        launch(config, name, ghost)
        wall_s = time.monotonic() - began_s
    return {"wall_s": round(wall_s, 1), **ghost.told(), **told(name)}


def told(name: str) -> dict[str, Any]:
    """What the run's journal holds of updates, of how its lanes were used, and of devices."""
    with Journal(find_run(name), read_only=True) as journal:
        attempts = [a for task in journal.tasks() for a in journal.attempts(task.id)]
        return {
            "updates": [json.loads(detail) for detail in journal.events(LEARN)],
            "pulse": [json.loads(detail) for detail in journal.last_of_calls(EVENT)],
            "mean_stage_s": mean_seconds([a.evaluation for a in attempts]),
            "statuses": _counted(a.evaluation.status.value for a in attempts),
            "devices": _counted(str(a.evaluation.environment.get("gpu")) for a in attempts),
        }


def mean_seconds(found: Sequence[Evaluation]) -> dict[str, float]:
    """Of each stage, over all evaluations."""
    total: Counter[str] = Counter()
    for evaluation in found:
        total.update(evaluation.seconds)
    return {stage: round(seconds / len(found), 4) for stage, seconds in total.items()}


def _counted(names: Iterator[str]) -> dict[str, int]:
    found = sorted(names)
    return {name: len(list(same)) for name, same in itertools.groupby(found)}


class Kernels:
    """Replies that hold kernels of the feature proposer, each another one, whatever run it is."""

    def __init__(self, features: FeatureProposer, tasks: Sequence[Task]) -> None:
        self._of = {task.source.strip(): _sources(features, task) for task in tasks}
        self._number = itertools.count(time.time_ns())

    def asked_for(self, prompt: str) -> str:
        """For the task that the prompt shows."""
        (source,) = {s for s in self._of if s in prompt}
        # What was judged once, in this run or by an earlier one, would not be again.
        return fenced(f"{next(self._of[source])}\n# {next(self._number)}\n", "python")


def _sources(features: FeatureProposer, task: Task) -> Iterator[str]:
    found = features.propose(task, [], DRAWN)
    return itertools.cycle([proposal.candidate.source for proposal in found])


class Ghostwriter:
    """A Sampler: another one's time and tokens, and kernels in the place of what it wrote."""

    def __init__(self, sampler: Sampler, policy: Policy, kernels: Kernels, *, likely: bool) -> None:
        """`likely`: how likely the policy was to write a kernel is told, which takes a pass over
        prompt and kernel each.
        """
        self._sampler, self._policy, self._kernels = sampler, policy, kernels
        self._likely = likely
        self.replies = self.tokens = 0
        self.sampling_s = self.ghost_s = 0.0

    @property
    def context(self) -> int:
        return self._sampler.context

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Sample | None]:
        began_s = time.monotonic()
        drawn = self._sampler.sample(prompts, sampling, seeds)
        ended_s = time.monotonic()
        found = [
            None if sample is None else self._instead(prompt, sample)
            for prompt, sample in zip(prompts, drawn, strict=True)
        ]
        self.replies += len(drawn)
        self.tokens += sum(len(sample.ids) for sample in drawn if sample is not None)
        self.sampling_s += ended_s - began_s
        self.ghost_s += time.monotonic() - ended_s
        return found

    def _instead(self, prompt: Sequence[int], sample: Sample) -> Sample:
        policy = self._policy
        text = self._kernels.asked_for(policy.tokenizer.decode(prompt))
        (ids,) = policy.replies_ids([text])
        likely = policy.log_probabilities(prompt, ids) if self._likely else []
        return Sample(ids, text, True, len(prompt), sample.seconds, likely)


class Haunted:
    """An OpenPolicy: what another one opens, with a ghostwriter."""

    def __init__(self, opened: OpenPolicy, kernels: Kernels) -> None:
        self._opened, self._kernels = opened, kernels
        self._ghost: Ghostwriter | None = None
        self._policy: Policy | None = None

    def __call__(self, run: Path) -> LocalPolicy:
        found = self._opened(run)
        model, learner = found.model, found.learner
        assert isinstance(model, LocalModel)
        assert isinstance(learner, GrpoLearner)
        self._policy = learner.policy
        self._ghost = Ghostwriter(
            model.sampler, learner.policy, self._kernels, likely=learner.ahead > 0
        )
        model.sampler = self._ghost
        return found

    def told(self) -> dict[str, Any]:
        ghost, policy = self._ghost, self._policy
        if ghost is None or policy is None:
            return {}
        return {
            "parameters": policy.parameters,
            "sampled": {"replies": ghost.replies, "tokens": ghost.tokens},
            "seconds": {"sampling": round(ghost.sampling_s, 1), "ghost": round(ghost.ghost_s, 1)},
        }


if __name__ == "__main__":
    main()
