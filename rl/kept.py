"""A learning run's train config, resolved, beside its checkpoints: it goes on as it began.

The campaign's own config names a preset or a file, which may say something else by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from rl.config import TrainConfig
from sandbox.errors import ConfigError
from sandbox.records import to_record

FILE = "train.yaml"
DECIDE = ("dtype", "lora", "optimizer", "reward", "rl", "sampling", "seed", "transductive")
"""Keys by which updates differ; what is asked the campaign's own config holds."""
FREE = (
    "rl.batch",
    "rl.tasks",
    "rl.updates",
    "sampling.base_url",
    "sampling.batch",
    "sampling.engine",
)
"""Of those, what a later call may set anew: where, how much, and in how much memory."""


def refuse_other(config: TrainConfig, folder: Path) -> None:
    """Raises ConfigError where an earlier call's would have learned otherwise."""
    file = folder / FILE
    earlier = yaml.safe_load(file.read_text()) if file.is_file() else {}
    for key, before, now in _differing(earlier, to_record(config)):
        if key.partition(".")[0] in DECIDE and key not in FREE:
            raise ConfigError(
                f"{file}: {key} was {before} and is {now} now; a run goes on as it began: set it "
                "back, or take another --name"
            )


def keep_config(config: TrainConfig, folder: Path) -> None:
    """Once a learner is open: what cannot be opened is not to be gone on with."""
    file, record = folder / FILE, to_record(config)
    partial = file.with_suffix(".partial")
    partial.write_text(yaml.safe_dump(record, sort_keys=False))
    os.replace(partial, file)


def _differing(before: object, now: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Keys with their paths, of those that both have: a newer version may know more."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() & now.keys():
            yield from _differing(before[key], now[key], f"{path}.{key}".removeprefix("."))
    elif before != now:
        yield path, before, now
