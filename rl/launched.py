"""What accelerate's launcher says of FSDP and DeepSpeed, as this trainer's own settings.

Either would keep a part of the weights on each rank, for all that it does; here every rank samples
with all of them. So theirs are taken as what they ask for, weights spread while they are learned
(rl/spread.py), and not as the libraries that would do it. Nor may the launcher compute updates
otherwise than replies were sampled, which its trainer would do without a word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.utils import parse_flag_from_env

from rl.config import TrainConfig
from sandbox.errors import ConfigError

USED = "ACCELERATE_USE_"
"""Before FSDP or DEEPSPEED, in the environment: what accelerate's launcher has from its file."""
UNSPREAD = ("NO_SHARD", "3")
"""Of FSDP's first version: every rank holds all."""
STAGE = 2
"""Of ZeRO, where accelerate's file names none."""
OURS = {"optimizer": "optimizer", "scheduler": "rl.learning_rate"}
"""Sections of a DeepSpeed file, and what says the same here."""


PRECISION = {"no": ("float32", "bfloat16"), "bf16": ("bfloat16",)}
"""Of accelerate's mixed precision: the `dtype`s whose replies are sampled in the same."""


@dataclass(frozen=True)
class Asked:
    spread: bool
    offload: str = ""
    """The setting that keeps weights in the host's memory, if any."""
    checkpointing: bool = False


def as_launched(config: TrainConfig) -> TrainConfig:
    """The config with what accelerate's file says of FSDP or DeepSpeed: `rl.spread`, and FSDP's
    checkpointing. In every rank, before it joins; what trains afterwards sees neither, which would
    spread once more. Raises ConfigError where weights are offloaded, or an optimizer is named, or
    updates would have another precision than `dtype`.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if config.dtype not in PRECISION.get(precision, ()):
        raise ConfigError(
            f"accelerate's mixed_precision is {precision}, and the train config's dtype is "
            f"{config.dtype}, in which replies are sampled: in RL both are to be the same, so take "
            "mixed_precision no"
        )
    for kind, read in {"FSDP": _fsdp, "DEEPSPEED": _deepspeed}.items():
        if not parse_flag_from_env(f"{USED}{kind}"):
            continue
        asked = read()
        if asked.offload:
            raise ConfigError(
                f"{asked.offload} computes with weights in the host's memory, which updates here "
                "do not: switch it off, and take more ranks or lora where they are too many (the "
                "train config's offload frees the GPU for lanes alone)"
            )
        del os.environ[f"{USED}{kind}"]
        config = replace(
            config,
            rl=replace(config.rl, spread=config.rl.spread or asked.spread),
            gradient_checkpointing=config.gradient_checkpointing or asked.checkpointing,
        )
    return config


def _fsdp() -> Asked:
    old = int(os.environ.get("FSDP_VERSION", "1")) < 2
    whole = old and os.environ.get("FSDP_SHARDING_STRATEGY", "").upper() in UNSPREAD
    offloads = parse_flag_from_env("FSDP_OFFLOAD_PARAMS")
    return Asked(
        not whole,
        "fsdp_offload_params" if offloads else "",
        parse_flag_from_env("FSDP_ACTIVATION_CHECKPOINTING"),
    )


def _deepspeed() -> Asked:
    """ZeRO's stages (arXiv 1910.02054): the first spreads what the optimizer keeps, the second
    gradients as well, the third weights too, which is what spreading here is.
    """
    name = _said("CONFIG_FILE")
    values = _read(name) if name else {}
    for section, ours in OURS.items():
        if section in values:
            raise ConfigError(
                f"{name} has a section {section}; in RL it is the train config's to say ({ours}): "
                "take it out"
            )
    zero = values.get("zero_optimization", {})
    offloads = [
        f"offload_{what}"
        for what in ("param", "optimizer")
        if _said(f"OFFLOAD_{what.upper()}_DEVICE") or _device(zero.get(f"offload_{what}"))
    ]
    stage = zero.get("stage", 0) if name else _said("ZERO_STAGE") or STAGE
    return Asked(str(stage) != "0", offloads[0] if offloads else "")


def _said(setting: str) -> str:
    """Of the launcher; empty where it said nothing."""
    value = os.environ.get(f"ACCELERATE_DEEPSPEED_{setting}", "")
    return "" if value.lower() == "none" else value


def _device(section: Any) -> bool:
    """Whether a section of a DeepSpeed file moves something off the GPU."""
    return isinstance(section, Mapping) and section.get("device", "none") not in (None, "none")


def _read(name: str) -> Mapping[str, Any]:
    try:
        values = json.loads(Path(name).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: no DeepSpeed config that can be read: {error}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name}: expected an object of DeepSpeed's settings")
    return values
