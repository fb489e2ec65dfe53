"""What a task needs before its first candidate: admission, cases, null experiment, baselines."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from sandbox.baselines import beforehand
from sandbox.baselines.baselines import Baselines
from sandbox.baselines.beforehand import Beginnings, Begun
from sandbox.baselines.compiling import Ahead
from sandbox.baselines.race_room import stays
from sandbox.checking import fused
from sandbox.checking.pool import Pool, build_pool
from sandbox.checking.refusals import refuse_unscorable
from sandbox.checking.sensitivity import refuse_ignored_inputs
from sandbox.cleanup import on_failure
from sandbox.errors import InvalidReference
from sandbox.figures import Baseline
from sandbox.judging.invalid import Died, NoRoom, reference_failed
from sandbox.judging.statistics import Null
from sandbox.machine import memory
from sandbox.machine.device import DeviceFacts, free_bytes
from sandbox.machine.handle import WorkerFailed
from sandbox.pairs import arenas
from sandbox.stages import Stages
from sandbox.subjects.early import Early
from sandbox.subjects.plan import LONGEST, Plan, plan
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.subjects.warm import WarmReferences
from sandbox.types import EvalConfig, Task

logger = logging.getLogger(__name__)
Done = TypeVar("Done")

ROOM_SHARE = 0.2
"""Of free memory: what a pair may take before idle workers give theirs back, and the ends of
earlier ones are waited for."""
ALONE_SHARE = 0.02
"""Of free memory: what one call's inputs and outputs may take beside what other tasks keep. The
cases, the truth, and both sides of a pair together take tens of times as much."""
LESS_SHARE = 0.5
"""Of free memory, for a second try where the first plan left a reference too little."""


@dataclass(frozen=True)
class Figures:
    """What preparing a task measured."""

    latency_s: float
    """Of a call of the reference."""
    floor_s: float | None
    baselines: tuple[Baseline, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage; none where all of it was known."""


@dataclass(frozen=True)
class Preparation:
    """Everything evaluations of one task share."""

    task: Task
    pools: tuple[Pool, ...]
    """One per shape; the first is timed."""
    plan: Plan
    null: Null
    baselines: tuple[Baseline, ...]
    floor_s: float | None
    """Compulsory bytes over bandwidth, where the footprint makes it binding."""
    search_plan: Plan
    search_floor_s: float | None
    """Both for the shorter batches of a search."""
    most_sets: int = 0
    """Of a batch that is reported, for candidates that are many times as quick."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage; `compile` goes on beside `null`."""

    @property
    def bytes(self) -> int:
        """Memory that its stored cases hold."""
        return sum(pool.bytes for pool in self.pools)

    @property
    def figures(self) -> Figures:
        latency_s = self.signature.latency_s
        return Figures(latency_s, self.floor_s, self.baselines, self.seconds)

    @property
    def signature(self) -> Signature:
        return self.pools[0].signature

    @property
    def order(self) -> tuple[int, ...]:
        """Shapes as candidates are verified: ends with the one that is timed."""
        return (*range(1, len(self.pools)), 0)

    @property
    def first(self) -> Signature:
        """What a candidate is opened for first."""
        return self.pools[self.order[0]].signature

    def early(self, memory_bytes: int) -> Early | None:
        """Of a GPU with so much memory, what a search's candidate can have before its turn."""
        return arenas.early(self.pools, self.pools[self.order[0]], self.search_plan, memory_bytes)


class Preparer:
    """Prepares tasks on one device; null experiments and baselines are cached on disk.

    `compilers` starts the workers of compiled baselines; `forget` drops what is kept of other
    tasks; `tell_room` as in Baselines.
    """

    def __init__(
        self,
        stand: Stand,
        compilers: Stand,
        facts: DeviceFacts,
        cache: Path,
        synchronize: Callable[[], None],
        forget: Callable[[], None],
        tell_room: Callable[[bool], object],
    ) -> None:
        self.stand = stand
        self.facts = facts
        self.forget = forget
        self.beginnings = Beginnings(tell_room, stand.settle)
        shared = (cache, synchronize, self.beginnings.tell_room, self.beginnings.end)
        self.baselines = Baselines(stand, compilers, facts.fingerprint, *shared)
        self.warm = WarmReferences(stand)
        self.stage = Stages()
        """Of the task under way."""

    def is_timed(self, task: Task, config: EvalConfig) -> bool:
        """Whether null experiment and baselines are known, so that preparing times nothing."""
        return self.baselines.known(task, config) is not None

    def figures(self, task: Task, config: EvalConfig) -> Figures | None:
        """Of a task that was prepared before, here or by another process; None where something of
        it is still to be timed.
        """
        known, kept = self.baselines.known(task, config), self.baselines.figures(task, config)
        return None if known is None or kept is None else Figures(*kept, known[1])

    def prepare(
        self, task: Task, config: EvalConfig, started: Subject | None = None
    ) -> Preparation:
        """Raises InvalidReference where the task cannot be scored, memory.OutOfMemoryError where we
        ran out of memory.

        `started` is a reference worker with the task loaded, whose start could be done before.
        """
        found = self._twice(
            # Its worker goes with the first attempt.
            lambda share: self._prepare(task, config, started if share == 1.0 else None, share)
        )
        self._keep_figures(task, config, found.signature, found.floor_s)
        return replace(found, seconds=dict(self.stage.seconds))

    def begin(self, task: Task, config: EvalConfig) -> Begun | None:
        """What `time_baselines` does first, while another task is timed."""
        work = partial(beforehand.begin, self.stand, self.baselines, task, config)
        return self.beginnings.begin(work)

    def time_baselines(self, task: Task, config: EvalConfig, begun: Begun | None = None) -> Figures:
        """Where no candidate is to come: cases are not made, so that a reference which only they
        show to be degenerate has its figures. Raises what `prepare` raises.
        """
        begun = None if begun is None else self.beginnings.take(begun)

        def attempt(share: float) -> Figures:
            if share == 1.0:
                return self._time_baselines(task, config, share, begun)
            if begun is not None:
                begun.close()  # its workers have memory
            return self._time_baselines(task, config, share, None)

        found = self._twice(attempt)
        return replace(found, seconds=dict(self.stage.seconds))

    def _twice(self, work: Callable[[float], Done]) -> Done:
        """For a share of the free memory: all of it, then less and with the room of everything else
        where the first plan left a reference too little, or a process of it ended.
        """
        self.stage = Stages()
        self.beginnings.alone = False
        for share in (1.0, LESS_SHARE):
            try:
                with self.stage.other():
                    return work(share)
            except (Died, NoRoom) as error:  # whose frames hold gigabytes of cases
                refused: Exception = type(error)(str(error))
            except (memory.OutOfMemoryError, torch.OutOfMemoryError) as error:
                refused = memory.OutOfMemoryError(str(error))
            self._forget_others()
            logger.info("once more with the room of everything else: %s", refused)
        raise refused

    def _forget_others(self) -> None:
        """Whatever holds memory for other tasks, or for this one until now."""
        self.forget()
        self.warm.cool()
        self.end_used()
        self.beginnings.end()
        self.stand.settle()
        if self.facts.device == "cuda":
            torch.cuda.empty_cache()

    def _keep_figures(
        self, task: Task, config: EvalConfig, signature: Signature, floor_s: float | None
    ) -> None:
        if self.baselines.figures(task, config) is None:
            self.baselines.keep_figures(task, config, signature.latency_s, floor_s)

    def end_used(self) -> None:
        """End processes that wait for another task, of references and of baselines."""
        self.stand.ready.end_used()
        self.baselines.compiling.stand.ready.end_used()

    def _prepare(
        self, task: Task, config: EvalConfig, started: Subject | None, share: float
    ) -> Preparation:
        """Planned for this share of the free memory."""
        known = self.baselines.known(task, config)
        try:
            subject, pools = self._pools(task, config, started, randomise=True)
        except WorkerFailed as failed:
            raise reference_failed(task, failed) from failed
        self._put_by(task, config, subject, pools[0].signature, raced=known is None)
        scheme = self._planned(pools[0].signature, config, share, raced=known is None)
        short = replace(config, batch_ms=min(config.batch_ms, config.search_batch_ms))
        search = self.plan(pools[0].signature, short, share)
        long = replace(config, batch_ms=LONGEST * config.batch_ms)
        most_sets = self.plan(pools[0].signature, long, share).sets
        null, baselines = known or self._raced(task, config, pools[0].signature, scheme)
        return Preparation(
            task,
            pools,
            scheme,
            null,
            baselines,
            self.floor_s(pools[0].signature, scheme),
            search,
            self.floor_s(pools[0].signature, search),
            most_sets,
        )

    def _time_baselines(
        self,
        task: Task,
        config: EvalConfig,
        share: float,
        begun: Begun | None,
    ) -> Figures:
        try:
            if begun is not None:
                subject = begun.take()
            else:
                with self.stage("start"):
                    subject = self.stand.start_reference(task, config)
            with on_failure(subject.close):
                with self.stage("examine"):
                    if begun is not None:
                        signature = self.stand.paced(subject, begun.signature)
                    else:
                        signature = self.stand.open_reference(subject, Opening())
                refuse_unscorable(signature)
                self.room_for(task, signature)
        except InvalidReference as error:
            raise type(error)(f"{task.id}: {error}") from None
        except WorkerFailed as failed:
            raise reference_failed(task, failed) from failed
        self._put_by(task, config, subject, signature, raced=True)
        scheme = self._planned(signature, config, share, raced=True)
        ahead = None if begun is None else begun.ahead
        _, baselines = self._raced(task, config, signature, scheme, ahead)
        floor_s = self.floor_s(signature, scheme)
        self._keep_figures(task, config, signature, floor_s)
        return Figures(signature.latency_s, floor_s, baselines)

    def _put_by(
        self, task: Task, config: EvalConfig, subject: Subject, signature: Signature, *, raced: bool
    ) -> None:
        """Keep the worker that made a task's cases for what comes next, or end it. `raced`: null
        experiment and baselines do.
        """
        if config.verify_only:  # nobody is raced against it
            with contextlib.suppress(WorkerFailed):
                subject.release()
            self.stand.reuse(subject)
        elif not raced or stays(task, signature, free_bytes(task.device)):
            self.warm.keep(task, config, subject, rested=True)
        else:
            subject.close()  # The null experiment and baselines need the room.

    def _planned(
        self, signature: Signature, config: EvalConfig, share: float, *, raced: bool
    ) -> Plan:
        """Of a pair, for which idle workers give their room where it takes much."""
        if self.facts.device == "cuda":
            fused.load((memory.dtype_of(leaf) for leaf in signature.outputs), self.facts.device)
            torch.cuda.empty_cache()  # the plan counts what the driver has
        room = int(share * free_bytes(self.facts.device))
        scheme = self.plan(signature, config, share)
        if config.baselines_only:
            scheme = scheme.leaner(signature)
        if raced and scheme.bytes(signature) > ROOM_SHARE * room:
            self.warm.rest()
            self.stand.settle()
        return scheme

    def _raced(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        ahead: Ahead | None = None,
    ) -> tuple[Null, tuple[Baseline, ...]]:
        """Null experiment and baselines, timed now as far as they are not known."""
        return self.baselines.measured(
            task,
            config,
            signature,
            scheme,
            self.stage,
            keep=partial(self.warm.keep, task, config, rested=True),
            take=partial(self.warm.take, task, config),
            ahead=ahead,
        )

    def plan(self, signature: Signature, config: EvalConfig, share: float) -> Plan:
        """For this share of the free memory; what needs more of it to fit at all has all of it."""
        room = free_bytes(self.facts.device)
        try:
            return plan(signature, config, int(share * room))
        except NoRoom:
            return plan(signature, config, room)

    def pools(self, task: Task, config: EvalConfig, *, randomise: bool) -> tuple[Pool, ...]:
        """The secret cases of every shape. Raises WorkerFailed where the reference fails, and
        InvalidReference where they cannot be scored.
        """
        subject, pools = self._pools(task, config, None, randomise=randomise)
        subject.close()
        return pools

    def _pools(
        self, task: Task, config: EvalConfig, subject: Subject | None, *, randomise: bool
    ) -> tuple[Subject, tuple[Pool, ...]]:
        """The cases, and the worker that made them, open at the timed shape."""
        pools: dict[int, Pool] = {}
        try:
            with self.stage("start"):
                subject = subject or self.stand.start_reference(task, config)
            with on_failure(subject.close):
                for shape in (*range(1, len(task.shapes)), 0):
                    if pools:
                        subject.release()
                    with self.stage("examine"):
                        opening = Opening(shape, randomise)
                        signature = self.stand.open_reference(subject, opening)
                    with self.stage("cases"):
                        room = self.room_for(task, signature)
                        pools[shape] = build_pool(subject, signature, config, room)
                    with self.stage("sensitivity"):
                        refuse_ignored_inputs(subject, pools[shape], config)
            return subject, tuple(pools[shape] for shape in range(len(task.shapes)))
        except NoRoom as error:
            raise NoRoom(f"{task.id}: {error}") from None
        except InvalidReference as error:
            raise InvalidReference(f"{task.id}: {error}") from None

    def room_for(self, task: Task, signature: Signature) -> int:
        """Free memory, which a large task does not share with what is kept of others."""
        room = free_bytes(task.device)
        if signature.input_bytes + signature.output_bytes < ALONE_SHARE * room:
            return room
        self.forget()
        self.warm.rest()
        if not stays(task, signature, room):
            self.end_used()
        self.stand.settle()
        if task.device == "cuda":
            torch.cuda.empty_cache()
        return free_bytes(task.device)

    def floor_s(self, signature: Signature, scheme: Plan) -> float | None:
        """None where caches could serve the batch, or the reference itself is below the floor."""
        per_call = sum(leaf.bytes for leaf in (*signature.inputs, *signature.outputs))
        if per_call * scheme.sets <= 8 * self.facts.cache_bytes:
            return None
        floor = self.facts.floor_s(per_call)
        return floor if signature.latency_s > floor else None
