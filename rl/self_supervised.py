"""Stage 2: sample, evaluate, keep what passes, fine-tune; again (CUDA-L1, stage 2).

Reward 0 or 1 without a baseline and without a negative signal, since most samples fail early on.
Each round is a campaign of its own, so that a killed call goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

from agent.journals.journal import Journal
from rl.config import TrainConfig
from rl.data import TRAIN, Example, build_dataset, examples_of
from rl.kept import FINE_TUNING, refuse_other
from rl.policy import FILE
from rl.sft import Fitted, record_of, sft
from sandbox.errors import ConfigError

Sample = Callable[[Path, int], Path]
"""From a checkpoint and a round to the folder of the run that sampled and judged its kernels."""


def self_supervised(
    start: Path,
    sample: Sample,
    config: TrainConfig,
    out: Path,
    device: str,
    on_round: Callable[[int, Fitted], None] = lambda number, fitted: None,
) -> Path:
    """The last round's checkpoint. Raises ConfigError where nothing passed, and where `out` holds
    rounds that began otherwise.
    """
    policy = start
    for number in range(config.self_supervised.rounds):
        folder, settings = round_of(out, number), tuning(config)
        if (folder / FILE).is_file():
            refuse_other(FINE_TUNING, record_of(settings, policy), folder)
        else:
            _refuse_unwritable(out)
            run = sample(policy, number)
            kept = successes(run, config)
            if not kept:
                raise ConfigError(f"round {number}: {_why_nothing(run)}")
            on_round(number, sft(kept, settings, folder, device, policy))
        policy = folder
    return policy


def _why_nothing(run: Path) -> str:
    with Journal(run, read_only=True) as journal:
        if any(journal.attempts(task.id) for task in journal.tasks()):
            return "nothing passed; train longer by sft first"
    return f"no reply was judged; why not, {run} tells (`warpsmith show {run.name}`)"


def _refuse_unwritable(out: Path) -> None:
    """Before a round is sampled for it; raises OSError."""
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    with TemporaryFile(dir=there):
        pass


def round_of(out: Path, number: int) -> Path:
    """The folder of its checkpoint."""
    return out / f"round-{number}"


def tuning(config: TrainConfig) -> TrainConfig:
    """The config of one round's fine-tuning: gentler than stage 1's."""
    own = config.self_supervised
    stage = replace(
        config.sft,
        epochs=own.epochs,
        learning_rate=own.learning_rate,
        batch=own.batch,
        warmup_share=0.0,  # Its first step has no size at all, of a few.
    )
    return replace(config, sft=stage)


def successes(run: Path, config: TrainConfig) -> list[Example]:
    """What a run's policy wrote that passed, less what is held out."""
    with Journal(run, read_only=True) as journal:
        found = [e for e in examples_of(journal, config) if e.kind == "propose"]
    if not found:
        return []
    dataset = build_dataset(found, config.held_out)
    return [Example(**row) for row in dataset[TRAIN]]
