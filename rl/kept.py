"""A training's config, resolved, beside its checkpoints: what was killed goes on as it began.

A call names a preset or a file, which may say something else by then.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from sandbox.errors import ConfigError
from sandbox.types import digest

FILE, PARTIAL, WEIGHTS = "train.yaml", "train.partial", "weights.digest"
END_BYTES = FULL_BYTES = 1 << 20
POLICY = ("config.json", "adapter_config.json", "tokenizer*.json", "*.safetensors", "*.bin")
"""Files of a checkpoint that say what it writes."""
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
BEGUN_FROM, EXAMPLES, PROCESSES = "begun_from", "examples", "processes"
"""Of fine-tuning, beside the config: a checkpoint or model, a digest of what it learns, and how
many have a batch each."""
FINE_TUNING = Stage(
    (
        BEGUN_FROM,
        EXAMPLES,
        PROCESSES,
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


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """As the system tells it, by OSError: torch and safetensors have errors of their own for it."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if shutil.disk_usage(folder).free > FULL_BYTES:
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error


def refuse_other_weights(run: Path, policy: Path) -> None:
    """Raises ConfigError where the run was begun by other weights than the folder holds now: what
    it has sampled would be told as theirs, and KL be measured from them.
    """
    if not policy.is_dir():
        return  # At a hub, by its name; or whoever opens it says what is wrong.
    file, now = run / WEIGHTS, fingerprint(policy)
    known = file.read_text() if file.is_file() else ""
    if known and known != now:
        raise ConfigError(
            f"run {run.name!r} was begun by other weights than {policy} holds now; give another "
            "--name, or put them back"
        )
    if not known:
        partial = file.with_suffix(".partial")
        partial.write_text(now)
        os.replace(partial, file)


def fingerprint(policy: Path) -> str:
    """Of a checkpoint's files, by what training changes of them: all of it, so that of gigabytes
    the ends tell.
    """
    found = []
    for path in sorted(p for pattern in POLICY for p in policy.glob(pattern)):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            ends = file.read(END_BYTES)
            file.seek(max(0, size - END_BYTES))
            found.append([path.name, size, hashlib.sha256(ends + file.read()).hexdigest()])
    return digest(found)


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
