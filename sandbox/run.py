"""One candidate's way through build, load, verify and time; yields an Observation, concludes
nothing.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from sandbox import copying, layers, merging, overrun
from sandbox.build import CACHE_LIMIT
from sandbox.errors import DeviceError, InvalidReference
from sandbox.handle import WorkerFailed
from sandbox.invalid import NoRoom
from sandbox.judge import judge_case
from sandbox.observation import (
    CaseObservation,
    Errors,
    Observation,
    Provenance,
    RoundObservation,
)
from sandbox.pair import ProcessPair
from sandbox.plan import Plan
from sandbox.pool import timed_bounds
from sandbox.prepare import Preparation
from sandbox.provenance import provenance
from sandbox.ready import PROFILED
from sandbox.room import SHORTAGE, blame, own_bytes
from sandbox.static.scan import scan
from sandbox.statistics import clear_win, enough, hopeless, settled, summarise
from sandbox.subject import Opening, Signature, Subject
from sandbox.types import Pair, Status
from sandbox.verify import profiled, verify
from sandbox.walls.folders import CUPY_CACHE, TRITON_CACHE
from sandbox.workers import Workers

UNMATCHED = (
    "ModelNew's parameters and buffers match the reference's neither by name nor by order, shape "
    "and dtype: register the same ones, and read them at every call"
)


def doubted(rounds: Sequence[RoundObservation], device: str, *, slow: bool = False) -> bool:
    """Whether another pair has to say if work is hidden; `slow`: merging calls gained nothing."""
    merged = merging.suspected(rounds) or merging.doubtful(rounds, device)
    return overrun.suspected(rounds) or (merged and not slow)


class Run(Workers):
    """One evaluation: `load`, then `measure` while the device is held, then `finish`."""

    doubt = False
    """Something about the first pair was doubted."""

    def load(self, first: Signature | None = None) -> None:
        """Static scan, build, and a worker with the candidate imported, and its model constructed
        where it is known what for: host work, for any thread.
        """
        if self.note(source=scan(self.candidate.source)).source.refused:
            return
        try:
            self.build()
            if self.observation.failure is None:
                with self.stage("load"):
                    self.loaded = self.started(first, then_stop=True)
        except WorkerFailed as failed:
            self.dismiss()
            self.starved = self.task.device == "cuda" and SHORTAGE in failed.failure.types
            if not self.starved:
                self.note(failure=failed.failure)

    def measure(self, preparation: Preparation, to_beat: float | None) -> None:
        """Verify and time what was loaded, if anything, up to the first failure."""
        self.preparation = preparation
        self.pools = preparation.pools
        self.to_beat = to_beat
        self.plan = preparation.plan if to_beat is None else preparation.search_plan
        self.note(
            sets=self.plan.sets,
            launches_at_least=self.facts.launch_s or None,
            floor_s=preparation.floor_s if to_beat is None else preparation.search_floor_s,
            noise_floor=preparation.null.floor,
        )
        if to_beat is None:
            self.preparer.warm.cool(self.task, self.config)  # all pairs will be fresh
        try:
            if self.starved:
                self.load_again()
            if self.loaded is None:
                return
            self.loaded.worker.thaw()
            self.stand.allow(self.loaded, preparation.first)
            self.check(self.loaded, Path(self.kept.name))
            right = self.loaded is not None and self.sound() and self.unmasked()
            if right and not self.config.verify_only:
                self.time()
                if self.promising():
                    self.profile()
        except WorkerFailed as failed:
            self.note(failure=blame(failed.failure))
        finally:
            self.dismiss()
            self.pools = ()
            del self.preparation

    def finish(self) -> Observation:
        """What was seen, once the last worker is gone. Raises SandboxFault for one that survives
        and OSError where its traces cannot be removed.
        """
        self.dismiss()
        self.kept.cleanup()
        if self.watched is not None:
            self.watched.result()
        if self.ended is not None:
            subject, gone = self.ended
            gone.result()
            self.note(stdout=subject.worker.stdout(), stderr=subject.worker.stderr())
        environment = {**self.facts.environment, "walls": self.walls}
        if self.stand.gpu is not None:
            environment["gpu_watch"] = self.stand.gpu.sees
        return self.note(seconds=dict(self.stage.seconds), environment=environment)

    def load_again(self) -> None:
        """While the device is held, with what idle workers had."""
        self.preparer.warm.rest()
        self.stand.settle()
        with self.stage("load"), self.beside(None, self.pools[0].signature, 1, early=True):
            self.loaded = self.started(self.preparation.first)

    def build(self) -> None:
        with self.stage("build"):
            report = self.builder.build(self.candidate, self.config, self.task)
        self.note(build_log=report.log, failure=report.failure)
        if report.artifacts is not None:
            self.preload.append((report.artifacts, "artifacts"))
        if report.kernels is not None:
            self.preload.append((report.kernels, TRITON_CACHE))

    def check(self, subject: Subject, kept: Path) -> None:
        """Verify the candidate on every shape; its compiler caches serve later workers, and its
        worker the first pair of a search. Where it is refused, nothing is loaded any more.
        """
        cases: list[CaseObservation] = []
        for number in self.preparation.order:
            signature, count = self.pools[number].signature, len(self.pools[number].cases)
            with self.stage("open"), self.beside(subject, signature, count, early=True):
                subject.stage = "load"
                if cases:
                    subject.release()
                matched = self.stand.open_candidate(subject, self.pools[number].signature)
                if matched == "seed" and (self.config.require_matched_parameters or not cases):
                    refused = self.reseed(subject)
                    if refused:
                        self.note(rejected=refused, parameters=matched)
                        self.dismiss()
                        return
                    signature, count = self.pools[number].signature, len(self.pools[number].cases)
                    matched = self.stand.open_candidate(subject, signature)
            one_side = Plan(count, 0).bytes(signature) // 2
            self.make_room(None, one_side)
            with self.stage("verify"), self.beside(subject, signature, count, early=True):
                subject.stage = "verify"
                cases += verify(subject, self.pools[number], matched, self.synchronize)
            self.note(cases=tuple(cases), parameters=matched)
        for name in (TRITON_CACHE, CUPY_CACHE):
            # A compiler cache that is missing, or spoilt by its candidate, only costs time.
            with contextlib.suppress(OSError, ValueError):
                copying.copy_folder(subject.worker.scratch, name, kept / name, CACHE_LIMIT)
                self.preload.append((kept / name, name))

    def reseed(self, subject: Subject) -> str:
        """Cases whose parameters are as constructed, for candidates matched only by a shared seed;
        returns why there are none.
        """
        if self.config.require_matched_parameters:
            return UNMATCHED
        subject.worker.freeze()  # the reference is examined beside it
        try:
            self.pools = self.preparer.pools(self.task, self.config, randomise=False)
        except NoRoom as error:
            raise DeviceError(str(error)) from None
        except InvalidReference as error:
            return f"{UNMATCHED}; with the parameters that are constructed, {error}"
        finally:
            subject.worker.thaw()
        return ""

    def sound(self) -> bool:
        """Whether timing is worth while: there are cases, and every one passes."""
        return bool(self.observation.cases) and all(
            judge_case(case)[0] is Status.PASSED for case in self.observation.cases
        )

    def unmasked(self) -> bool:
        """Whether what the worker says of itself leaves timing worth while."""
        assert self.loaded is not None
        with self.stage("verify"):
            self.note(runtime=self.loaded.claim())
        return layers.proof(layers.runtime(self.observation.runtime)) is None

    def look(self, subject: Subject, reference: Subject) -> None:
        """Facts about both processes after a pair, joined with what was seen before."""
        claim, seen = subject.facts()
        known = self.observation
        self.note(
            runtime=claim if known.runtime is None else known.runtime.joined(claim),
            tree=known.tree.joined(seen),
            reference_tree=known.reference_tree.joined(reference.facts()[1]),
        )

    def promising(self) -> bool:
        """Whether to profile it, once it is right: outside a search and faster than eager it may be
        promoted; or because the protocol says so.
        """
        timed = self.observation.timed
        if timed is None or judge_case(timed)[0] is not Status.PASSED:
            return False
        if self.to_beat is not None or self.config.profile_searches:
            return self.config.profile_searches
        pairs = summarise(self.observation.rounds)
        return bool(pairs) and statistics.fmean(pair.log_speedup for pair in pairs) > 0

    def profile(self) -> None:
        """Where its time goes, in a worker of its own, after all timing: evidence only."""
        self.dismiss()
        unit = "device" if self.task.device == "cuda" else "host"
        subject = None
        with self.stage("profile"):
            try:
                self.make_room(None, own_bytes(self.pools[0].signature, 1))
                subject = self.start(role=PROFILED)
                subject.stage = "profile"
                self.stand.open_candidate(subject, self.pools[0].signature)
                claim = profiled(subject, self.pools[0], self.synchronize)
                found = provenance(unit, claim, self.observation.source.kernels)
            except (WorkerFailed, DeviceError) as failed:
                found = Provenance(unit, 0.0, 0.0, problem=str(failed)[:200])
            finally:
                if subject is not None:
                    self.watched = self.stand.retire(subject)
        self.note(provenance=found)

    def time(self) -> None:
        """Process pairs until the statistics say enough.

        All are fresh for a figure that is reported; in a search the first pair is the task's warm
        reference and the worker that was loaded.
        """
        rounds: list[RoundObservation] = []
        bounds = timed_bounds(self.pools[0].cases[0])
        worst = CaseObservation("timed rounds", (Errors(),) * len(bounds), bounds)
        null = self.preparation.null
        most = max(self.config.max_pairs, merging.LEAST_PAIRS, overrun.MOST_PAIRS)
        number = 0
        while number < most:
            warm = (
                number == 0 and self.to_beat is not None and self.observation.parameters != "seed"
            )
            for seen, case in self.warm_pair(bounds) if warm else self.pair(number, bounds):
                rounds.append(seen)
                worst = worst.worst(case)
                self.note(rounds=tuple(rounds), timed=worst)
                if judge_case(worst)[0] is not Status.PASSED:
                    return
            pairs = summarise(rounds)
            if number == 0 and self.lengthened(pairs):
                rounds.clear()  # it was judged, and is not part of the figure
                continue
            if number == 0 and self.promising():
                self.stand.ready.expect(PROFILED)
            done = enough(pairs, null, self.config, self.to_beat)
            # A search has no use for a slow candidate, merged or not.
            slow = self.to_beat is not None and all(p.log_speedup < 0 for p in pairs)
            if done and not self.doubts(slow=slow):
                return
            number += 1

    def pair(
        self, number: int, bounds: tuple[Errors, ...]
    ) -> Iterator[tuple[RoundObservation, CaseObservation]]:
        self.dismiss()
        task, config, signature = self.task, self.config, self.pools[0].signature
        self.make_room(None, self.plan.bytes(signature) + 4 * signature.state_bytes)
        seeded = self.observation.parameters == "seed"
        opening = Opening(randomise=not seeded, known=signature)
        with self.stage("start"), self.beside(None, signature, self.plan.sets):
            # Of two that fail the candidate is heard: it may have left the reference no memory.
            subject, (reference, signature) = self.stand.start_both(
                lambda: self.started(opening.known),
                lambda: self.stand.reference(task, config, opening, fresh=True),
            )
        try:
            with self.stage("start"), self.beside(subject, signature, self.plan.sets):
                self.stand.open_candidate(subject, signature)
            yield from self.race(number, reference, subject, bounds, new_weights=not seeded)
        finally:
            self.end(subject)
            self.stand.retire(reference)

    def warm_pair(
        self, bounds: tuple[Errors, ...]
    ) -> Iterator[tuple[RoundObservation, CaseObservation]]:
        assert self.loaded is not None
        known = self.preparation.signature
        with self.stage("start"), self.beside(self.loaded, known, self.plan.sets):
            reference = self.preparer.warm.get(self.task, self.config, known)
        try:
            yield from self.race(0, reference, self.loaded, bounds, new_weights=True)
        except Exception:  # whatever it was, the reference stopped in the middle of something
            self.preparer.warm.cool(self.task, self.config)
            raise
        finally:
            self.dismiss()

    def race(
        self,
        number: int,
        reference: Subject,
        subject: Subject,
        bounds: tuple[Errors, ...],
        *,
        new_weights: bool,
    ) -> Iterator[tuple[RoundObservation, CaseObservation]]:
        signature = self.pools[0].signature
        with self.beside(subject, signature, self.plan.sets), self.stand.undisturbed():
            with self.stage("warm"):
                subject.stage = "time"
                self.make_room(reference, self.plan.bytes(signature))
                pair = ProcessPair(
                    number,
                    reference,
                    subject,
                    signature,
                    self.plan,
                    self.config,
                    self.synchronize,
                    self.stand.quiet,
                    new_weights=new_weights,
                    strict=self.to_beat is None,
                )
                pair.start(self.config.load_timeout_s)
            with self.stage("time"):
                yield from pair.rounds(bounds, self.decided)
                self.look(subject, reference)

    def lengthened(self, pairs: Sequence[Pair]) -> bool:
        """Whether batches last longer from now on: the candidate was so quick that those of its
        first pair say little.
        """
        planned = self.preparation.plan
        if self.to_beat is not None or self.plan != planned or not pairs:
            return False
        found = planned.longer(math.exp(pairs[0].log_speedup), self.preparation.most_sets)
        if found == planned:
            return False
        self.plan = found
        floor_s = self.preparer.floor_s(self.pools[0].signature, found)
        self.note(sets=found.sets, floor_s=floor_s)
        return True

    def decided(self) -> bool:
        """In a search, whether the pair under way can only confirm what is known. What is
        doubted has to meet everything, and so has a pair that was added for a doubt, and every
        figure of a search that asks for more than one pair.
        """
        if self.to_beat is None:
            return False
        rounds = self.observation.rounds
        if rounds[-1].pair >= self.config.search_pairs:
            return False
        null = self.preparation.null
        known = rounds, null, self.config, self.to_beat
        if hopeless(*known):
            return True
        if self.config.search_pairs > 1:
            return False
        return (clear_win(*known) or settled(rounds, null, self.config)) and not self.doubts()

    def doubts(self, *, slow: bool = False) -> bool:
        """As `doubted`; a doubt about the first pair stands until there is another, or a cheat
        would pass by the first look that has none.
        """
        rounds = self.observation.rounds
        now = doubted(rounds, self.task.device, slow=slow)
        if rounds[-1].pair > 0:
            return now
        self.doubt = self.doubt or now
        return now or (self.doubt and not slow)
