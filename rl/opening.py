"""The way into training: what it needs is looked for before anything imports it.

The only module here, with `rl.config`, that may be imported where the `train` extra is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

from agent.config import OptimizeConfig
from agent.learner import OpenPolicy
from agent.presets import read_yaml
from kernelbench.suite import loaders
from rl.config import TrainConfig, load_train, refuse_evaluated
from sandbox.errors import ConfigError, install

PACKAGES = ("transformers", "trl", "datasets")


def open_training(source: str) -> TrainConfig:
    """From a preset of configs/train or a file; raises ConfigError where that, or a package that
    trains and runs checkpoints, is missing.
    """
    config = load_train(source)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{missing[0]} is not installed: {install('train')}")
    return config


def refuse_unknown(config: TrainConfig) -> None:
    """Raises ConfigError or TaskError for a preset or a suite that later stages would not find;
    fine-tuning reads neither. Those that lie elsewhere are not looked for.
    """
    read_yaml(config.campaign, "optimize")
    for spec in config.tasks:
        if not spec.startswith(("hf:", "kernelbench:")):
            loaders(spec, "cpu")


@contextmanager
def local_policy(
    config: OptimizeConfig,
) -> Iterator[tuple[OptimizeConfig, OpenPolicy | None]]:
    """The campaign as its local policy samples or learns in it, and what opens that policy; the
    campaign itself and None where it asks no such one. Raises ConfigError where it is no folder.
    Of several ranks one alone gets here: the others follow it (rl/joining.py).
    """
    if config.local is None:
        yield config, None
        return
    if not config.local.is_dir():
        raise ConfigError(f"{config.local}: no such folder; expected a transformers checkpoint's")
    train = open_training(config.train)
    if config.learn:
        refuse_evaluated(config.tasks, train.transductive)
        if train.sampling.greedy:
            raise ConfigError("sampling.greedy makes all replies of a group equal; leave it out")
    from rl.campaign import learning, open_policy
    from rl.joining import joined
    from rl.launched import as_launched

    if config.learn:
        train = as_launched(train)
    with joined(train, config.device, learns=config.learn) as ranks:
        if config.learn:
            config = learning(config, train)
        yield config, partial(open_policy, config, train, ranks=ranks)
