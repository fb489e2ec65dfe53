"""The evaluator of one device: what a lane runs. Holds the zygote, the builder and prepared
tasks.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from sandbox import judge
from sandbox.build import Builder
from sandbox.cache import cache_root
from sandbox.device import DeviceFacts, device_facts
from sandbox.errors import DeviceError, InvalidReference, SandboxFault, TaskError
from sandbox.prepare import Preparation, Preparer
from sandbox.run import Run
from sandbox.spawn import Zygote
from sandbox.subject import Stand
from sandbox.types import Candidate, EvalConfig, Evaluation, Status, Task

logger = logging.getLogger(__name__)

KEPT_TASKS = 4
"""Prepared tasks kept warm; their secret cases hold device memory."""
INDUCTOR = ("torch._dynamo", "torch._inductor.compile_fx")
"""What the first torch.compile in a process imports for about two seconds."""
KEPT_SHARE = 0.15
ATTEMPTS = 2
"""A fault of ours is retried once before it is reported as SANDBOX_ERROR."""


class LocalEvaluator:
    """Evaluates candidates on this machine's CPU or on one of its GPUs, one at a time."""

    def __init__(
        self, device: str = "cpu", device_index: int = 0, cache_dir: Path | None = None
    ) -> None:
        """Raises DeviceError when the device is not usable."""
        if device not in ("cpu", "cuda"):
            raise DeviceError(f"unknown device {device!r}; expected 'cpu' or 'cuda'")
        self.device = device
        cache = cache_dir or cache_root()
        if device == "cuda":
            if not torch.cuda.is_available():
                raise DeviceError(
                    "no usable NVIDIA GPU: check nvidia-smi and that torch has CUDA support, "
                    "or use --device cpu"
                )
            torch.cuda.set_device(device_index)
        self._zygote = Zygote(device, device_index)
        self._zygote.start()
        self._facts = device_facts(device, cache)
        if device == "cpu":
            # Our OpenMP threads would spin for milliseconds after each copy, on the candidate's
            # cores: single-set calls then cost 4 ms more than batched ones (measured, 2 cores).
            torch.set_num_threads(1)
        self._synchronize: Callable[[], None] = (
            torch.cuda.synchronize if device == "cuda" else lambda: None
        )
        self._builder = Builder(cache)
        self._stand = Stand(self._zygote)
        self._compiling = Zygote(device, device_index, imports=INDUCTOR)
        self._compilers = Stand(self._compiling)
        self._preparer = Preparer(
            self._stand, self._compilers, self._facts, cache, self._synchronize
        )
        self._prepared: OrderedDict[str, Preparation | InvalidReference] = OrderedDict()

    @property
    def facts(self) -> DeviceFacts:
        """What the device can do, measured."""
        return self._facts

    def prepare(self, task: Task, config: EvalConfig) -> Preparation:
        """Admit the task and time its baselines, or return what is warm.

        Raises InvalidReference where the task cannot be scored, TaskError where it is for another
        device.
        """
        if task.device != self.device:
            raise TaskError(
                f"{task.id} is for device {task.device}; this evaluator has {self.device}"
            )
        key = f"{task.hash}-{config.id}"
        found = self._prepared.get(key)
        if found is None:
            try:
                found = self._preparer.prepare(task, config)
            except InvalidReference as error:
                found = error
            self._prepared[key] = found
            self._forget()
        self._prepared.move_to_end(key)
        if isinstance(found, InvalidReference):
            raise found
        return found

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        """Judge and time one candidate; never raises for a candidate's, a task's or a worker's
        fault.
        """
        start = time.monotonic()
        for attempt in range(ATTEMPTS):
            try:
                result = self._evaluate(task, candidate, config, to_beat)
            except InvalidReference as error:
                invalid = Evaluation(task.id, candidate.id, config.id, Status.INVALID_REFERENCE)
                return replace(invalid, detail=str(error))
            except (SandboxFault, DeviceError, OSError) as error:
                result = judge.fault(task.id, candidate.id, config, str(error))
            if result.status is not Status.SANDBOX_ERROR:
                break
            logger.warning("attempt %d on %s: %s", attempt + 1, task.id, result.detail)
        total = time.monotonic() - start
        return replace(result, seconds={**result.seconds, "total": total})

    def _forget(self) -> None:
        """Drop the tasks used longest ago, beyond KEPT_TASKS or KEPT_SHARE of the memory."""
        room = KEPT_SHARE * self._facts.memory_bytes
        while len(self._prepared) > 1:
            held = sum(p.bytes for p in self._prepared.values() if isinstance(p, Preparation))
            if len(self._prepared) <= KEPT_TASKS and held <= room:
                return
            self._prepared.popitem(last=False)
            if self.device == "cuda":
                torch.cuda.empty_cache()

    def close(self) -> None:
        """End every process this evaluator started."""
        self._prepared.clear()
        self._preparer.cool()
        self._stand.settle()
        self._compiling.close()
        self._builder.close()
        self._zygote.close()

    def _evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, to_beat: float | None
    ) -> Evaluation:
        start = time.monotonic()
        preparation = self.prepare(task, config)
        prepared_s = time.monotonic() - start
        run = Run(
            self._stand,
            self._builder,
            self._preparer,
            preparation,
            candidate,
            config,
            self._facts,
            self._synchronize,
        )
        observation = run.observe(to_beat)
        result = judge.judge(observation, preparation.null, config)
        baselines = preparation.baselines if result.timing is not None else ()
        seconds = {"prepare": prepared_s, **result.seconds}
        return replace(result, baselines=baselines, seconds=seconds)
