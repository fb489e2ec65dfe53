"""From a campaign's config to the policy that proposes in it, learning or not."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from agent.config import LOCAL, OptimizeConfig, load_optimize
from agent.learner import LocalPolicy
from agent.strategies.contrastive import Contrastive
from kernelbench.suite import load_tasks
from rl.config import SPLITS, TrainConfig
from rl.data import TRAIN, family_of
from rl.grpo import GrpoLearner
from rl.local import LocalModel
from rl.policy import load_policy
from sandbox.doctor import resolve_device
from sandbox.errors import ConfigError


def learning(config: OptimizeConfig, train: TrainConfig) -> OptimizeConfig:
    """The campaign as a policy learns in it: contrastive prompts, each asked `group` times, whole
    groups a round, and all tasks side by side, so that an update sees each of them.
    """
    group = train.rl.group
    strategy = Contrastive(
        exemplars=train.exemplars,
        bucket_width=train.bucket_width,
        temperature=train.temperature,
        repair_turns=0,
        repair_share=0.0,
        samples_per_prompt=group,
        turns=train.rl.turns,
        seed=config.seed,
    )
    per_round = group * math.ceil(config.proposals_per_round / group)
    return replace(config, strategy=strategy, proposals_per_round=per_round)


def sampling(
    preset: str, train: TrainConfig, policy: Path, max_seconds: float | None = None
) -> OptimizeConfig:
    """A campaign that only samples: one prompt a task, nothing learned, nothing confirmed."""
    count = train.self_supervised.samples_per_task
    return load_optimize(
        train.campaign,
        tasks=training_tasks(train),
        model=f"{LOCAL}{policy}",
        train=preset,
        strategy="best-of-n",
        proposals_per_round=count,
        max_candidates_per_task=count,
        confirm=False,
        device=train.device,
        max_seconds=max_seconds,
        seed=train.seed,
    )


def reinforcing(
    preset: str, train: TrainConfig, policy: Path, max_seconds: float | None
) -> OptimizeConfig:
    """The campaign of `train rl`."""
    rl = train.rl
    candidates = None if rl.updates is None else rl.updates * rl.group * rl.turns
    return load_optimize(
        train.campaign,
        tasks=training_tasks(train),
        model=f"{LOCAL}{policy}",
        learn=True,
        train=preset,
        max_candidates_per_task=candidates,
        device=train.device,
        max_seconds=max_seconds,
        seed=train.seed,
    )


def judging(
    preset: str,
    train: TrainConfig,
    policy: Path,
    splits: Collection[str] | None = None,
    max_seconds: float | None = None,
) -> OptimizeConfig:
    """One greedy reply to each task of these splits, by default all that is held out: nothing is
    learned or confirmed.
    """
    unknown = sorted(set(splits or ()) - set(SPLITS))
    if unknown:
        raise ConfigError(f"no split is named {unknown[0]!r}; expected {', '.join(SPLITS)}")
    return load_optimize(
        train.campaign,
        tasks=tasks_of(train, splits or SPLITS[1:]),
        model=f"{LOCAL}{policy}",
        train=preset,
        greedy=True,
        strategy="best-of-n",
        proposals_per_round=1,
        max_candidates_per_task=1,
        confirm=False,
        device=train.device,
        max_seconds=max_seconds,
        seed=train.seed,
    )


def training_tasks(train: TrainConfig) -> tuple[str, ...]:
    return tasks_of(train, (TRAIN,))


def tasks_of(train: TrainConfig, splits: Collection[str]) -> tuple[str, ...]:
    """The config's tasks of these splits: a spec whole where it may be, else task by task."""
    device = resolve_device(train.device)
    specs: list[str] = []
    for spec in train.tasks:
        tasks = load_tasks(spec, device)
        kept = [t for t in tasks if train.held_out.split(t.id, family_of(t)) in splits]
        specs += [spec] if len(kept) == len(tasks) else [task.id for task in kept]
    if not specs:
        raise ConfigError(f"no task is {' or '.join(splits)}; name more tasks, or change held_out")
    return tuple(specs)


def open_policy(config: OptimizeConfig, train: TrainConfig, run: Path) -> LocalPolicy:
    """The config's local policy; its learner's checkpoints lie in the run's folder."""
    if config.local is None:
        raise ConfigError("expected a model local:FOLDER")
    if config.learn:
        if train.reward.coverage_weight and not config.evaluation.profile_searches:
            raise ConfigError(
                "reward.coverage_weight pays for a share that only a profile tells; "
                "set profile_searches: true in the campaign's evaluation"
            )
        learner = GrpoLearner(run, config.local, train, config.device)
        return LocalPolicy(learner.model, learner)
    policy = load_policy(config.local, "", config.device, train.dtype)
    sampling = replace(train.sampling, greedy=config.greedy)
    return LocalPolicy(LocalModel(policy, sampling, config.seed))
