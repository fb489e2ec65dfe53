"""What candidates are compared with: the null experiment and the baselines, timed once for a task
and an environment, and cached on disk.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from sandbox import copying
from sandbox.cache import LIMITS, Shelf, read_json, write_json
from sandbox.cleanup import on_failure
from sandbox.device import free_bytes
from sandbox.errors import SandboxFault
from sandbox.handle import WorkerFailed
from sandbox.invalid import reference_failed
from sandbox.judge import MEMORY_TYPES
from sandbox.observation import Errors, FailureKind, RoundObservation
from sandbox.pair import ProcessPair
from sandbox.plan import Plan
from sandbox.records import from_record, to_record
from sandbox.stages import Stages
from sandbox.stand import Stand
from sandbox.statistics import Null, interval, settled, summarise
from sandbox.subject import Opening, Signature, Subject
from sandbox.types import BASELINES, SCHEMA_VERSION, Baseline, EvalConfig, Task, digest

logger = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 600.0
"""For a baseline's first call: max-autotune benchmarks hundreds of kernels."""
BASELINE_BOUND = Errors(1.0, 1.0, 1e9)
"""Baselines are trusted; they are timed, not judged."""
WIDE = 3.0
"""Upper over lower bound of a figure that was disturbed while it was measured."""
WIDE_KEPT_S = 3600.0
"""How long such a one serves, or a failure that may pass: where all is always busy, a new one would
be no better."""
BESIDE_BYTES = 1 << 30
"""Inputs and outputs of a call up to which workers are opened, and their code compiled, while
others are timed."""
KEPT_SHARE = 0.2
"""Of free memory that the pairs of a race may take for their references to serve the next race: a
plan fills the memory with a single pair."""
FREE_SHARE = 0.5
"""Of the memory that was free before a race: with less left, none of its references stays. What
their calls take besides outputs is in no plan."""
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
DEVICE_BASELINES = {"cpu": ("compile",), "cuda": BASELINES}
CORES_PER_COMPILER = 4
"""A worker that compiles for seconds beside the null experiment. With fewer cores it waits: that
scattered more."""


class Baselines:
    """Of one device; `compilers` starts the workers of compiled baselines, `environment` tells one
    device and its software from others.
    """

    def __init__(
        self,
        stand: Stand,
        compilers: Stand,
        environment: str,
        cache: Path,
        synchronize: Callable[[], None],
    ) -> None:
        self.stand = stand
        self.compilers = compilers
        self.environment = environment
        self.cache = cache
        self.synchronize = synchronize

    def known(self, task: Task, config: EvalConfig) -> dict[str, Any] | None:
        """The record of what was timed, unless it was disturbed and is old."""
        record = read_json(self._path(task, config))
        if record is None or (record.get("wide") and time.time() > record["at"] + WIDE_KEPT_S):
            return None
        return dict(record)

    def _path(self, task: Task, config: EvalConfig) -> Path:
        protocol = [getattr(config, name) for name in TIMING_FIELDS]
        names = _baselines(task, config)
        key = digest([task.hash, protocol, names, self.environment, SCHEMA_VERSION])
        return self.cache / "baselines" / f"{key}.json"

    def measured(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        stage: Stages,
        keep: Callable[[Subject], object],
    ) -> tuple[Null, tuple[Baseline, ...]]:
        """Null experiment and baselines, from the cache or timed now; `keep` is given a reference
        that is still open then.
        """
        record = self.known(task, config)
        if record is not None:
            known = from_record(tuple[Baseline, ...], record["baselines"])
            return Null(tuple(record["null"])), known
        names = _baselines(task, config)
        call_bytes = signature.input_bytes + signature.output_bytes
        ahead = "compile" in names and call_bytes <= BESIDE_BYTES
        cores = len(os.sched_getaffinity(0))
        beside = cores // CORES_PER_COMPILER
        rivals = deque[Subject]()
        references = dict[int, Subject]()
        timed = []
        try:
            compile_all = partial(self.compile_ahead, task, config, signature, rivals)
            with ThreadPoolExecutor(1, "compile") as pool:
                if ahead and beside:
                    pool.submit(compile_all, range(config.min_pairs), beside)
                with stage("null"):
                    null = self.null(task, config, signature, scheme, references)
                with stage("compile"):
                    pool.shutdown()
                    if ahead and not beside:  # the first's code serves the others
                        compile_all(range(1))
                        compile_all(range(1, config.min_pairs), cores)
            for name in names:
                with stage(f"baseline {name}"):
                    mine = rivals if name == "compile" else deque[Subject]()
                    timed.append(
                        self.baseline(task, config, signature, scheme, name, null, mine, references)
                    )
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
            if references:
                keep(references.pop(max(references)))
        finally:
            if ended := [*rivals, *references.values()]:
                for subject in ended:
                    self.stand.retire(subject)
                self.stand.settle()
        return null, found

    def compile_ahead(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        ready: deque[Subject],
        numbers: range,
        at_once: int = 1,
    ) -> None:
        """Make ready workers of the compiled model, called once, for these pairs of its baseline:
        host work, which stands still in timed regions. What fails here fails again, and is
        recorded, when the baseline is timed.
        """
        with ThreadPoolExecutor(at_once, "compiler") as pool:
            for number in numbers:
                pool.submit(self._compile, task, config, signature, ready, keep=number == 0)

    def _compile(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        ready: deque[Subject],
        *,
        keep: bool,
    ) -> None:
        kept = self._kept()
        try:
            self.compilers.zygote.start()  # which imports for seconds, and keeps nobody waiting
            opening = Opening(wrap="compile", known=signature)
            preload = [(kept, INDUCTOR_CACHE)]
            subject, _ = self.compilers.reference(task, config, opening, preload)
            with on_failure(lambda: self.stand.retire(subject)):
                with self.stand.quiet.beside(subject.worker):
                    subject.request("call", COMPILE_TIMEOUT_S, seed=0)
                if keep:
                    with self.stand.quiet.noise():
                        self.keep_compiled(subject, kept)
            ready.append(subject)
        except (WorkerFailed, SandboxFault) as failed:
            logger.info("nothing is compiled ahead: %s", failed)

    def null(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        references: dict[int, Subject],
    ) -> Null:
        """The reference against itself, over fresh process pairs."""
        try:
            rounds = self.race(task, config, signature, scheme, None, deque(), references)
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
        ready: deque[Subject],
        references: dict[int, Subject],
    ) -> tuple[Baseline, bool]:
        """One baseline against eager, and whether it will stay so: a time-out or a disturbance may
        pass. Its failure is recorded, not raised. `ready` and `references` as in `race`.
        """
        try:
            raced = self.race(task, config, signature, scheme, name, ready, references, null)
            pairs = summarise(raced)
        except WorkerFailed as failed:
            kind, types = failed.failure.kind, set(failed.failure.types)
            lasting = kind is FailureKind.CLAIMED and not types & MEMORY_TYPES
            return Baseline(name, None, None, str(failed)[:300]), lasting
        if not pairs:
            return Baseline(name, None, None, "every round was disturbed"), False
        latency_ms = sum(p.candidate_ms for p in pairs) / len(pairs)
        found = interval(pairs, null, config)
        return Baseline(name, latency_ms, found), found.high <= WIDE * found.low

    def race(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        wrap: str | None,
        ready: deque[Subject],
        references: dict[int, Subject],
        null: Null | None = None,
    ) -> list[RoundObservation]:
        """Rounds of `min_pairs` pairs of the reference against itself, wrapped as `wrap` says; with
        a `null` experiment a pair ends once its figure is settled.

        `ready`: workers of the wrapped one, which are used up. `references`: those of earlier races
        by their pair, and of this one afterwards: a figure needs pairs of fresh processes, while
        different figures may share them.
        """
        start = partial(self._start_pair, task, config, signature, wrap, ready, references)
        small = signature.input_bytes + signature.output_bytes <= BESIDE_BYTES
        one = scheme.bytes(signature) + 2 * signature.state_bytes
        room = free_bytes(task.device)
        few = config.min_pairs * one <= KEPT_SHARE * room
        rounds: list[RoundObservation] = []
        with ThreadPoolExecutor(1, "pair") as pool:
            coming = deque([pool.submit(start, 0)])
            try:
                for number in range(config.min_pairs):
                    rival = coming.popleft().result()
                    try:
                        last = number + 1 == config.min_pairs
                        # The first one's compiled code serves the others, unless they have theirs.
                        first = number == 0 and wrap in COMPILED and not ready
                        early = small and not last and not first
                        if early:
                            coming.append(pool.submit(start, number + 1))
                        with on_failure(partial(self._drop, references, number)):
                            rounds += self._rounds(
                                number, references[number], rival, signature, scheme, null
                            )
                        if not few or free_bytes(task.device) < FREE_SHARE * room:
                            self._drop(references, number)  # its memory is the next one's
                        if number == 0 and wrap in COMPILED:
                            self.keep_compiled(rival, self._kept())
                    finally:
                        self.stand.retire(rival)
                    if not early and not last:
                        coming.append(pool.submit(start, number + 1))
            finally:
                for unused in coming:
                    if unused.exception() is None:
                        self.stand.retire(unused.result())
        self.stand.settle()
        return rounds

    def _drop(self, references: dict[int, Subject], number: int) -> None:
        self.stand.retire(references.pop(number))

    def _rounds(
        self,
        number: int,
        reference: Subject,
        rival: Subject,
        signature: Signature,
        scheme: Plan,
        null: Null | None,
    ) -> list[RoundObservation]:
        """Of one pair."""
        bounds = [BASELINE_BOUND] * len(signature.outputs)
        pair = ProcessPair(
            number,
            reference,
            rival,
            signature,
            scheme,
            reference.config,
            self.synchronize,
            self.stand.quiet,
            judged=False,
        )
        self.stand.settle()
        with self.stand.undisturbed():
            pair.start(COMPILE_TIMEOUT_S)
            rounds: list[RoundObservation] = []

            def over() -> bool:
                return null is not None and settled(rounds, null, pair.config, judged=False)

            for seen, _ in pair.rounds(bounds, over):
                rounds.append(seen)
            return rounds

    def _start_pair(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        wrap: str | None,
        ready: deque[Subject],
        references: dict[int, Subject],
        number: int,
    ) -> Subject:
        """The reference, unless it is there, and its rival, open; while another pair is timed they
        stand still.
        """
        # Only what compiles needs those that have imported it; the others are kept ready.
        rivals = self.compilers if wrap in COMPILED else self.stand
        preload = [(self._kept(), INDUCTOR_CACHE)] if wrap in COMPILED else []
        eager, other = Opening(known=signature), Opening(wrap=wrap, known=signature)

        def rival() -> Subject:
            if ready:
                return ready.popleft()
            return rivals.reference(task, config, other, preload)[0]

        if number in references:
            return rival()
        references[number], found = self.stand.start_both(
            lambda: self.stand.reference(task, config, eager)[0], rival
        )
        return found

    def keep_compiled(self, subject: Subject, kept: Path) -> None:
        """Inductor's results and precompiled headers, for the next pairs and the next tasks."""
        try:
            copying.copy_folder(
                subject.worker.scratch,
                INDUCTOR_CACHE,
                kept,
                INDUCTOR_LIMIT_BYTES,
                named_by_content=True,
            )
            for folder in (kept, kept.parent):  # within this environment, and over all
                Shelf(folder, LIMITS["inductor"]).trim()
        except (OSError, ValueError) as error:
            logger.info("compiled code is not kept: %s", error)

    def _kept(self) -> Path:
        return self.cache / "inductor" / self.environment


def _baselines(task: Task, config: EvalConfig) -> list[str]:
    return [name for name in config.baselines if name in DEVICE_BASELINES[task.device]]
