"""The turn of either side in a round: its batch or lone calls timed, its used inputs poisoned, its
outputs handed over.
"""

from __future__ import annotations

import random
import secrets
import time
from dataclasses import replace
from typing import Any

from sandbox.checking.structure import structure
from sandbox.observation import CaseObservation
from sandbox.pairs.keepsake import HandedOver, Keepsake
from sandbox.pairs.sides import Sides
from sandbox.pairs.turn import Progress, Turn, goes, span


class Turns(Sides):
    """What is done to the candidate between "done" and collect is done to the reference too."""

    def __init__(self, *sides: Any, judged: bool, **options: Any) -> None:
        """As Sides. `judged`: the candidate's outputs are compared."""
        super().__init__(*sides, **options)
        self.judged = judged
        self.used_up = not self.signature.mutates and not self.signature.aliases
        """A call's inputs are poisoned once it is "done": no output needs them."""
        self.last = False
        """This is the last round."""
        self.poisoned = 0
        """The candidate's first so many input sets hold nothing since they were used."""
        self.secret = random.Random(secrets.randbits(64))
        self.keepsake = Keepsake(self.candidate, able=self.signature.owns)
        self.handed_over = HandedOver(self.candidate)
        self.keep: int | None = None
        """Position, in the next batch, of the call whose output is kept; None once one is."""
        if self.keepsake.wanted(self.signature.output_bytes):
            self.keep = self.secret.randrange(self.plan.sets)

    def spoils(self, single: bool) -> bool:
        """Whether a round's outputs are held until it has been compared, and then spoilt."""
        return self.judged and self.signature.owns and not single and not self.last

    def run_reference(self, sets: list[int], single: bool) -> Turn:
        """The reference's turn, with the candidate's whole process tree stopped."""
        self.candidate.idle.end()
        self.candidate.worker.freeze()
        turn = Progress()
        try:
            self.ready(self.reference)
            for batch in goes(sets, single):
                turn.spent.append(self.timed(self.reference, batch, single))
                after = self.afterwards(single)
                # What happens to the candidate between "done" and collect happens to the reference
                # too, memory traffic included: a pause makes collect slower, and so do cold caches.
                start = time.perf_counter()
                self.reference.worker.freeze()
                after.settle(time.perf_counter() - start)
                turn.paces.append(self.pace(single))
                with after.timed():
                    if not self.signature.mutates:
                        self.given.unchanged(*span(batch))
                    if self.used_up and self.probe is None:
                        self.given.rewrite(*span(batch))
                    elif self.used_up:  # as the candidate's are, to the byte: it is timed
                        self.candidate.poison("inputs", *span(batch))
                    self.reference.poison("slots", *span(batch))
                    if single and self.rung:
                        self.reference.forget()
                    self.synchronize()
                self.reference.worker.thaw()
                keep = None if single else self.keep
                seconds, _ = self.reference.collect(batch, keep=keep)
                after.end()
                turn.collected(seconds, after)
        finally:
            self.reference.worker.thaw()
            self.candidate.worker.thaw()
            self.candidate.idle.begin()
        return turn.over()

    def run_candidate(
        self, sets: list[int], single: bool, case: CaseObservation
    ) -> tuple[Turn, CaseObservation]:
        """The candidate's turn: its inputs are checked and poisoned before it hands outputs over,
        and a lone call's output is out of its reach before the next set is disclosed.
        """
        self.ready(self.candidate)
        turn = Progress()
        for batch in goes(sets, single):
            turn.spent.append(self.timed(self.candidate, batch, single))
            after = self.afterwards(single)
            mutated = unfinished = False
            start = time.perf_counter()
            with self.frozen():  # so that nothing goes on unpaid while inputs are compared
                after.settle(time.perf_counter() - start)
                turn.paces.append(self.pace(single))
                with after.timed():
                    if not self.signature.mutates:
                        mutated = not self.given.unchanged(*span(batch))
                        unfinished = mutated and single and self.came_late(batch)
                    if self.used_up:
                        self.candidate.poison("inputs", *span(batch))
                    self.candidate.poison("slots", *span(batch))
                    if single and self.rung:
                        self.candidate.forget()
                    self.synchronize()
            keep = self.keep if not single else None
            # A lone call's output goes at once, as the reference's does: the next takes its memory.
            spoil = self.spoils(single)
            seconds, claim = self.candidate.collect(batch, keep=keep, spoil=spoil)
            after.end()
            turn.collected(seconds, after)
            with self.frozen():  # nor while we read its claim, which may be of any length
                differs = structure(
                    claim, self.signature, len(batch), dense=self.config.dense_layouts
                )
                if keep is not None:
                    self.keepsake.take(sets[keep])
                if single:
                    self.handed_over.take(batch[0])
                self.synchronize()
            seen = CaseObservation(
                case.name, inputs_mutated=mutated and not unfinished, unfinished=unfinished
            )
            case = case.worst(replace(seen, **differs))
        if self.used_up:
            self.poisoned = max(self.poisoned, len(sets))
        self.candidate.idle.begin()
        return turn.over(), case
