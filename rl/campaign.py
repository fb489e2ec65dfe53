"""From a campaign's config to the policy that proposes in it, learning or not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from agent.config import LOCAL, OptimizeConfig, load_optimize
from agent.learner import LocalPolicy
from agent.strategies.contrastive import Contrastive
from agent.strategies.fsr import Fsr
from kernelbench.suite import loaders, spec_of
from rl.config import SPLITS, TrainConfig, refuse_evaluated
from rl.data import (
    TRAIN,
    composition_of,
    contrastive_of,
    family_of,
    size_of,
    split_of,
    teaches,
    withheld,
)
from rl.grpo import FOLDER, GrpoLearner, versions
from rl.kept import refuse_other_weights
from rl.local import LocalModel
from rl.policy import load_policy, taught_to
from rl.ranks import Ranks
from rl.replica import Replica
from rl.served import ServedPolicy
from sandbox.doctor import resolve_device
from sandbox.errors import ConfigError
from sandbox.types import Task, digest


def learning(config: OptimizeConfig, train: TrainConfig) -> OptimizeConfig:
    """The campaign as a policy learns in it: contrastive prompts, each asked `group` times, whole
    groups a round, and all tasks side by side, so that an update sees each of them: unless the
    config has fewer at once, of which the next begins where one ends. Raises ConfigError where
    another strategy is asked for.
    """
    if not isinstance(config.strategy, Contrastive) and config.strategy != Fsr():
        raise ConfigError(
            f"strategy is {config.strategy.kind}, and a policy that learns is asked by contrastive "
            "prompts, of which the train config tells: leave it out"
        )
    strategy = replace(
        contrastive_of(train),
        repair_turns=0,
        repair_share=0.0,
        samples_per_prompt=train.rl.group,
        unshown_share=train.unshown_share,
        turns=train.rl.turns,
        seed=config.seed,
    )
    least = train.rl.least
    if config.max_candidates_per_task < least:
        raise ConfigError(
            f"max_candidates_per_task is {config.max_candidates_per_task}; expected at least "
            f"{least}, half of rl.group, since fewer replies say nothing of each other"
        )
    device = resolve_device(config.device)
    ids = {id for spec in config.tasks for id in loaders(spec, device)}
    refuse_evaluated(sorted(ids), train.transductive)
    return replace(
        config,
        strategy=strategy,
        proposals_per_round=_per_round(config, train),
        tasks_at_once=config.tasks_at_once or len(ids),
    )


def _per_round(config: OptimizeConfig, train: TrainConfig) -> int:
    """Whole groups of a task, of no fewer replies than the campaign asks."""
    return train.rl.group * math.ceil(config.proposals_per_round / train.rl.group)


def sampling(
    preset: str, train: TrainConfig, policy: Path, max_seconds: float | None = None
) -> OptimizeConfig:
    """A campaign that only samples, without exemplars: nothing learned, nothing timed."""
    count = train.self_supervised.samples_per_task
    config = load_optimize(
        train.campaign,
        tasks=tasks_of(train, (TRAIN,), train.self_supervised.tasks),
        model=f"{LOCAL}{policy}",
        train=preset,
        strategy="best-of-n",
        proposals_per_round=count,
        max_candidates_per_task=count,
        confirm=False,
        search_figures=True,
        device=train.device,
        max_seconds=max_seconds,
        seed=train.seed,
    )
    return replace(config, evaluation=replace(config.evaluation, verify_only=True))


def reinforcing(
    preset: str, train: TrainConfig, policy: Path, max_seconds: float | None
) -> OptimizeConfig:
    """The campaign of `train rl`."""
    rl = train.rl
    config = load_optimize(
        train.campaign,
        tasks=tasks_of(train, (TRAIN,), rl.tasks),
        model=f"{LOCAL}{policy}",
        learn=True,
        train=preset,
        max_updates=rl.updates,
        device=train.device,
        max_seconds=max_seconds,
        seed=train.seed,
    )
    if rl.updates is None:
        return config
    # Enough for those that are sampled again; the updates are what ends it.
    rounds = rl.updates * rl.turns * (1 + rl.resample)
    most = rounds * _per_round(config, train)
    return replace(config, max_candidates_per_task=most)


def judging(
    preset: str,
    train: TrainConfig,
    policy: Path,
    splits: Collection[str] | None = None,
    max_seconds: float | None = None,
) -> OptimizeConfig:
    """One greedy reply to each task of these splits, by default all that is held out: nothing is
    learned or confirmed. Raises ConfigError where the policy was taught one that is held out.
    """
    unknown = sorted(set(splits or ()) - set(SPLITS))
    if unknown:
        raise ConfigError(f"no split is named {unknown[0]!r}; expected {', '.join(SPLITS)}")
    return load_optimize(
        train.campaign,
        tasks=tasks_of(train, splits or SPLITS[1:], train.held_out.judged, taught_to(policy)),
        model=f"{LOCAL}{policy}",
        train=preset,
        greedy=True,
        strategy="best-of-n",
        proposals_per_round=1,
        max_candidates_per_task=1,
        confirm=False,
        search_figures=True,
        device=train.device,
        max_seconds=max_seconds,
        seed=train.seed,
    )


def tasks_of(
    train: TrainConfig,
    splits: Collection[str],
    count: int | None = None,
    taught: Collection[str] = (),
) -> tuple[str, ...]:
    """The config's tasks of these splits, or so many of them, the same each time: a spec whole
    where it may be, else task by task. Raises ConfigError where one is held out, and what
    it is held out by is among what was `taught`.
    """

    def wanted(task: Task) -> bool:
        split = split_of(task, train.held_out)
        if split in splits and split != TRAIN and not withheld(task, split).isdisjoint(taught):
            raise ConfigError(
                f"{task.id} is held out by this config, and the policy was taught it or one like "
                "it: judge by the config that it was taught by"
            )
        return split in splits

    device = resolve_device(train.device)
    known = {spec: loaders(spec, device) for spec in train.tasks}
    refuse_evaluated((id for each in known.values() for id in each), train.transductive)
    shuffled = sorted((pair for each in known.values() for pair in each.items()), key=_by_hash)
    _refuse_sizes_of_none(train, (size_of(load()) for _, load in shuffled))
    # No further than needed: families of thousands take seconds.
    kept = (id for id, load in shuffled if wanted(load()))
    chosen = set(itertools.islice(kept, count))
    if not chosen:
        raise ConfigError(f"no task is {' or '.join(splits)}; name more tasks, or change held_out")
    specs: list[str] = []
    for spec, tasks in known.items():
        own = [id for id in tasks if id in chosen]
        specs += [spec] if len(own) == len(tasks) else [spec_of(spec, id) for id in own]
    return tuple(specs)


def _refuse_sizes_of_none(train: TrainConfig, sizes: Iterable[str]) -> None:
    """Raises ConfigError where no task has any of the sizes that are held out: a size that is named
    for another device is none here.
    """
    wanted, met = train.held_out.sizes, set[str]()
    for size in sizes if wanted else ():
        if size in wanted:
            return
        met.add(size)
    if wanted:
        raise ConfigError(
            f"held_out.sizes is {', '.join(wanted)}, and no task is timed at it; expected one of "
            f"{', '.join(sorted(met))}, or none"
        )


def _by_hash(pair: tuple[str, object]) -> str:
    return digest(pair[0])


def open_policy(
    config: OptimizeConfig, train: TrainConfig, run: Path, ranks: Ranks | None = None
) -> LocalPolicy:
    """The config's local policy; its learner's checkpoints lie in the run's folder. `ranks`: who
    samples and learns, as GrpoLearner takes it.
    """
    if config.local is None:
        raise ConfigError("expected a model local:FOLDER")
    if config.learn:
        if train.reward.coverage_weight and not config.evaluation.profile_searches:
            raise ConfigError(
                "reward.coverage_weight pays for a share that only a profile tells; "
                "set profile_searches: true in the campaign's evaluation"
            )
        if train.rl.ahead and config.device != "cuda":
            raise ConfigError(
                "rl.ahead is for a policy with a GPU of its own, "
                f"and the device is {config.device}; leave it out"
            )
        if train.rl.ahead and not config.own_gpu:
            raise ConfigError(
                "rl.ahead samples and learns while lanes measure: the campaign needs own_gpu and "
                "engine ray (--own-gpu --engine ray); or leave it out"
            )
        if train.rl.beta or not versions(run / FOLDER):
            refuse_other_weights(run, Path(config.local))
        learner = GrpoLearner(run, config.local, train, config.device, ranks)
        found = (load() for spec in config.tasks for load in loaders(spec, config.device).values())
        for task in found:
            learner.policy.taught |= teaches(composition_of(task), family_of(task), size_of(task))
        apart = train.sampling.engine == "hf"
        return LocalPolicy(learner.model, learner, learner.ranks.here, apart)
    refuse_other_weights(run, Path(config.local))
    sampling, folder = replace(train.sampling, greedy=config.greedy), config.local
    here = sampling.engine == "hf"
    if not here:
        policy = load_policy(folder, "", config.device, train.dtype, weights=False)
        served = ServedPolicy(policy, sampling, run, lambda: folder)
        return LocalPolicy(LocalModel(policy, sampling, config.seed, sampler=served), apart=False)
    ranks = ranks or Ranks(Replica(train, config.device))
    ranks.load(folder)
    policy, size = ranks.replica.policy, ranks.size
    model = LocalModel(policy, sampling, config.seed, sampler=ranks, replicas=size)
    return LocalPolicy(model, gpus=ranks.here)
