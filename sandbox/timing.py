"""One candidate against its reference, process pair by process pair, until a figure is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from sandbox.checking.bounds import own_error, timed_bounds
from sandbox.checking.pool import Pool
from sandbox.figures import Pair
from sandbox.judging import merging, overrun
from sandbox.judging.judge import judge_case
from sandbox.judging.statistics import clear_win, enough, hopeless, settled, summarise
from sandbox.machine.ready import PROFILED
from sandbox.observation import CaseObservation, Errors, RoundObservation
from sandbox.pairs.pair import ProcessPair
from sandbox.pairs.second_look import able
from sandbox.pairs.unlike import Kinds, timed_kinds
from sandbox.prepare import Preparation
from sandbox.subjects.plan import SLOW, Plan
from sandbox.subjects.signature import Opening
from sandbox.subjects.subject import Subject
from sandbox.types import Status
from sandbox.workers import Workers


def doubted(rounds: Sequence[RoundObservation], device: str, *, slow: bool = False) -> bool:
    """Whether another pair has to say if work is hidden; `slow`: merging calls gained nothing."""
    merged = merging.suspected(rounds) or merging.doubtful(rounds, device)
    return overrun.suspected(rounds) or (merged and not slow)


class Timed(Workers):
    """What follows once a candidate is right; the device is held."""

    preparation: Preparation
    pools: Sequence[Pool]
    plan: Plan
    """Of the pairs to come."""
    to_beat: float | None
    """The best speedup so far, in a search."""
    kinds: Kinds
    """Of inputs beside those as given."""
    doubt = False
    """Something about the first pair was doubted."""
    replanned = False
    """Its batches are longer than they were first, and are as they are from now on."""

    def time(self) -> None:
        """Process pairs until the statistics say enough.

        All are fresh for a figure that is reported; in a search the first pair is the task's warm
        reference and the worker that was loaded.
        """
        rounds: list[RoundObservation] = []
        bounds = timed_bounds(self.pools[0].cases[0])
        worst = dict[str, CaseObservation]()
        self.kinds = timed_kinds(self.pools[0], self.config)
        self.note(own_error=own_error(self.pools[0]))
        null = self.preparation.null
        most = max(self.config.max_pairs, merging.LEAST_PAIRS, overrun.MOST_PAIRS)
        number = 0
        while number < most:
            seeded = self.observation.parameters == "seed"
            warm = self.to_beat is not None and self.loaded is not None and not seeded
            for seen, cases in self.warm_pair(bounds) if warm else self.pair(number, bounds):
                rounds.append(seen)
                for case in cases:
                    worst[case.name] = worst.get(case.name, case).worst(case)
                self.note(rounds=tuple(rounds), timed=tuple(worst.values()))
                if not self.right():
                    return
            pairs = summarise(rounds)
            if self.quicker_than_told(rounds) or (number == 0 and self.lengthened(pairs)):
                rounds.clear()  # they were judged, and are no part of the figure
                number = 0
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
    ) -> Iterator[tuple[RoundObservation, Sequence[CaseObservation]]]:
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
    ) -> Iterator[tuple[RoundObservation, Sequence[CaseObservation]]]:
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
    ) -> Iterator[tuple[RoundObservation, Sequence[CaseObservation]]]:
        signature = self.pools[0].signature
        looking, self.looking = self.looking, None
        watched = self.stand.undisturbed(looking)
        with self.beside(subject, signature, self.plan.sets), watched:
            with self.stage("warm"):
                subject.stage = "time"
                self.make_room(reference, self.plan.bytes(signature))
                shorter = number == 0 and not self.replanned
                for may_be_shorter in (shorter, False):
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
                        kinds=self.kinds,
                        truthful=able(self.pools[0]),
                    )
                    found = pair.start(self.config.load_timeout_s, shorter=may_be_shorter)
                    if found == self.plan:
                        break
                    self.replan(found)
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
        self.replanned = True
        self.replan(found)
        return True

    def quicker_than_told(self, rounds: Sequence[RoundObservation]) -> bool:
        """Whether batches are as planned from now on, since a candidate whose first calls were slow
        was quick in one: short batches may flatter, and are for those alone that they cannot help.
        """
        planned = self.preparation.plan if self.to_beat is None else self.preparation.search_plan
        slow = [2 * r.candidate_s > SLOW * r.reference_s for r in rounds if not r.single]
        if self.plan.sets >= planned.sets or all(slow):
            return False
        self.replanned = True
        self.replan(planned)
        return True

    def replan(self, plan: Plan) -> None:
        self.plan = plan
        floor_s = self.preparer.floor_s(self.pools[0].signature, plan)
        self.note(sets=plan.sets, floor_s=floor_s)

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

    def look(self, subject: Subject, reference: Subject) -> None:
        """Facts about both processes after a pair, joined with what was seen before."""
        claim, seen = subject.facts()
        known = self.observation
        self.note(
            runtime=claim if known.runtime is None else known.runtime.joined(claim),
            tree=known.tree.joined(seen),
            reference_tree=known.reference_tree.joined(reference.facts()[1]),
        )

    def right(self) -> bool:
        """Whether all that was computed while it was timed was right."""
        return all(judge_case(case)[0] is Status.PASSED for case in self.observation.timed)

    def promising(self) -> bool:
        """Whether to profile it, once it is right: outside a search and faster than eager it may be
        promoted; or because the protocol says so.
        """
        if not self.observation.timed or not self.right():
            return False
        if self.to_beat is not None or self.config.profile_searches:
            return self.config.profile_searches
        pairs = summarise(self.observation.rounds)
        return bool(pairs) and statistics.fmean(pair.log_speedup for pair in pairs) > 0
