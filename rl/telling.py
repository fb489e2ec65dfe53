"""What training says of itself while it goes on: a line now and then, and no more."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils.logging import disable_progress_bar

EVERY_S = 10.0


def hush() -> None:
    """Weights are saved after every update: no bar each. And TRL calls transformers by names that
    these announce the end of, which is neither's users' to mend.
    """
    disable_progress_bar()
    warnings.filterwarnings("ignore", ".*gradient_checkpointing", FutureWarning)


class Progress(TrainerCallback):  # type: ignore[misc]
    """In place of a dictionary of all figures for every few steps."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_: object,
    ) -> None:
        if not state.is_world_process_zero or logs is None or "loss" not in logs:
            return
        now_s, last = time.monotonic(), state.global_step >= state.max_steps
        if now_s < self._next_s and not last:
            return
        self._next_s = now_s + EVERY_S
        epoch = f"epoch {state.epoch:.1f} of {args.num_train_epochs:g}"
        loss = f"loss {float(logs['loss']):.3f}"
        print(f"step {state.global_step} of {state.max_steps} ({epoch}): {loss}", flush=True)
