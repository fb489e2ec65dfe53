"""The one module that knows TRL: supervised fine-tuning, and a GRPO update on given rollouts.

The campaign has sampled and judged the rollouts already, with these very weights or, where cohorts
take turns (agent/loop/lessons.py), with earlier ones: TRL is handed their tokens, rewards and, of
what earlier weights wrote, log-probabilities by `rollout_func` and does advantages, clipping, loss
and the step. The optimizer outlives a trainer, since every generation of rollouts gets a trainer of
its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Before trl is imported: it warns once per trainer that rollout_func may change.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from accelerate import PartialState
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames
from transformers.utils import is_torch_tf32_available
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from rl.anchor import Anchor
from rl.config import TrainConfig
from rl.kept import full_disk_told
from rl.policy import Policy
from rl.telling import Progress
from sandbox.errors import ConfigError

MANY = 1000
"""Examples that are put into batches by processes of their own, on a GPU."""
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing", "gradient_checkpointing")
    if name in TrainingArguments.__dataclass_fields__
)
"""As this version of transformers calls it: the older name is on its way out."""
IGNORED = -100
"""A label of no token."""


@dataclass(frozen=True)
class Group:
    """Replies whose worth is compared, as tokens: to one prompt, or repairs on one task."""

    key: str
    """Distinct among the groups of an update."""
    prompts: list[list[int]]
    """Each reply's own."""
    replies: list[list[int]]
    rewards: list[float | None]
    log_probabilities: list[list[float]] | None = None
    """Of each reply's tokens, by the weights that wrote them; None where the present ones did."""


@dataclass(frozen=True)
class Tokens:
    """One supervised example."""

    prompt: list[int]
    reply: list[int]


class Unmasked(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """Pads on the right, where no token of an example looks under causal attention, and says so by
    a mask of ones: attention then takes the kernel that needs none.
    """

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        batch: dict[str, Any] = super().torch_call(examples)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch


def fine_tune(
    policy: Policy, examples: Sequence[Tokens], config: TrainConfig, folder: Path
) -> tuple[dict[str, float], dict[str, torch.Tensor] | None]:
    """SFT on the replies alone; returns the trainer's last figures and, where several processes
    train, the weights that they have together. Resumes what a kill left in `folder`, where TRL
    keeps its checkpoints.
    """
    settings = config.sft
    rows = {
        "input_ids": [e.prompt + e.reply for e in examples],
        # As TRL would make them of a mask, token by token, in 7 s for 12,000 examples.
        "labels": [[IGNORED] * len(e.prompt) + e.reply for e in examples],
    }
    # Not of few: their processes would be forked from one that had many threads to sample with.
    beside = policy.model.device.type == "cuda" and len(examples) >= MANY
    arguments = SFTConfig(
        **common(policy, config, folder, settings.learning_rate, mixed=True),
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulate,
        num_train_epochs=settings.epochs,
        warmup_steps=settings.warmup_share,
        lr_scheduler_type="cosine",
        adam_beta2=settings.adam_beta2,
        max_length=None,
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=1,
        logging_steps=10,
        eos_token=policy.tokenizer.eos_token,
        # Attention over padding took most of a step: like lengths together.
        train_sampling_strategy="group_by_length",
        dataloader_num_workers=2 if beside else 0,
    )
    trainer = SFTTrainer(
        model=policy.model,
        args=arguments,
        train_dataset=Dataset.from_dict(rows),
        processing_class=policy.tokenizer,
        data_collator=Unmasked(policy.tokenizer.pad_token_id),
        callbacks=[Progress()],
    )
    trainer.remove_callback(PrinterCallback)
    newest = max(filter(_whole, folder.glob("checkpoint-*")), key=_step, default=None)
    with full_disk_told(folder):
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    several = trainer.accelerator.num_processes > 1
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped) if several else None
    policy.model = released(trainer)
    figures = numbers({k: v for row in trainer.state.log_history for k, v in row.items()})
    if newest is not None:
        del figures[
            "train_loss"
        ]  # The mean of the steps since the kill alone, of which none may be.
    return figures, weights


def _whole(checkpoint: Path) -> bool:
    """Not one whose last file a full disk or a kill has cut off."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return True


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def optimizer_of(policy: Policy, config: TrainConfig, folder: Path) -> Any:
    """The config's, as transformers makes it, for all updates of a run; without weight decay.
    Raises what `known_optimizer` does.
    """
    make, settings = known_optimizer(policy, config, folder)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    groups = settings.pop("params", [{"params": trained}])
    return make([group | {"weight_decay": 0.0} for group in groups], **settings)


def known_optimizer(policy: Policy, config: TrainConfig, folder: Path) -> tuple[Any, Any]:
    """The class of the config's optimizer, and what that is made with for RL.

    Raises ConfigError where there is none of its name, or its package is not installed.
    """
    known = common(policy, config, folder, config.rl.learning_rate)
    # Nothing of torch is to change yet: the device may still be measured.
    arguments = TrainingArguments(**known | {"tf32": None})
    try:
        found: tuple[Any, Any] = Trainer.get_optimizer_cls_and_kwargs(arguments, policy.model)
    except ImportError as error:
        raise ConfigError(f"optimizer {config.optimizer}: {error}") from error
    if config.optimizer.startswith("galore"):
        know_projectors()
    return found


def know_projectors() -> None:
    """Let checkpoints with what a GaLore optimizer keeps beside tensors be read, as they are on
    going on; nothing where GaLore is not installed.
    """
    with suppress(ImportError):
        projector = import_module("galore_torch.galore_projector").GaLoreProjector
        torch.serialization.add_safe_globals([projector])


def update(
    policy: Policy,
    groups: Sequence[Group],
    optimizer: Any,
    config: TrainConfig,
    folder: Path,
    anchor: Anchor | None = None,
) -> dict[str, float]:
    """`rl.iterations` GRPO steps on the groups; returns TRL's figures of the last. TRL leaves
    replies without a reward out of its baseline, and does not see their tokens; such ones fill up a
    group with fewer replies than `rl.group`. `rl.beta` holds the policy to `anchor`.
    Where several processes call it with equal weights and groups, each takes an equal share.
    """
    settings = config.rl
    processes = PartialState(cpu=policy.model.device.type == "cpu").num_processes
    filled = _filled(groups, settings.group, processes)
    rows = [row for group in filled for row in group]
    aged = any(group.log_probabilities is not None for group in groups)
    share = len(rows) // processes
    at_most = settings.batch or settings.group
    together = next(n for n in range(at_most, 0, -1) if share % n == 0)

    def rollout(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        first = trainer.accelerator.process_index * share
        mine = rows[first : first + share]
        assert [row.key for row in mine] == list(prompts), "TRL hands out prompts in another order"
        return {
            "prompt_ids": [row.prompt for row in mine],
            "completion_ids": [row.reply for row in mine],
            # On-policy: TRL takes the old policy to be the present one, or asks it beforehand.
            "logprobs": [row.log_probabilities for row in mine] if aged else None,
            "env_mask": [[int(row.reward is not None)] * len(row.reply) for row in mine],
            "worth": [row.reward for row in mine],
        }

    def judged(worth: Sequence[float | None], **_: object) -> list[float | None]:
        return list(worth)

    arguments = GRPOConfig(
        **common(policy, config, folder, settings.learning_rate),
        per_device_train_batch_size=together,
        gradient_accumulation_steps=share // together,
        num_generations=settings.group,
        max_completion_length=config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        top_p=config.sampling.top_p,
        num_iterations=settings.iterations,
        max_steps=settings.iterations,
        lr_scheduler_type="constant",
        max_grad_norm=settings.max_grad_norm,
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        beta=settings.beta,
        loss_type=settings.loss,
        scale_rewards=settings.scale,
        save_strategy="no",
        logging_steps=1,
        shuffle_dataset=False,
    )
    # A process trains on its own device, whatever others it sees: lanes measure on those.
    arguments._n_gpu = 1
    embeddings = policy.model.get_input_embeddings()
    hooks = {} if embeddings is None else dict(embeddings._forward_hooks)
    if anchor is not None:
        anchor.before(policy.model)
    trainer = Aged(
        model=policy.model,
        args=arguments,
        reward_funcs=judged,
        train_dataset=Dataset.from_dict({"prompt": [rows[0].key for rows in filled]}),
        processing_class=policy.tokenizer,
        optimizers=(optimizer, LambdaLR(optimizer, constant)),
        rollout_func=rollout,
    )
    trainer.remove_callback(PrinterCallback)  # The campaign tells, in a line.
    try:
        if anchor is not None:
            anchor.held(unwrapped(trainer))
        trainer.train()
    finally:
        policy.model = released(trainer, hooks)
        if anchor is not None:
            anchor.after(policy.model)
        policy.rest()
    return numbers({k: v for row in trainer.state.log_history for k, v in row.items()})


class Aged(GRPOTrainer):  # type: ignore[misc]
    """Replies of earlier weights count by how much likelier they have become since these wrote
    them, clipped as a step's own change is: the log-probabilities that came with them are the old
    policy's, which TRL would else take to be the present one.
    """

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        found: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "sampling_per_token_logps" in found:
            found["old_per_token_logps"] = found["sampling_per_token_logps"]
        return found


def constant(step: int) -> float:
    return 1.0


def common(
    policy: Policy, config: TrainConfig, folder: Path, learning_rate: float, mixed: bool = False
) -> dict[str, Any]:
    """What both trainers are told; `mixed` multiplies in bfloat16 on a GPU that can, whatever the
    weights' type, which RL does not: its policy is to write as it was sampled.
    """
    cpu = policy.model.device.type == "cpu"
    known = sorted(name.value for name in OptimizerNames)
    if config.optimizer not in known:
        raise ConfigError(f"no optimizer {config.optimizer!r}; expected one of {', '.join(known)}")
    return {
        "output_dir": str(folder),
        "optim": config.optimizer,
        "optim_target_modules": "all-linear",  # Of GaLore and APOLLO; others do not look.
        "learning_rate": learning_rate,
        "use_cpu": cpu,
        "bf16": not cpu
        and (config.dtype == "bfloat16" or (mixed and torch.cuda.is_bf16_supported())),
        "tf32": True if not cpu and is_torch_tf32_available() else None,
        CHECKPOINTING: config.gradient_checkpointing,
        "seed": config.seed,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": not cpu,
        "ddp_find_unused_parameters": False,  # There are none; looking for them costs a pass.
    }


def unwrapped(trainer: Any) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model)


WRAPPED = ("forward", "_original_forward", "_is_accelerate_prepared")
"""What accelerate and TRL leave on a model that they wrap."""


def released(trainer: Any, hooks: Mapping[int, Any] = MappingProxyType({})) -> Any:
    """The model as it was before the trainer: mixed precision is its calls' no more, which a cache
    of keys could not hold, and the next trainer wraps it anew. Nor do its embeddings ask for
    gradients: for checkpointing TRL and transformers each see to that, without looking whether it
    was done before, and keep one handle of several. `hooks` of theirs were there before.
    """
    model = unwrapped(trainer)
    inner = [model.get_base_model()] if hasattr(model, "peft_config") else []
    for each in (model, *inner):
        for name in WRAPPED:
            vars(each).pop(name, None)
    if (embeddings := model.get_input_embeddings()) is not None:
        embeddings._forward_hooks.clear()
        embeddings._forward_hooks.update(hooks)
    return model


def numbers(row: Mapping[str, object]) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if isinstance(v, int | float)}


@dataclass(frozen=True)
class _Row:
    """One reply, as TRL is handed it."""

    key: str
    prompt: list[int]
    reply: list[int]
    reward: float | None
    """None of what does not count: TRL does not see its tokens."""
    log_probabilities: list[float]


def _filled(groups: Sequence[Group], size: int, processes: int) -> list[list[_Row]]:
    """Groups of `size` rows, so many that they are equal shares for the processes."""
    found = []
    for group in groups:
        lacking = size - len(group.replies)
        if lacking < 0:
            raise ValueError(f"{size - lacking} replies in one group; expected at most {size}")
        likely = group.log_probabilities or [[]] * len(group.replies)
        replies = zip(group.prompts, group.replies, group.rewards, likely, strict=True)
        filling = _Row(group.key, group.prompts[0], group.replies[0][:1], None, [0.0])
        found.append([_Row(group.key, *reply) for reply in replies] + [filling] * lacking)
    while len(found) * size % processes:
        found.append([replace(filling, key=f"filling {len(found)}")] * size)
    return found
