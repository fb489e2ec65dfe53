"""What a task needs before its first candidate: admission, cases, null experiment, baselines."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sandbox import copying
from sandbox.cache import LIMITS, Shelf, read_json, write_json
from sandbox.cleanup import on_failure
from sandbox.device import DeviceFacts, free_bytes
from sandbox.errors import InvalidReference, SandboxFault
from sandbox.gpu_state import undisturbed
from sandbox.handle import WorkerFailed
from sandbox.judge import MEMORY_TYPES
from sandbox.observation import Errors, FailureKind, RoundObservation
from sandbox.pair import ProcessPair
from sandbox.plan import Plan, plan
from sandbox.pool import Pool, build_pool
from sandbox.records import from_record, to_record
from sandbox.sensitivity import refuse_ignored_inputs
from sandbox.stages import Stages
from sandbox.stand import Stand
from sandbox.statistics import Null, interval, summarise
from sandbox.subject import Opening, Signature, Subject
from sandbox.types import SCHEMA_VERSION, Baseline, EvalConfig, Task, digest
from sandbox.warm import WarmReferences

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 600.0
"""For a baseline's first call: max-autotune benchmarks hundreds of kernels."""
BASELINE_BOUND = Errors(1.0, 1.0, 1e9)
"""Baselines are trusted; they are timed, not judged."""
ROOM_SHARE = 0.2
"""Of free memory: what a pair may take before idle workers give theirs back, and the ends of
earlier ones are waited for."""
LESS_SHARE = 0.5
"""Of free memory, for a second try where the first plan left a reference too little."""
WIDE = 3.0
"""Upper over lower bound of a figure that was disturbed while it was measured."""
WIDE_KEPT_S = 3600.0
"""How long such a one serves, or a failure that may pass: where all is always busy, a new one would
be no better."""
COMPILE_BESIDE_BYTES = 1 << 30
"""Inputs and outputs of a call up to which code is compiled while the null experiment runs."""
TIMING_FIELDS = (
    "tf32",
    "torch_default_precision",
    "batch_ms",
    "max_sets",
    "rounds",
    "single_share",
    "min_pairs",
)
"""Of EvalConfig: what null experiment and baselines depend on."""
COMPILED = ("compile", "max_autotune")
INDUCTOR_CACHE = "tmp/torchinductor_worker"
"""In the scratch folder. Inside the walls it is in /tmp for every worker, where Inductor keeps its
precompiled header whatever it is told; its keys hold paths."""
INDUCTOR_LIMIT_BYTES = 4 << 30
DEVICE_BASELINES = {"cpu": ("compile",), "cuda": ("compile", "max_autotune", "cuda_graph")}


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
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage; `compile` goes on beside `null`."""

    @property
    def bytes(self) -> int:
        """Memory that its stored cases hold."""
        return sum(pool.bytes for pool in self.pools)

    @property
    def signature(self) -> Signature:
        return self.pools[0].signature


class NoRoom(InvalidReference):
    """The reference ran out of memory beside what was planned for its calls."""


class Preparer:
    """Prepares tasks on one device; null experiments and baselines are cached on disk.

    `compilers` starts the workers of compiled baselines.
    """

    def __init__(
        self,
        stand: Stand,
        compilers: Stand,
        facts: DeviceFacts,
        cache: Path,
        synchronize: Callable[[], None],
    ) -> None:
        self.stand = stand
        self.compilers = compilers
        self.facts = facts
        self.cache = cache
        self.synchronize = synchronize
        self.warm = WarmReferences(stand)
        self.stage = Stages()
        """Of the task under way."""

    def is_timed(self, task: Task, config: EvalConfig) -> bool:
        """Whether null experiment and baselines are known, so that preparing times nothing."""
        return self._known(task, config) is not None

    def prepare(
        self, task: Task, config: EvalConfig, started: Subject | None = None
    ) -> Preparation:
        """Raises InvalidReference where the task cannot be scored.

        `started` is a reference worker with the task loaded, whose start could be done before.
        """
        self.stage = Stages()
        for share in (1.0, LESS_SHARE):
            try:
                return self._prepare(task, config, started, share)
            except NoRoom as error:
                refused = str(error)  # the exception's frames hold gigabytes of cases
            started = None
            self.warm.cool()
            self.stand.settle()
            logger.info("once more with the room of everything else: %s", refused)
        raise NoRoom(refused)

    def _prepare(
        self, task: Task, config: EvalConfig, started: Subject | None, share: float
    ) -> Preparation:
        """Planned for this share of the free memory."""
        known = self.is_timed(task, config)
        subject, pools = self._pools(task, config, started, randomise=True)
        if known:
            subject.rest()
            self.warm.keep(task, config, subject)
        else:
            subject.close()  # The null experiment and baselines need the room.
        if task.device == "cuda":
            torch.cuda.empty_cache()  # the plan counts what the driver has
        room = int(share * free_bytes(task.device))
        scheme = plan(pools[0].signature, config, room)
        if not known and scheme.bytes(pools[0].signature) > ROOM_SHARE * room:
            self.warm.rest()
            self.stand.settle()
        null, baselines = self.measured(task, config, pools[0].signature, scheme)
        short = replace(config, batch_ms=min(config.batch_ms, config.search_batch_ms))
        search = plan(pools[0].signature, short, int(share * free_bytes(task.device)))
        return Preparation(
            task,
            pools,
            scheme,
            null,
            baselines,
            self.floor_s(pools[0].signature, scheme),
            search,
            self.floor_s(pools[0].signature, search),
            dict(self.stage.seconds),
        )

    def pools(self, task: Task, config: EvalConfig, *, randomise: bool) -> tuple[Pool, ...]:
        """The secret cases of every shape."""
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
                        room = free_bytes(task.device)
                        pools[shape] = build_pool(subject, signature, config, room)
                    with self.stage("sensitivity"):
                        refuse_ignored_inputs(subject, pools[shape], config)
            return subject, tuple(pools[shape] for shape in range(len(task.shapes)))
        except WorkerFailed as failed:
            raise reference_failed(task, failed) from failed
        except InvalidReference as error:
            raise InvalidReference(f"{task.id}: {error}") from None

    def floor_s(self, signature: Signature, scheme: Plan) -> float | None:
        """None where caches could serve the batch, or the reference itself is below the floor."""
        per_call = sum(leaf.bytes for leaf in (*signature.inputs, *signature.outputs))
        if per_call * scheme.sets <= 8 * self.facts.cache_bytes:
            return None
        floor = self.facts.floor_s(per_call)
        return floor if signature.latency_s > floor else None

    def measured(
        self, task: Task, config: EvalConfig, signature: Signature, scheme: Plan
    ) -> tuple[Null, tuple[Baseline, ...]]:
        """Null experiment and baselines, from the cache or timed now."""
        record = self._known(task, config)
        if record is not None:
            known = from_record(tuple[Baseline, ...], record["baselines"])
            return Null(tuple(record["null"])), known
        names = _baselines(task, config)
        call_bytes = signature.input_bytes + signature.output_bytes
        with ThreadPoolExecutor(1, "compile") as pool:
            if "compile" in names and call_bytes <= COMPILE_BESIDE_BYTES:
                pool.submit(self.compile_beside, task, config, signature)
            with self.stage("null"):
                null = self.null(task, config, signature, scheme)
            with self.stage("compile"):
                pool.shutdown()
        timed = []
        for name in names:
            with self.stage(f"baseline {name}"):
                timed.append(self.baseline(task, config, signature, scheme, name, null))
        found = tuple(baseline for baseline, _ in timed)
        quiet = bool(null.log_ratios) and 2 * null.floor <= math.log(WIDE)
        kept = {
            "task": task.id,
            "at": time.time(),
            "null": null.log_ratios,
            "baselines": to_record(found),
            "wide": not (quiet and all(lasting for _, lasting in timed)),
        }
        write_json(self._path(task, config), kept)
        return null, found

    def compile_beside(self, task: Task, config: EvalConfig, signature: Signature) -> None:
        """Fill Inductor's cache with the timed shape's code: host work, which stands still in timed
        regions. What fails here fails again, and is recorded, when the baseline is timed.
        """
        kept = self._compiled()
        try:
            subject = self.compilers.start_reference(task, config, [(kept, INDUCTOR_CACHE)])
        except (WorkerFailed, SandboxFault) as failed:
            logger.info("nothing is compiled ahead: %s", failed)
            return
        try:
            with self.stand.quiet.beside(subject.worker):
                opening = Opening(wrap="compile", known=signature)
                self.compilers.open_reference(subject, opening)
                subject.request("call", COMPILE_TIMEOUT_S, seed=0)
            with self.stand.quiet.noise():
                self.keep_compiled(subject, kept)
        except (WorkerFailed, SandboxFault) as failed:
            logger.info("nothing is compiled ahead: %s", failed)
        finally:
            self.stand.retire(subject)

    def _known(self, task: Task, config: EvalConfig) -> dict[str, Any] | None:
        """The record of what was timed, unless it was disturbed and is old."""
        record = read_json(self._path(task, config))
        if record is None or (record.get("wide") and time.time() > record["at"] + WIDE_KEPT_S):
            return None
        return dict(record)

    def _path(self, task: Task, config: EvalConfig) -> Path:
        protocol = [getattr(config, name) for name in TIMING_FIELDS]
        names = _baselines(task, config)
        key = digest([task.hash, protocol, names, self.facts.fingerprint, SCHEMA_VERSION])
        return self.cache / "baselines" / f"{key}.json"

    def null(self, task: Task, config: EvalConfig, signature: Signature, scheme: Plan) -> Null:
        """The reference against itself, over fresh process pairs."""
        try:
            rounds = self.race(task, config, signature, scheme, None)
        except WorkerFailed as failed:
            raise reference_failed(task, failed) from failed
        return Null(tuple(pair.log_speedup for pair in summarise(rounds)))

    def baseline(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        name: str,
        null: Null,
    ) -> tuple[Baseline, bool]:
        """One baseline against eager, and whether it will stay so: a time-out or a disturbance may
        pass. Its failure is recorded, not raised.
        """
        try:
            pairs = summarise(self.race(task, config, signature, scheme, name))
        except WorkerFailed as failed:
            kind, types = failed.failure.kind, set(failed.failure.types)
            lasting = kind is FailureKind.CLAIMED and not types & MEMORY_TYPES
            return Baseline(name, None, None, str(failed)[:300]), lasting
        if not pairs:
            return Baseline(name, None, None, "every round was disturbed"), False
        latency_ms = sum(p.candidate_ms for p in pairs) / len(pairs)
        found = interval(pairs, null, config)
        return Baseline(name, latency_ms, found), found.high <= WIDE * found.low

    def keep_compiled(self, subject: Subject, kept: Path) -> None:
        """Inductor's results and precompiled headers, for the next pairs and the next tasks."""
        try:
            copying.copy_folder(subject.worker.scratch, INDUCTOR_CACHE, kept, INDUCTOR_LIMIT_BYTES)
            for folder in (kept, kept.parent):  # within this environment, and over all
                Shelf(folder, LIMITS["inductor"]).trim()
        except (OSError, ValueError) as error:
            logger.info("compiled code is not kept: %s", error)

    def _compiled(self) -> Path:
        return self.cache / "inductor" / self.facts.fingerprint

    def race(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        wrap: str | None,
    ) -> list[RoundObservation]:
        """Rounds of `min_pairs` pairs of the reference against itself, wrapped as `wrap` says."""
        rounds: list[RoundObservation] = []
        bounds = [BASELINE_BOUND] * len(signature.outputs)
        rivals = self.stand if wrap is None else self.compilers
        compiled = wrap in COMPILED
        kept = self._compiled()
        preload = [(kept, INDUCTOR_CACHE)] if compiled else []
        for number in range(config.min_pairs):
            eager = Opening(known=signature)
            other = Opening(wrap=wrap, known=signature)
            (reference, left), (rival, _) = self.stand.start_both(
                partial(self.stand.reference, task, config, eager),
                partial(rivals.reference, task, config, other, preload),
            )
            try:
                pair = ProcessPair(
                    number,
                    reference,
                    rival,
                    left,
                    scheme,
                    config,
                    self.synchronize,
                    self.stand.quiet,
                    judged=False,
                )
                self.stand.settle()
                with undisturbed(self.stand.gpu):
                    pair.start(COMPILE_TIMEOUT_S)
                    rounds += [seen for seen, _ in pair.rounds(bounds)]
                if compiled and number == 0:
                    self.keep_compiled(rival, kept)
            finally:
                self.stand.retire(rival)
                self.stand.retire(reference)
        self.stand.settle()
        return rounds


def _baselines(task: Task, config: EvalConfig) -> list[str]:
    return [name for name in config.baselines if name in DEVICE_BASELINES[task.device]]


def reference_failed(task: Task, failed: WorkerFailed) -> Exception:
    """A reference that raises, hangs or dies is the task's fault; a garbled reply is ours."""
    failure = failed.failure
    words = failure.message.strip().splitlines()
    first = words[0][:300] if words else ""
    if failure.kind is FailureKind.CLAIMED:
        kind = failure.types[0] if failure.types else "error"
        error = NoRoom if set(failure.types) & MEMORY_TYPES else InvalidReference
        return error(f"{task.id}: the reference failed with {kind}: {first}")
    if failure.kind is FailureKind.MEMORY:
        return NoRoom(f"{task.id}: the reference's worker: {first}")
    if failure.kind in (FailureKind.TIMEOUT, FailureKind.DIED):
        return InvalidReference(f"{task.id}: the reference's worker: {first}")
    return SandboxFault(f"{task.id}: the reference's worker: {first}")
