"""Stage 1: supervised fine-tuning on verified kernels (CUDA-L1, stage 1; arXiv 2507.14111).

A policy `new` is made here first: random weights, and a tokenizer of these very examples. Of the
processes that `accelerate launch` starts each runs this on a device of its own; the first writes.
"""

from __future__ import annotations

import fcntl
import logging
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import PartialState

from rl.config import NEW, TrainConfig, refuse_evaluated
from rl.data import Example, teaches
from rl.kept import (
    BEGUN_FROM,
    EXAMPLES,
    FINE_TUNING,
    PARTIAL,
    PROCESSES,
    full_disk_told,
    keep_config,
    refuse_other,
)
from rl.kept import FILE as KEPT
from rl.policy import FILE, Policy, load_policy, new_policy
from rl.replica import refuse_coarse, with_adapters
from rl.trainers import Tokens, fine_tune, known_optimizer
from sandbox.errors import ConfigError
from sandbox.records import to_record
from sandbox.types import digest
from sandbox.words import number_of

log = logging.getLogger(__name__)

TOKENIZED = 2000
"""Examples that a tokenizer is made of, drawn by chance: of 9,719 it takes half a minute."""
TRAINER, BEGUN, LOCK = "trainer", "begun", "lock"
"""Within the checkpoint's folder, until it is one; and within that the policy before it learns, and
what the one process has that writes here."""
OURS = frozenset({KEPT, PARTIAL, TRAINER})
"""What a kill may leave before there is a policy to go on with."""


@dataclass(frozen=True)
class Fitted:
    """What a fine-tuning did."""

    folder: Path
    examples: int
    too_long: int
    parameters: int
    loss: float | None

    def __str__(self) -> str:
        told = (
            f"{self.folder}: {self.parameters:,} parameters, {number_of(self.examples, 'example')}"
        )
        if self.too_long:
            told += f", {self.too_long} too long and left out"
        return told if self.loss is None else f"{told}, loss {self.loss:.3f}"


def has_begun(out: Path) -> bool:
    """Whether a call was ended amid the fine-tuning in this folder."""
    return (out / TRAINER / BEGUN / FILE).is_file()


def record_of(config: TrainConfig, source: Path | None) -> dict[str, object]:
    """What a fine-tuning depends on, beside its examples."""
    first = config.model if source is None else str(source)
    return {**to_record(config), BEGUN_FROM: first}


def begin(
    examples: Sequence[Example], config: TrainConfig, device: str, source: Path | None
) -> Policy:
    """The checkpoint in `source`, else the config's model, before this training."""
    if source is None and config.model == NEW:
        drawn = random.Random(config.seed)
        shown = drawn.sample(list(examples), min(len(examples), TOKENIZED))
        texts = [e.reply for e in shown]
        # The system message is the same on every day; what a user's says was measured is not.
        texts += [m["content"] for e in shown for m in e.messages if m["role"] == "system"]
        asked = [m["content"] for e in shown for m in e.messages if m["role"] != "system"]
        policy = new_policy(texts, config.shape, config.name, config.seed, asked)
        policy.model.to(device)
        return policy
    policy = load_policy(source or config.model, config.name, device, config.dtype)
    policy.version = 0
    return with_adapters(policy, config)


def sft(
    examples: Sequence[Example], config: TrainConfig, out: Path, device: str, source: Path | None
) -> Fitted:
    """Fine-tune the config's model, or the checkpoint in `source`, and write it to `out`.

    The same call goes on after a kill; one that had ended, or would learn otherwise than it began,
    raises ConfigError, as where another process is at it.
    """
    refuse_evaluated((e.task_id for e in examples), config.transductive)
    if (out / FILE).is_file():
        raise ConfigError(f"{out}: holds a checkpoint already; name another folder")
    _refuse_foreign(out)
    processes = PartialState(cpu=device == "cpu")  # On a GPU, makes its own one the current one.
    if not processes.is_main_process:
        return _fitted(examples, config, out, device, source, processes)
    with _alone(out):
        return _fitted(examples, config, out, device, source, processes)


def _fitted(
    examples: Sequence[Example],
    config: TrainConfig,
    out: Path,
    device: str,
    source: Path | None,
    processes: PartialState,
) -> Fitted:
    scratch = out / TRAINER
    begun = scratch / BEGUN
    record = {
        **record_of(config, source),
        EXAMPLES: digest([asdict(e) for e in examples]),
        PROCESSES: processes.num_processes,
    }
    with processes.main_process_first():  # Whose policy, random weights included, all have then.
        goes_on = has_begun(out)
        if goes_on:
            refuse_other(FINE_TUNING, record, out)
            policy = load_policy(begun, config.name, device, config.dtype)
            refuse_coarse(policy)
        else:
            policy = begin(examples, config, device, source)
            policy.transductive |= config.transductive
            for example in examples:
                policy.taught |= teaches(example.composition, example.family, example.size)
        fitting = tokens_of(examples, policy, config)
        known_optimizer(policy, config, scratch)
        if not goes_on:  # What could not begin may be set right.
            out.mkdir(parents=True, exist_ok=True)
            keep_config(record, out)
            with full_disk_told(out):
                policy.save(begun)
    figures, weights = fine_tune(policy, fitting, config, scratch)
    if processes.is_main_process:
        with full_disk_told(out):
            policy.save(out, weights)
        shutil.rmtree(scratch)
    processes.wait_for_everyone()
    return Fitted(
        out,
        len(fitting),
        len(examples) - len(fitting),
        policy.parameters,
        figures.get("train_loss"),
    )


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Raises ConfigError where another process fine-tunes into the folder. What ends before it has
    begun leaves nothing there.
    """
    scratch = out / TRAINER
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{out}: another process fine-tunes into this folder; wait for it, or name another"
            ) from error
        except OSError as error:
            log.info("%s: no file locks here (%s); name it in one call alone", out, error.strerror)
        try:
            yield
        finally:
            if not has_begun(out):
                shutil.rmtree(scratch, ignore_errors=True)
                if out.is_dir() and not any(out.iterdir()):
                    out.rmdir()


def _refuse_foreign(out: Path) -> None:
    """Raises ConfigError where the folder holds what no fine-tuning in it has written."""
    if not out.is_dir() or has_begun(out):
        return
    others = sorted({path.name for path in out.iterdir()} - OURS)
    if others:
        raise ConfigError(f"{out}: holds {others[0]}, which would be lost; name another folder")


def tokens_of(examples: Sequence[Example], policy: Policy, config: TrainConfig) -> list[Tokens]:
    """Those that are not too long; raises ConfigError where all are."""
    prompts = policy.prompts_ids(e.messages for e in examples)
    tokens = list(map(Tokens, prompts, policy.replies_ids(e.reply for e in examples)))
    longest = min(config.sft.max_tokens, policy.context)
    fitting = [t for t in tokens if len(t.prompt) + len(t.reply) <= longest]
    if not fitting:
        remedy = (
            "raise sft.max_tokens"
            if config.sft.max_tokens < policy.context
            else "take a policy of more context"
        )
        raise ConfigError(f"all {len(tokens)} examples are over {longest} tokens; {remedy}")
    return fitting
