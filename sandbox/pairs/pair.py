"""One process pair: a reference worker and a candidate worker on equal inputs (docs/measuring.md).

The candidate is disclosed one batch of fresh inputs per "go"; outputs leave through poisoned slots;
its used inputs are poisoned before it hands outputs over, so that work deferred past "done" reads
garbage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

from sandbox.checking.differences import differences, finite
from sandbox.judging.drift import drift, timed_alone, uneven
from sandbox.machine.quiet import Quiet
from sandbox.observation import CaseObservation, Errors, RoundObservation
from sandbox.pairs.rounds import MET_BY, hiding_rounds, restyled, short_round, single_set
from sandbox.pairs.second_look import second_look
from sandbox.pairs.turn import Turn
from sandbox.pairs.turns import Turns
from sandbox.pairs.unlike import Kind, Kinds, Unlike
from sandbox.subjects.plan import SPARE_OUTPUTS, Plan
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig

logger = logging.getLogger(__name__)

LOOKS = 2
"""Calls of a candidate that have to be slow for short batches."""
CUT_SHORT = "we ended it at a secret place, to see what calls had updated"
"""Why a batch does not count that has fewer sets: what is charged is compared over all of them."""
WATCHED, WATCHED_BYTES = 2, 1 << 30
"""Sets of a round whose inputs are kept, where calls write to them, and at most: how small a change
is tells what it was made to."""


class ProcessPair(Turns):
    """Drives both sides; the caller owns the subjects and closes them."""

    def __init__(
        self,
        number: int,
        reference: Subject,
        candidate: Subject,
        signature: Signature,
        plan: Plan,
        config: EvalConfig,
        synchronize: Callable[[], None],
        quiet: Quiet,
        *,
        new_weights: bool = True,
        strict: bool = True,
        judged: bool = True,
        kinds: Kinds | None = None,
        truthful: bool = False,
    ) -> None:
        """`new_weights`: overwrite parameters at secret moments, as a training loop would.

        `strict`: whatever is built for other candidates stands still in timed regions too.

        `judged`: False where both sides are trusted; their outputs are not compared, and no call is
        alone in its "go".

        `kinds`: of inputs that some sets of some batches have in place of those as given.

        `truthful`: the float64 truth of a batch can be had.
        """
        super().__init__(
            reference,
            candidate,
            signature,
            plan,
            config,
            synchronize,
            quiet,
            new_weights=new_weights,
            strict=strict,
            judged=judged,
        )
        self.number = number
        self.kinds = kinds if judged else None
        # Where the reference is known to take scaled inputs.
        known = self.kinds.kinds if self.kinds else ()
        self.given.varied = any(kind.change is None and kind.scale > 0 for kind in known)
        self.truthful = truthful
        self.ages = strict and judged
        """Call on after the last round, so that what is kept grows old."""
        self.hides = False
        """The next round is a batch with inputs of other kinds."""
        self.before: dict[int, torch.Tensor] = {}
        """The (bytes,) of some sets before the round, where calls write to their inputs."""

    def start(self, first_call_timeout_s: float, *, shorter: bool = False) -> Plan:
        """Attach arenas, give both sides one state, make first calls, time the reference solo.

        Returns the plan; where it may be `shorter` and the candidate is slow, that one, for another
        pair of the same two, and no batch was called.
        """
        total = self.plan.sets + self.plan.warm
        # Where memory lies is a chance that the pairs behind a figure must not share: pages that
        # the kernel has back go to who asks first, and those of one pair to the next.
        sides = [self.reference, self.candidate]
        self.secret.shuffle(sides)
        for side in sides:
            side.fresh = self.strict
            side.attach_all(self.signature, total, self.plan.slots)
            if self.rung and self.judged:
                side.attach_bell(self.signature)
        self.given.share_state()
        # A warm reference has values there, from before this candidate was begun: they do for what
        # is not judged, and making them takes as long as a round.
        if self.signature.mutates or not self.reference.solo:
            self.given.fill(total)
        self.given.share_inputs(total)
        device = self.reference.task.device
        reserved = self.plan.reserved(self.signature, device, keeps=self.keep is not None)
        for side in sides:
            if not side.solo and reserved:
                side.reserve(reserved)
            side.worker.send("warm", stage=side.stage, sets=self.plan.warm_sets)
        for side in (self.reference, self.candidate):
            start = time.perf_counter()
            side.worker.reply(stage=side.stage, timeout_s=first_call_timeout_s)
            seconds = time.perf_counter() - start
            logger.debug("first call of %d: %.0f ms", side.worker.pid, seconds * 1e3)
        if shorter and (found := self.planned_for_now()) != self.plan:
            return found
        batch = self.plan.timed
        if self.keep is not None:
            batch = [*batch, *[batch[0]] * SPARE_OUTPUTS]
        for side in (self.reference, self.candidate):
            # A warm reference has had its batches, in these arenas.
            for _ in range(0 if side.solo else self.plan.untimed):
                side.warm(self.plan.warm_sets)
                self.batch(side, batch)
            side.worker.place()
        self.time_alone()
        return self.plan

    def time_alone(self) -> None:
        """Batches of the reference, with the candidate stopped."""
        with self.silence(), self.frozen():
            self.reference.solo = timed_alone(self.reference.solo, self.alone)

    def planned_for_now(self) -> Plan:
        """The plan for calls as long as one of the candidate takes now; its own for a quick one."""
        self.candidate.warm(self.plan.warm_sets)
        for _ in range(LOOKS):  # The machine may have been busy: it is not silent here.
            call_s = self.candidate.go(self.plan.timed[:1])
            found = self.plan.shorter(call_s, self.signature.latency_s)
            if found == self.plan:
                break
        return found

    def rounds(
        self, bounds: Sequence[Errors], over: Callable[[], bool] = lambda: False
    ) -> Iterable[tuple[RoundObservation, Sequence[CaseObservation]]]:
        """Timed rounds with the comparison of every output; which ones are single-set is secret.

        They end early once `over` says so, though not before the candidate was tested in every way.
        A void round is made up for at the end, as often as there are rounds.
        """
        kinds = single_set(self.config, self.secret, judged=self.judged)
        most = 2 * len(kinds)
        changed, hiding = restyled(len(kinds), self.secret), hiding_rounds(kinds, self.secret)
        counts = [self.count(single=single) for single in kinds]
        if self.judged and self.signature.moves_state and self.plan.sets > 1:
            short = short_round(kinds, hiding, self.secret)
            if short is not None:
                counts[short] = self.secret.randrange(1, self.plan.sets)
        # Once whole, once in part, in either order; where it is once alone, whole.
        part = self.secret.choice(sorted(changed)) if len(changed) > 1 else None
        for number, single in enumerate(kinds):
            if number >= MET_BY and over():
                return
            self.last = number == len(kinds) - 1
            following = 0 if self.last else counts[number + 1]
            if number in changed:
                self.given.restyle(part=number == part)
            self.hides = number in hiding
            seen, cases = self.round(single, counts[number], bounds, following)
            if seen.void and len(kinds) < most:
                kinds.append(single)
                counts.append(self.count(single=single))
            yield seen, cases

    def count(self, *, single: bool) -> int:
        """Input sets of a round."""
        return self.plan.single if single else self.plan.sets

    def round(
        self, single: bool, count: int, bounds: Sequence[Errors], following: int
    ) -> tuple[RoundObservation, Sequence[CaseObservation]]:
        """One round of `count` sets, and fresh values for those of the one that is to follow, so
        many. Tells of the inputs as given, and of those of each other kind where there are any.
        """
        sets = list(range(count))
        self.secret.shuffle(sets)
        self.given.fill(len(sets))
        unlike = self.kinds.draw(len(sets)) if self.kinds and self.hides else None
        if unlike is not None:
            self.given.change(unlike, self.secret)
        self.before = {}
        if self.signature.mutates and self.judged:
            room = WATCHED_BYTES // max(self.signature.input_bytes, 1)
            for index in self.secret.sample(sets, min(WATCHED, len(sets), room)):
                self.before[index] = self.reference.set_bytes("inputs", index).clone()
            self.synchronize()
        if len(sets) > self.poisoned:
            self.candidate.poison("inputs", 0, len(sets))
        turns: dict[Subject, Turn] = {}
        case = CaseObservation("timed rounds")
        order = [self.reference, self.candidate]
        self.secret.shuffle(order)
        if (
            self.signature.mutates
        ):  # the candidate's inputs are copied from the reference's unused ones
            order = [self.candidate, self.reference]
        with self.silence():
            for side in order:
                if side is self.candidate:
                    turns[side], case = self.run_candidate(sets, single, case)
                else:
                    turns[side] = self.run_reference(sets, single)
        cases = self.looked_at(sets, single, bounds, following, case, unlike)
        mine, its = turns[self.reference], turns[self.candidate]
        if single:
            its = its.beside(mine)
        elif self.given.publish_s is not None:
            mine, its = map(Turn.told, (mine, its), self.given.publish_s)
        seen = self.observed(mine, its, len(sets), single=single)
        if count < self.count(single=single):
            seen = replace(seen, void=seen.void or CUT_SHORT)
        return seen, cases

    def observed(self, mine: Turn, its: Turn, calls: int, *, single: bool) -> RoundObservation:
        """What the turns of the reference and of the candidate come to."""
        return RoundObservation(
            pair=self.number,
            single=single,
            calls=calls,
            reference_s=mine.seconds,
            candidate_s=its.seconds,
            reference_collect_s=mine.collect_s,
            candidate_collect_s=its.collect_s,
            reference_left_s=mine.left_s,
            candidate_left_s=its.left_s,
            void=self.why_void(mine, its, calls, single),
            rung=single and self.rung,
        )

    def looked_at(
        self,
        sets: list[int],
        single: bool,
        bounds: Sequence[Errors],
        following: int,
        case: CaseObservation,
        unlike: Unlike | None,
    ) -> Sequence[CaseObservation]:
        """How the outputs of a round differ, and whether the one that is kept is what it was; then
        they are spoilt.
        """
        others: Sequence[CaseObservation] = ()
        if self.judged:
            given = (range(len(sets)),) if unlike is None else unlike.others
            places = () if unlike is None else unlike.places
            case = replace(case, bounds=tuple(bounds))
            # Frozen, so that no thread of it mends an output while outputs are compared.
            with self.frozen():
                with self.given.meanwhile_filled(following):
                    case, others = self.compared(case, given, places)
                if self.truthful and not case.within:
                    case = self.looked_at_again(case, given, single)
            self.handed_over.forget()
            # Its code runs here: until now it could have written what was compared.
            case = replace(case, state_differs=not self.given.same_state())
        if self.keep is None:  # kept in an earlier round
            if self.ages and self.last:
                self.candidate.idle.end()
                self.candidate.grow_old(self.plan.warm_sets)
                self.candidate.idle.begin()
            case = replace(case, stale=not self.keepsake.intact(self.until_idle))
        elif not single:
            self.keep = None
        if self.spoils(single):
            # Now that all is compared: its code runs here, and nobody's clock.
            self.candidate.idle.end()
            self.candidate.spoil()
            self.candidate.idle.begin()
        return (case, *others)

    def looked_at_again(
        self, case: CaseObservation, given: Sequence[range], single: bool
    ) -> CaseObservation:
        """Of lone calls, behind whose end no device was waited for, what they handed over; then the
        reference has the memory of its outputs again, as after its first batches.
        """
        output = self.handed_over.output if single else partial(self.candidate.leaf, "slots")
        factor = self.config.reference_error_factor
        case = second_look(self.given, given, case, factor, output, self.handed_over.put_back)
        for _ in range(self.plan.untimed):
            self.reference.warm(self.plan.warm_sets)
            self.batch(self.reference, self.plan.timed)
        return case

    def compared(
        self,
        case: CaseObservation,
        given: Sequence[range],
        unlike: Sequence[tuple[range, Kind]],
    ) -> tuple[CaseObservation, Sequence[CaseObservation]]:
        """With the errors of the sets as given, and a case for each of those of other kinds."""
        self.handed_over.put_back()
        sides = self.reference, self.candidate, self.signature
        case = replace(case, **differences(*sides, given, case.bounds, self.before))
        others = []
        for places, kind in unlike:
            # What overflows is at an edge that a candidate may lie on the other side of.
            if not kind.finite or finite(self.reference, self.signature, places):
                seen = differences(*sides, [places], kind.bounds, self.before)
                name = f"{case.name}, {kind.name}"
                others.append(CaseObservation(name, **seen, bounds=kind.bounds))
        return case, others

    def why_void(self, mine: Turn, its: Turn, calls: int, single: bool) -> str:
        """Why a round does not count; empty where it does."""
        alone, device = self.reference.solo, self.reference.task.device
        drifted = "" if single else drift(mine.seconds / calls, mine.pace, alone, device)
        return drifted or uneven(mine.pace, its.pace)
