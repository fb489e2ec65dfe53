"""A training's config, resolved, beside its checkpoints: what was killed goes on as it began.

A call names a preset or a file, which may say something else by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.errors import ConfigError

FILE, PARTIAL = "train.yaml", "train.partial"
Record = Mapping[str, object]
"""A TrainConfig as a record, and what else its stage depends on."""


@dataclass(frozen=True)
class Stage:
    """What a later call of it may not set anew."""

    decide: tuple[str, ...]
    """Keys by which weights differ."""
    free: tuple[str, ...]
    """Of those: where, how much, and in how much memory."""
    option: str
    """By which another training is begun."""


LEARNING = Stage(
    # What is asked the campaign's own config holds.
    ("dtype", "lora", "optimizer", "reward", "rl", "sampling", "seed", "transductive"),
    (
        "rl.batch",
        "rl.tasks",
        "rl.updates",
        "sampling.base_url",
        "sampling.batch",
        "sampling.engine",
    ),
    "--name",
)
BEGUN_FROM, EXAMPLES = "begun_from", "examples"
"""Of fine-tuning, beside the config: a checkpoint or model, and a digest of what it learns."""
FINE_TUNING = Stage(
    (
        BEGUN_FROM,
        EXAMPLES,
        "dtype",
        "lora",
        "optimizer",
        "seed",
        "sft",
        "shape",
        "transductive",
    ),
    ("sft.save_steps",),
    "--to",
)


def refuse_other(stage: Stage, record: Record, folder: Path) -> None:
    """Raises ConfigError where an earlier call's would have learned otherwise."""
    file = folder / FILE
    earlier = _kept(file, stage) if file.is_file() else {}
    for key, before, now in _differing(earlier, record):
        if key == BEGUN_FROM and Path(str(before)).resolve() == Path(str(now)).resolve():
            continue  # One checkpoint, typed in two ways.
        if key.partition(".")[0] in stage.decide and key not in stage.free:
            raise ConfigError(
                f"{file}: {key} was {before} and is {now} now; a training goes on as it began: "
                f"set it back, or take another {stage.option}"
            )


def _kept(file: Path, stage: Stage) -> Record:
    try:
        record = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        record = None
    if not isinstance(record, Mapping):
        raise ConfigError(
            f"{file}: is damaged, and what was begun here cannot be told; expected keys and values "
            f"as they were written: put it back, or take another {stage.option}"
        )
    return record


def keep_config(record: Record, folder: Path) -> None:
    """Once there is something to go on with: what cannot be opened is not."""
    file = folder / FILE
    partial = folder / PARTIAL
    partial.write_text(yaml.safe_dump(dict(record), sort_keys=False))
    os.replace(partial, file)


def _differing(before: object, now: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Keys with their paths, of those that both have: a newer version may know more."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in before.keys() & now.keys():
            yield from _differing(before[key], now[key], f"{path}.{key}".removeprefix("."))
    elif before != now:
        yield path, before, now
