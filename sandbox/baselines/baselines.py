"""What candidates are compared with: the null experiment and the baselines, each timed once for a
task and an environment, and cached on disk.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from sandbox.baselines.compiling import AHEAD, COMPILED, Ahead, Compiling
from sandbox.baselines.race import Races
from sandbox.baselines.race_room import STAYING_BYTES, fits, small
from sandbox.baselines.rival import Rival, null_of
from sandbox.cache import keep_json, read_json
from sandbox.figures import Baseline
from sandbox.judging.invalid import reference_failed
from sandbox.judging.judge import MEMORY_TYPES
from sandbox.judging.statistics import Null, interval, summarise
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.memory import OutOfMemoryError
from sandbox.observation import FailureKind, RoundObservation
from sandbox.records import from_record, to_record
from sandbox.stages import Stages
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import BASELINES, SCHEMA_VERSION, EvalConfig, Task, digest

logger = logging.getLogger(__name__)

WIDE = 3.0
"""Upper over lower bound of a figure that was disturbed while it was measured."""
WIDE_KEPT_S = 3600.0
"""How long such a one serves, or a failure that may pass: where all is always busy, a new one would
be no better."""
PROTOCOL = 5
"""Of how they are timed; 2: large calls on one input set, compiled code tuned alone; 3: a GPU's
turn to a worker is taken off its batches; 4: on the CPU all that a batch takes beyond its calls;
5: on a GPU too."""
NULL, BARE_NULL, FIGURES = "null", "bare null", "figures"
TOGETHER = "together"
"""The stage in which null experiment and baselines share the reference's rounds."""
TIMING_FIELDS = (
    "tf32",
    "torch_default_precision",
    "batch_ms",
    "max_sets",
    "rounds",
    "single_share",
    "min_pairs",
    "max_pairs",
    "confidence",
)
"""Of EvalConfig: what null experiment and baselines depend on."""
DEVICE_BASELINES = {"cpu": ("compile",), "cuda": BASELINES}
CORES_PER_COMPILER = 4
"""A worker that compiles for seconds beside what is timed. With fewer cores it waits: that
scattered more."""


class Baselines:
    """Of one device; `compilers` starts the workers of compiled baselines, `environment` tells one
    device and its software from others. `tell_room` is told whether another task may begin beside
    one without candidates, and `end_begun` ends those that did, False where there are none.
    """

    def __init__(
        self,
        stand: Stand,
        compilers: Stand,
        environment: str,
        cache: Path,
        synchronize: Callable[[], None],
        tell_room: Callable[[bool], object] = lambda _: None,
        end_begun: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stand = stand
        kept = cache / "inductor" / f"{environment}-{PROTOCOL}"
        self.compiling = Compiling(compilers, kept, stand.retire)
        self.environment = environment
        self.cache = cache
        self.synchronize = synchronize
        self.tell_room = tell_room
        self.end_begun = end_begun

    def known(self, task: Task, config: EvalConfig) -> tuple[Null, tuple[Baseline, ...]] | None:
        """What was timed before; None where something was not, or was disturbed and is old. With
        nothing to be timed all is known.
        """
        if config.verify_only:
            return Null(), ()
        null = self._null(task, config)
        found = [self._baseline(task, config, name) for name in _baselines(task, config)]
        if null is None or None in found:
            return None
        return null, tuple(baseline for baseline in found if baseline is not None)

    def figures(self, task: Task, config: EvalConfig) -> tuple[float, float | None] | None:
        """Seconds a call of the reference took when the task was prepared, and its floor."""
        kept = self._kept(task, config, FIGURES)
        return None if kept is None else (kept[0], kept[1])

    def keep_figures(
        self, task: Task, config: EvalConfig, latency_s: float, floor_s: float | None
    ) -> None:
        self._keep(task, config, FIGURES, [latency_s, floor_s], lasting=True)

    def measured(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        stage: Stages,
        keep: Callable[[Subject], object],
        take: Callable[[], Subject | None] = lambda: None,
        ahead: Ahead | None = None,
    ) -> tuple[Null, tuple[Baseline, ...]]:
        """Null experiment and baselines, of which some are not known; `take` gives a reference that
        is open already, `keep` is given one that is still open then. `ahead`: compiled workers that
        were begun.
        """
        found = {name: self._baseline(task, config, name) for name in _baselines(task, config)}
        missing = [name for name, baseline in found.items() if baseline is None]
        null = self._null(task, config)
        names = self._at_once(task, config, signature, scheme, missing, null)
        sides = 1 + max(1, len(names))
        begun = ahead is not None
        ahead = ahead or Ahead(self.compiling, task, config, signature)
        with self.races(task, config, signature, scheme, sides) as races, closing(ahead):
            if races.room.stays and (first := take()) is not None:
                races.references[0] = first
            races.alone = lambda: any([ahead.stop(), self.end_begun()])
            if config.baselines_only:
                self.tell_room(races.room.leaves_room)
            beside = int(min(_compilers(), races.room.beside))
            if "compile" in missing and beside > 0 and not begun:
                if task.device == "cpu":  # what it imports and probes runs on these cores
                    self.compiling.stand.zygote.start()
                ahead.begin(range(config.min_pairs), beside)
            if null is None and None not in names:
                with stage(NULL):
                    null = self.null(races)
            if names:
                null, told = self._together(races, names, null, ahead, beside, stage)
                found |= told
            if null is None:
                with stage(NULL):
                    null = self.null(races)
            # Meanwhile the others' code is compiled.
            for name in sorted(missing, key=COMPILED.__contains__):
                if found[name] is not None:
                    continue
                if name == "compile":
                    with stage(name):
                        self._compiled(ahead, races, beside)
                with stage(f"baseline {name}"):
                    mine = ahead.ready if name == "compile" else deque[Subject]()
                    found[name] = self.baseline(races, name, null, mine)
            if races.references:
                keep(races.references.pop(max(races.references)))
        return null, tuple(baseline for baseline in found.values() if baseline is not None)

    def ahead(self, task: Task, config: EvalConfig, signature: Signature) -> Ahead | None:
        """Compiled workers of a task whose turn is to come, begun; None where there are none to be,
        or their calls or parameters are large.
        """
        wanted = AHEAD in _baselines(task, config)
        if not wanted or self._baseline(task, config, AHEAD) is not None:
            return None
        light = small(signature) and signature.state_bytes <= STAYING_BYTES
        if not light or _compilers() == 0:
            return None
        found = Ahead(self.compiling, task, config, signature)
        found.begin(range(config.min_pairs), _compilers())
        return found

    def _at_once(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        missing: Sequence[str],
        null: Null | None,
    ) -> list[str | None]:
        """What the reference is timed once for: baselines but for max_autotune, which tunes alone
        for minutes, and the null experiment, which is None here, where that is calls alone. Empty:
        for each by itself.
        """
        bare = null is None and config.baselines_only
        names: list[str | None] = [None] if bare else []
        names += [name for name in missing if name not in COMPILED or name == AHEAD]
        few = len(names) < 2
        return [] if few or not fits(scheme, signature, task.device, 1 + len(names)) else names

    def _together(
        self,
        races: Races,
        names: Sequence[str | None],
        null: Null | None,
        ahead: Ahead,
        beside: int,
        stage: Stages,
    ) -> tuple[Null | None, dict[str, Baseline]]:
        """As far as they can be told so: where memory runs out the rest is timed pair by pair."""
        rivals = {name: Rival(name, races.config) for name in names}
        late = rivals.get(AHEAD)
        try:
            if late is not None:
                late.ready, late.waits = ahead.ready, True
                if beside == 0:
                    with stage(AHEAD):
                        self._compiled(ahead, races, beside)
            with stage(TOGETHER):
                races.together(list(rivals.values()), null)
            if None in rivals:
                null = self._found(races, rivals[None].rounds)
            if late is not None and late.left and late.failed is None:
                if beside > 0:
                    with stage(AHEAD):
                        self._compiled(ahead, races, beside)
                late.waits = False
                with stage(f"baseline {AHEAD}"):
                    races.together([late], null)
            if null is not None:
                with stage(TOGETHER):
                    races.narrow([r for r in rivals.values() if r.wrap is not None], null)
        except (WorkerFailed, OutOfMemoryError, torch.OutOfMemoryError) as failed:
            logger.info("pair by pair from now on: %s", failed)
        finally:
            for rival in rivals.values():
                races.dismiss(rival)
        told = {}
        for name, rival in rivals.items():
            if name is not None and null is not None and _over(rival):
                told[name] = self._told(races, rival, null)
        return null, told

    def _compiled(self, ahead: Ahead, races: Races, beside: int) -> None:
        """Wait for what is made ahead, or make it now; of large calls' workers, which are made one
        by one, only the first is waited for: its code serves the others.
        """
        if not races.room.small:
            ahead.stop()
            return
        ahead.finish()
        if beside == 0 and not ahead.ready:
            ahead.begin(range(1))
            ahead.finish()
            ahead.begin(range(1, races.config.min_pairs), len(os.sched_getaffinity(0)))
            ahead.finish()

    def races(
        self, task: Task, config: EvalConfig, signature: Signature, scheme: Plan, sides: int = 2
    ) -> Races:
        """Of one task, so many sides at once."""
        shared = (self.stand, self.compiling, task, config, signature, scheme)
        return Races(*shared, self.synchronize, sides)

    def null(self, races: Races) -> Null:
        """The reference against itself, over distinct process pairs."""
        try:
            rounds = races.race(None, deque(), bare=races.config.baselines_only)
        except WorkerFailed as failed:
            raise reference_failed(races.task, failed) from failed
        return self._found(races, rounds)

    def _found(self, races: Races, rounds: Sequence[RoundObservation]) -> Null:
        """The null experiment, kept."""
        null = null_of(rounds)
        name = BARE_NULL if races.config.baselines_only else NULL
        self._keep(races.task, races.config, name, null.log_ratios, lasting=not _loud(null))
        return null

    def baseline(self, races: Races, name: str, null: Null, ready: deque[Subject]) -> Baseline:
        """One baseline against eager. Its failure is recorded, not raised; `ready`: its workers, as
        far as there are any.
        """
        rival = Rival(name, races.config)
        try:
            rival.rounds = races.race(name, ready, null)
        except WorkerFailed as failed:
            rival.failed = failed
        return self._told(races, rival, null)

    def _told(self, races: Races, rival: Rival, null: Null) -> Baseline:
        """A baseline, kept."""
        assert rival.wrap is not None
        found, lasting = _figure(rival.wrap, rival, null, races.config)
        lasting = lasting and not _loud(null)
        self._keep(races.task, races.config, rival.wrap, to_record(found), lasting=lasting)
        return found

    def _null(self, task: Task, config: EvalConfig) -> Null | None:
        kept = self._kept(task, config, NULL)
        if kept is None and config.baselines_only:
            kept = self._kept(task, config, BARE_NULL)
        return None if kept is None else Null(tuple(kept))

    def _baseline(self, task: Task, config: EvalConfig, name: str) -> Baseline | None:
        kept = self._kept(task, config, name)
        return None if kept is None else from_record(Baseline, kept)

    def _kept(self, task: Task, config: EvalConfig, name: str) -> Any:
        """What was timed, unless it was disturbed and is old."""
        record = read_json(self._path(task, config, name))
        if record is None or (record.get("wide") and time.time() > record["at"] + WIDE_KEPT_S):
            return None
        return record["found"]

    def _keep(
        self, task: Task, config: EvalConfig, name: str, found: object, *, lasting: bool
    ) -> None:
        record = {"task": task.id, "at": time.time(), "found": found, "wide": not lasting}
        keep_json(self._path(task, config, name), record)

    def _path(self, task: Task, config: EvalConfig, name: str) -> Path:
        protocol = [PROTOCOL, *(getattr(config, field) for field in TIMING_FIELDS)]
        key = digest([task.hash, protocol, name, self.environment, SCHEMA_VERSION])
        return self.cache / "baselines" / f"{key}.json"


def _compilers() -> int:
    """Workers that may compile beside what is timed, for all that their memory says."""
    return len(os.sched_getaffinity(0)) // CORES_PER_COMPILER


def _over(rival: Rival) -> bool:
    """Whether no other pair would tell more of it; what lacked memory may have it alone."""
    if rival.failed is None:
        return not rival.left
    return not set(rival.failed.failure.types) & MEMORY_TYPES


def _figure(name: str, rival: Rival, null: Null, config: EvalConfig) -> tuple[Baseline, bool]:
    """And whether it will stay so: a time-out or a disturbance may pass."""
    if rival.failed is not None:
        kind, types = rival.failed.failure.kind, set(rival.failed.failure.types)
        lasting = kind is FailureKind.CLAIMED and not types & MEMORY_TYPES
        return Baseline(name, None, None, str(rival.failed)[:300]), lasting
    pairs = summarise(rival.rounds)
    if not pairs:
        return Baseline(name, None, None, "every round was disturbed"), False
    latency_ms = sum(p.candidate_ms for p in pairs) / len(pairs)
    found = interval(pairs, null, config)
    logs = tuple(p.log_speedup for p in pairs)
    return Baseline(name, latency_ms, found, logs=logs), found.high <= WIDE * found.low


def _loud(null: Null) -> bool:
    """Whether it was disturbed."""
    return not null.log_ratios or 2 * null.floor > math.log(WIDE)


def _baselines(task: Task, config: EvalConfig) -> list[str]:
    return [name for name in config.baselines if name in DEVICE_BASELINES[task.device]]
