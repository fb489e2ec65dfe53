"""What a task needs before its first candidate: admission, cases, null experiment, baselines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandbox import copying
from sandbox.cache import read_json, write_json
from sandbox.device import DeviceFacts, free_bytes
from sandbox.errors import InvalidReference, SandboxFault
from sandbox.observation import Errors, FailureKind, RoundObservation
from sandbox.pair import ProcessPair
from sandbox.plan import Plan, plan
from sandbox.pool import Pool, build_pool
from sandbox.records import from_record, to_record
from sandbox.spawn import WorkerFailed
from sandbox.statistics import Null, interval, summarise
from sandbox.subject import Opening, Signature, Stand, Subject
from sandbox.types import SCHEMA_VERSION, Baseline, EvalConfig, Task, digest

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 600.0
"""For a baseline's first call: max-autotune benchmarks hundreds of kernels."""
BASELINE_BOUND = Errors(1.0, 1.0, 1e9)
"""Baselines are trusted; they are timed, not judged."""
KEEP_WIDTH = 3.0
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

    @property
    def bytes(self) -> int:
        """Memory that its stored cases hold."""
        return sum(pool.bytes for pool in self.pools)

    @property
    def signature(self) -> Signature:
        return self.pools[0].signature


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
        self._warm: tuple[str, Subject] | None = None

    def prepare(self, task: Task, config: EvalConfig) -> Preparation:
        """Raises InvalidReference where the task cannot be scored."""
        pools = self.pools(task, config, randomise=True)
        scheme = plan(pools[0].signature, config, free_bytes(task.device))
        null, baselines = self.measured(task, config, pools[0].signature, scheme)
        return Preparation(
            task, pools, scheme, null, baselines, self.floor_s(pools[0].signature, scheme)
        )

    def warm_reference(self, preparation: Preparation, config: EvalConfig) -> Subject:
        """The task's reference worker, open at the timed shape; kept until another task's is
        asked.
        """
        key = f"{preparation.task.hash}-{config.id}"
        if self._warm is None or self._warm[0] != key:
            self.cool()
            opening = Opening(known=preparation.signature)
            subject, _ = self.stand.reference(preparation.task, config, opening)
            self._warm = (key, subject)
        return self._warm[1]

    def rest(self) -> None:
        """Free all but its model in the warm reference worker: a fresh pair needs the room."""
        if self._warm is not None:
            self._warm[1].rest()

    def cool(self) -> None:
        """End the warm reference worker."""
        if self._warm is not None:
            self.stand.retire(self._warm[1])
            self._warm = None

    def pools(self, task: Task, config: EvalConfig, *, randomise: bool) -> tuple[Pool, ...]:
        """The secret cases of every shape."""
        subject, pools = None, []
        try:
            for shape in range(len(task.shapes)):
                opening = Opening(shape, randomise)
                if subject is None:
                    subject, signature = self.stand.reference(task, config, opening)
                else:
                    subject.release()
                    signature = self.stand.open_reference(subject, opening)
                pools.append(build_pool(subject, signature, config, free_bytes(task.device)))
        except WorkerFailed as failed:
            raise reference_failed(task, failed) from failed
        except InvalidReference as error:
            raise InvalidReference(f"{task.id}: {error}") from None
        finally:
            if subject is not None:
                subject.close()
        return tuple(pools)

    def floor_s(self, signature: Signature, scheme: Plan) -> float | None:
        """None where caches could serve the batch, or where the reference itself is below the
        floor.
        """
        per_call = sum(leaf.bytes for leaf in (*signature.inputs, *signature.outputs))
        if per_call * scheme.sets <= 8 * self.facts.cache_bytes:
            return None
        floor = self.facts.floor_s(per_call)
        return floor if signature.latency_s > floor else None

    def measured(
        self, task: Task, config: EvalConfig, signature: Signature, scheme: Plan
    ) -> tuple[Null, tuple[Baseline, ...]]:
        """Null experiment and baselines, from the cache or timed now."""
        names = [n for n in config.baselines if n in DEVICE_BASELINES[task.device]]
        protocol = [getattr(config, name) for name in TIMING_FIELDS]
        key = digest([task.hash, protocol, names, self.facts.fingerprint, SCHEMA_VERSION])
        path = self.cache / "baselines" / f"{key}.json"
        record = read_json(path)
        if record is not None:
            known = from_record(tuple[Baseline, ...], record["baselines"])
            return Null(tuple(record["null"])), known
        null = self.null(task, config, signature, scheme)
        found = tuple(self.baseline(task, config, signature, scheme, name, null) for name in names)
        kept = {"null": null.log_ratios, "baselines": to_record(found), "task": task.id}
        if all(b.speedup is None or b.speedup.high < KEEP_WIDTH * b.speedup.low for b in found):
            write_json(path, kept)  # a disturbed measurement is made again next time
        return null, found

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
    ) -> Baseline:
        """One baseline against eager; its failure is recorded, not raised."""
        try:
            pairs = summarise(self.race(task, config, signature, scheme, name))
        except WorkerFailed as failed:
            return Baseline(name, None, None, str(failed)[:300])
        if not pairs:
            return Baseline(name, None, None, "every round was disturbed")
        latency_ms = sum(p.candidate_ms for p in pairs) / len(pairs)
        return Baseline(name, latency_ms, interval(pairs, null, config))

    def keep_compiled(self, subject: Subject, kept: Path) -> None:
        """Inductor's results and precompiled headers, for the next pairs and the next tasks."""
        try:
            copying.copy_folder(subject.worker.scratch, INDUCTOR_CACHE, kept, INDUCTOR_LIMIT_BYTES)
        except (OSError, ValueError) as error:
            logger.info("compiled code is not kept: %s", error)

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
        kept = self.cache / "inductor" / self.facts.fingerprint
        preload = [(kept, INDUCTOR_CACHE)] if compiled else []
        for number in range(config.min_pairs):
            eager = Opening(known=signature)
            other = Opening(wrap=wrap, known=signature)
            (reference, left), (rival, _) = self.stand.start_both(
                partial(self.stand.reference, task, config, eager),
                partial(rivals.reference, task, config, other, preload),
            )
            try:
                pair = ProcessPair(number, reference, rival, left, scheme, config, self.synchronize)
                self.stand.settle()
                pair.start(COMPILE_TIMEOUT_S)
                rounds += [seen for seen, _ in pair.rounds(bounds)]
                if compiled and number == 0:
                    self.keep_compiled(rival, kept)
            finally:
                self.stand.retire(rival)
                self.stand.retire(reference)
        self.stand.settle()
        return rounds


def reference_failed(task: Task, failed: WorkerFailed) -> Exception:
    """A reference that raises, hangs or dies is the task's fault; a garbled reply is ours."""
    failure = failed.failure
    words = failure.message.strip().splitlines()
    first = words[0][:300] if words else ""
    if failure.kind is FailureKind.CLAIMED:
        kind = failure.types[0] if failure.types else "error"
        return InvalidReference(f"{task.id}: the reference failed with {kind}: {first}")
    if failure.kind in (FailureKind.TIMEOUT, FailureKind.MEMORY, FailureKind.DIED):
        return InvalidReference(f"{task.id}: the reference's worker: {first}")
    return SandboxFault(f"{task.id}: the reference's worker: {first}")
