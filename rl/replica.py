"""What every rank of a training holds: policy, optimizer, and the weights that KL is measured from.

It samples and is updated. What for is rl/grpo.py's to say, and who else does so rl/ranks.py's.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from rl.anchor import Anchor, anchor_of
from rl.config import SamplingConfig, TrainConfig
from rl.kept import full_disk_told
from rl.policy import Policy, Sample, load_policy
from rl.resting import Rest, bounded, has_room
from rl.spread import full, is_spread, optimizer_state, set_optimizer_state, whole
from rl.trainers import Group, optimizer_of, update
from sandbox.errors import ConfigError, WarpsmithError

OPTIMIZER = "optimizer.pt"


class Replica:
    """Equal in every rank, from `open` on and after each `update`, or a part in each."""

    policy: Policy
    anchor: Anchor | None
    optimizer: Any
    rest: Rest | None
    """Where it is offloaded."""

    def __init__(self, config: TrainConfig, device: str, ranks: int = 1) -> None:
        """`ranks`: how many there are."""
        self.config, self.device, self.ranks = config, device, ranks
        bounded(config, device)

    def load(self, folder: Path | str) -> None:
        """The weights in it, to sample alone."""
        self._read(folder)
        self._rest(None)

    def _read(self, folder: Path | str) -> None:
        over = self.ranks if self.config.rl.spread else 1
        with has_room(self.config):
            self.policy = load_policy(folder, "", self.device, self.config.dtype, ranks=over)

    def _rest(self, optimizer: Any) -> None:
        self.rest = Rest(self.policy, optimizer) if self.config.offload else None
        if self.rest is not None:
            self.rest.begin()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with has_room(self.config), self.rest.over() if self.rest else nullcontext():
            yield

    def open(self, start: Path | str, newest: Path | None, scratch: Path) -> None:
        """The weights in `start`, or where there is one the run's newest checkpoint; trainers keep
        in `scratch` what they must.
        """
        config, self.scratch = self.config, scratch
        self._read(newest or start)
        self.policy = with_adapters(self.policy, config)
        self.policy.transductive |= config.transductive
        self.anchor = None
        if config.rl.beta:
            known = self.policy
            if newest is not None and hasattr(known.model, "peft_config"):
                known = with_adapters(load_policy(start, "", "cpu", config.dtype), config)
            self.anchor = anchor_of(known, start)
        self.policy.version = 0 if newest is None else int(newest.name)
        self.optimizer = optimizer_of(self.policy, config, scratch)
        if newest is not None:
            # Of what is spread the whole is many times a part, and stays in the file until then.
            spread = is_spread(self.policy.model)
            where = "cpu" if spread else self.device
            kept = torch.load(
                newest / OPTIMIZER, map_location=where, mmap=spread, weights_only=True
            )
            set_optimizer_state(self.policy.model, self.optimizer, kept)
        self._rest(self.optimizer)

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Sample | None]:
        """As the policy samples."""
        with self._at_work(), whole(self.policy.model):
            return self.policy.sample(prompts, sampling, seeds)

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """A next version of the weights; returns TRL's figures. All ranks take it together. Raises
        WarpsmithError where it left no numbers.
        """
        with self._at_work():
            return self._update(groups)

    def _update(self, groups: Sequence[Group]) -> dict[str, float]:
        figures = update(
            self.policy, groups, self.optimizer, self.config, self.scratch, self.anchor
        )
        trained = (p for p in self.policy.model.parameters() if p.requires_grad)
        if not all([bool(full(p.isfinite().all())) for p in trained]):
            raise WarpsmithError(
                f"update {self.policy.version + 1} made weights that are not finite; lower "
                f"rl.learning_rate ({self.config.rl.learning_rate:g}) or rl.max_grad_norm in a run "
                "of another name, from a checkpoint of this one"
            )
        self.policy.version += 1
        gc.collect()  # Trainers hold each other in cycles, and with them DDP's gradients.
        self.policy.rest()
        return figures

    def close(self) -> None:
        """Free weights and optimizer."""
        del self.policy, self.optimizer
        self.rest = None
        self.anchor = None
        gc.collect()

    def save(self, folder: Path) -> None:
        """Rank 0 writes; the others give it their parts of what is spread."""
        model = self.policy.model
        state = optimizer_state(model, self.optimizer)
        if PartialState(cpu=self.device == "cpu").is_main_process:
            with full_disk_told(folder.parent):
                self.policy.save(folder)
                torch.save(state, folder / OPTIMIZER)
        elif is_spread(model):
            model.save_pretrained(folder)


def with_adapters(policy: Policy, config: TrainConfig) -> Policy:
    """LoRA's in place of full fine-tuning, where the config says so."""
    if config.lora is not None and not hasattr(policy.model, "peft_config"):
        from peft import LoraConfig, get_peft_model

        wanted = LoraConfig(
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            lora_dropout=config.lora.dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng([]):
            torch.manual_seed(config.seed)  # Every rank draws the same ones.
            policy.model = get_peft_model(policy.model, wanted)
    refuse_coarse(policy)
    return policy


def refuse_coarse(policy: Policy) -> None:
    """Raises ConfigError where the weights that are trained would not keep what an update does."""
    kinds = {p.dtype for p in policy.model.parameters() if p.requires_grad} - {torch.float32}
    if kinds:
        # Of weights in bfloat16 a step of 1e-6 changed 0.3 % (of a tiny policy's, 5 updates), in
        # float32 82 %: what is below half a unit in the last place is rounded away each time.
        raise ConfigError(
            f"all weights of {policy.name} are trained, and as {kinds.pop()} they lose most of an "
            "update by rounding; set lora, whose adapters are float32, or dtype: float32"
        )
