"""One worker with its model and its arenas, seen from the supervisor: reference, baseline or
candidate.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from sandbox import memory
from sandbox.memory import Arena
from sandbox.observation import Failure, FailureKind
from sandbox.spawn import Worker, WorkerFailed, Zygote
from sandbox.trees import CLAIM_ERRORS, Layout, Leaf
from sandbox.types import Candidate, EvalConfig, Task

logger = logging.getLogger(__name__)

POISON = 0xFF
"""Byte written over output slots and used inputs: NaN in every float type, -1 in every integer."""


@dataclass(frozen=True)
class Signature:
    """What the reference's worker told about the model at one shape."""

    shape: int
    seed: int
    init: dict[str, Any]
    input_tree: dict[str, Any]
    inputs: tuple[Leaf, ...]
    state: tuple[tuple[str, Leaf], ...]
    output_tree: dict[str, Any]
    outputs: tuple[Leaf, ...]
    classes: tuple[str, ...]
    """Stride class of each output leaf."""
    repeatable: bool
    mutates: bool
    moves_state: bool
    aliases: bool
    latency_s: float
    fill_s: float
    """Seconds to make one input set: single-threaded and slow on the CPU."""

    @property
    def input_bytes(self) -> int:
        return Layout(self.inputs, 1).stride

    @property
    def output_bytes(self) -> int:
        return Layout(self.outputs, 1).stride


@dataclass(frozen=True)
class Opening:
    """How a reference's model is built."""

    shape: int = 0
    randomise: bool = True
    """False for candidates whose parameters match only through the shared seed."""
    wrap: str | None = None
    """Baseline: compile, max_autotune or cuda_graph."""
    known: Signature | None = None
    """From an earlier worker: spares another examination."""


class Subject:
    """Requests to one worker at one shape; closes its arenas with it."""

    def __init__(self, worker: Worker, task: Task, config: EvalConfig, stage: str) -> None:
        self.worker = worker
        self.task = task
        self.config = config
        self.stage = stage
        self.arenas: dict[str, Arena] = {}
        self.layouts: dict[str, Layout] = {}

    def setup(self, threads: int) -> None:
        tf32 = self.config.tf32 and not self.task.exact_float32
        self.request(
            "setup",
            self.config.load_timeout_s,
            device=self.task.device,
            dtype=self.task.dtype,
            threads=threads,
            tf32=None if self.config.torch_default_precision else tf32,
        )

    def load(self, source: str) -> None:
        self.request("load", self.config.load_timeout_s, source=source)

    def attach(self, name: str, layout: Layout, tree: dict[str, Any] | None = None) -> None:
        """Allocate an arena and share it with the worker under `name`, unless it has such a one."""
        if self.layouts.get(name) == layout and name in self.arenas:
            return
        self.detach(name)
        arena = memory.allocate(layout.bytes, self.task.device)
        self.arenas[name], self.layouts[name] = arena, layout
        self.worker.arena_bytes = sum(a.bytes.numel() for a in self.arenas.values())
        self.request(
            "attach",
            self.config.load_timeout_s,
            fds=arena.fds,
            name=name,
            ticket=arena.ticket(),
            leaves=[leaf.to_json() for leaf in layout.leaves],
            sets=layout.sets,
            tree=tree or {},
        )

    def attach_all(self, signature: Signature, sets: int, slots: int) -> None:
        """Inputs, output slots and state for one shape."""
        self.attach("inputs", Layout(signature.inputs, sets), signature.input_tree)
        self.attach("slots", Layout(signature.outputs, slots))
        self.attach("state", Layout(tuple(leaf for _, leaf in signature.state), 1))

    def rest(self) -> None:
        """Keep the worker and its model, free its arenas and what it has cached."""
        self.request("rest", self.config.load_timeout_s)
        for name in list(self.arenas):
            self.detach(name)

    def detach(self, name: str) -> None:
        arena = self.arenas.pop(name, None)
        if arena is not None:
            arena.close()

    def release(self) -> None:
        """Drop the worker's model and arenas, keep the worker."""
        self.request("release", self.config.load_timeout_s)
        for name in list(self.arenas):
            self.detach(name)

    def leaf(self, name: str, index: int, leaf: int) -> torch.Tensor:
        """Supervisor's view of one leaf of one set."""
        return memory.leaf_view(self.arenas[name].bytes, self.layouts[name], index, leaf)

    def stack(self, name: str, leaf: int) -> torch.Tensor:
        """Supervisor's (sets, *shape) view of one leaf of every set."""
        return memory.stacked_view(self.arenas[name].bytes, self.layouts[name], leaf)

    def set_bytes(self, name: str, first: int, count: int = 1) -> torch.Tensor:
        """Supervisor's (bytes,) uint8 view of consecutive sets."""
        stride = self.layouts[name].stride
        return self.arenas[name].bytes[first * stride : (first + count) * stride]

    def poison(self, name: str, first: int, count: int) -> None:
        self.set_bytes(name, first, count).fill_(POISON)

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        return self.worker.request(op, stage=self.stage, timeout_s=timeout_s, **fields)

    def warm(self, sets: list[int]) -> None:
        self.request("warm", self.config.run_timeout_s, sets=sets)

    def go(self, sets: list[int]) -> float:
        """Seconds from "go" to "done" by the supervisor's clock."""
        start = time.perf_counter()
        self.worker.send("go", stage=self.stage, sets=sets)
        self.worker.reply(stage=self.stage, timeout_s=self.config.run_timeout_s)
        return time.perf_counter() - start

    def collect(self, sets: list[int]) -> tuple[float, dict[str, Any]]:
        """Seconds to copy the outputs to their slots, and what the worker claims about them."""
        start = time.perf_counter()
        claim = self.request("collect", self.config.run_timeout_s, sets=sets)
        return time.perf_counter() - start, claim

    def close(self) -> None:
        self.worker.close()
        for name in list(self.arenas):
            self.detach(name)


Started = TypeVar("Started")
AlsoStarted = TypeVar("AlsoStarted")


def _subject_of(started: object) -> Subject:
    found = started[0] if isinstance(started, tuple) else started
    assert isinstance(found, Subject)
    return found


class Stand:
    """Starts subjects for one device: the zygote, and how workers are set up on it."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote = zygote
        self._closer = ThreadPoolExecutor(1, "closer")
        self._closing: list[Future[None]] = []

    def retire(self, subject: Subject) -> None:
        """Close a subject in the background: the driver takes a while to unmap a dead context."""
        self._closing.append(self._closer.submit(subject.close))

    def settle(self) -> None:
        """Wait until every retired subject is gone; raises SandboxFault for one that survives."""
        closing, self._closing = self._closing, []
        start = time.perf_counter()
        for future in closing:
            future.result()
        logger.debug("settled in %.1f ms", (time.perf_counter() - start) * 1e3)

    def start_both(
        self, first: Callable[[], Started], second: Callable[[], AlsoStarted]
    ) -> tuple[Started, AlsoStarted]:
        """Two starts side by side; if either fails, what the other started is retired."""
        with ThreadPoolExecutor(1, "starter") as pool:
            other = pool.submit(second)
            try:
                one = first()
            except BaseException:
                if other.exception() is None:
                    self.retire(_subject_of(other.result()))
                raise
            try:
                return one, other.result()
            except BaseException:
                self.retire(_subject_of(one))
                raise

    def reference(
        self,
        task: Task,
        config: EvalConfig,
        opening: Opening,
        preload: Sequence[tuple[Path, str]] = (),
    ) -> tuple[Subject, Signature]:
        """A fresh reference worker, its model open, and what it looks like."""
        subject = self._subject("reference", task, config, "reference", preload)
        try:
            subject.load(task.source)
            return subject, self.open_reference(subject, opening)
        except BaseException:
            subject.close()
            raise

    def open_reference(self, subject: Subject, opening: Opening) -> Signature:
        task, limit = subject.task, subject.config.run_timeout_s
        seed = secrets.randbits(31) if opening.known is None else opening.known.seed
        opened = subject.request(
            "open",
            limit,
            constants=task.shapes[opening.shape].constants,
            seed=seed,
            state_seed=secrets.randbits(31) if opening.randomise else None,
            wrap=opening.wrap,
        )
        if opening.known is not None:
            return opening.known
        seen = subject.request("examine", limit, seed=secrets.randbits(31))
        return Signature(
            shape=opening.shape,
            seed=seed,
            init=opened["init"],
            input_tree=opened["inputs"]["tree"],
            inputs=tuple(map(Leaf.from_json, opened["inputs"]["leaves"])),
            state=tuple((name, Leaf.from_json(leaf)) for name, leaf in opened["state"]),
            output_tree=seen["outputs"]["tree"],
            outputs=tuple(map(Leaf.from_json, seen["outputs"]["leaves"])),
            classes=tuple(seen["outputs"]["classes"]),
            repeatable=seen["repeatable"],
            mutates=seen["mutates"],
            moves_state=seen["moves_state"],
            aliases=seen["aliases"],
            latency_s=seen["latency_s"],
            fill_s=seen["fill_s"],
        )

    def candidate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        preload: Sequence[tuple[Path, str]] = (),
    ) -> Subject:
        """A fresh candidate worker with the candidate loaded; raises WorkerFailed for its
        faults.
        """
        subject = self._subject("candidate", task, config, "load", preload)
        try:
            subject.load(candidate.source)
        except BaseException:
            subject.close()
            raise
        return subject

    def open_candidate(self, subject: Subject, signature: Signature) -> str:
        """Build ModelNew as the reference was built; returns how its state was matched."""
        claim = subject.request(
            "open", subject.config.load_timeout_s, init=signature.init, seed=signature.seed
        )
        try:
            how, names = match_state(signature.state, claim["state"])
        except CLAIM_ERRORS as error:
            failure = Failure(subject.stage, FailureKind.PROTOCOL, message="a state that is none")
            raise WorkerFailed(failure) from error
        subject.request("bind", subject.config.load_timeout_s, names=names)
        return how

    def _subject(
        self,
        role: str,
        task: Task,
        config: EvalConfig,
        stage: str,
        preload: Sequence[tuple[Path, str]],
    ) -> Subject:
        worker = self.zygote.spawn(
            role,
            memory_limit_bytes=config.memory_limit_bytes,
            log_limit_bytes=config.log_limit_bytes,
            preload=preload,
        )
        subject = Subject(worker, task, config, stage)
        try:
            subject.setup(self.zygote.threads)
        except BaseException:
            subject.close()
            raise
        return subject


def match_state(
    reference: tuple[tuple[str, Leaf], ...], claimed: list[Any]
) -> tuple[str, list[str]]:
    """How a candidate's parameters and buffers correspond, and its names in the reference's order.

    By name where every candidate tensor has a namesake of its shape and dtype; else by order where
    shapes and dtypes agree one by one; else only through the shared seed, and nothing is
    overwritten.
    """
    own = [(str(name), Leaf.from_json(leaf)) for name, leaf in claimed]
    if not reference and not own:
        return "none", []
    named = dict(own)
    wanted = dict(reference)
    if all(name in wanted and _alike(leaf, wanted[name]) for name, leaf in own) and own:
        if len(own) == len(reference):
            return "name", [name for name, _ in reference]
        return "subset", [name if name in named else "" for name, _ in reference]
    if len(own) == len(reference) and all(
        _alike(mine, theirs) for (_, mine), (_, theirs) in zip(own, reference, strict=True)
    ):
        return "order", [name for name, _ in own]
    return "seed", []


def _alike(left: Leaf, right: Leaf) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype
