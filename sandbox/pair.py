"""One process pair: a reference worker and a candidate worker on equal inputs (docs/measuring.md).

The candidate is disclosed one batch of fresh inputs per "go"; outputs leave through poisoned slots;
its used inputs are poisoned before it hands outputs over, so that work deferred past "done" reads
garbage.
"""

from __future__ import annotations

import logging
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from sandbox import compare, trees
from sandbox.observation import CaseObservation, Errors, RoundObservation
from sandbox.plan import Plan
from sandbox.subject import Signature, Subject
from sandbox.types import EvalConfig

logger = logging.getLogger(__name__)

SOLO_ROUNDS = 3
WHOLE_BATCHES = 2
"""Untimed batches before the first timed one, until the allocator holds a batch's outputs: on the
CPU the first two took four and two times as long as the third."""
OVERHEAD_GOS = 9
"""Empty "go"s whose median round trip, on the reference's side, is taken off both sides' times."""
DRIFT = {"cuda": 0.15, "cpu": 0.5}
"""Relative slow-down of the reference, beyond five times its solo spread, that voids a round: a
shared CPU is that noisy by itself."""


class ProcessPair:
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
        *,
        new_weights: bool = True,
    ) -> None:
        """`new_weights`: overwrite parameters at secret moments, as a training loop would."""
        self.number = number
        self.reference = reference
        self.candidate = candidate
        self.signature = signature
        self.plan = plan
        self.config = config
        self.synchronize = synchronize
        self.new_weights = new_weights and bool(signature.state)
        self.solo: list[float] = []
        self.overhead_s = 0.0
        self.secret = random.Random(secrets.randbits(64))

    def start(self, first_call_timeout_s: float) -> None:
        """Attach arenas, give both sides one state, make first calls, time the reference solo."""
        total = self.plan.sets + self.plan.warm
        for side in (self.reference, self.candidate):
            side.attach_all(self.signature, total, self.plan.sets)
        self.share_state()
        self.fill(range(total))
        self.share_inputs(0, total)
        for side in (self.reference, self.candidate):
            side.worker.send("warm", stage=side.stage, sets=self.plan.warm_sets)
        for side in (self.reference, self.candidate):
            start = time.perf_counter()
            side.worker.reply(stage=side.stage, timeout_s=first_call_timeout_s)
            seconds = time.perf_counter() - start
            logger.debug("first call of %d: %.0f ms", side.worker.pid, seconds * 1e3)
        for side in (self.reference, self.candidate):
            for _ in range(WHOLE_BATCHES):
                side.warm(self.plan.warm_sets)
                side.go(self.plan.timed)
            if side.task.device == "cpu":
                side.worker.spread()
        self.candidate.worker.freeze()
        try:
            self.overhead_s = statistics.median(self.reference.go([]) for _ in range(OVERHEAD_GOS))
            for _ in range(SOLO_ROUNDS):
                self.reference.warm(self.plan.warm_sets)
                self.solo.append(self.net(self.reference.go(self.plan.timed)) / self.plan.sets)
        finally:
            self.candidate.worker.thaw()

    def rounds(
        self, bounds: Sequence[Errors]
    ) -> Iterable[tuple[RoundObservation, CaseObservation]]:
        """Timed rounds with the comparison of every output; which ones are single-set is secret."""
        for single in self.schedule():
            if self.new_weights and self.secret.random() < 2 / self.config.rounds:
                self.reference.request(
                    "restyle", self.config.run_timeout_s, state_seed=secrets.randbits(31)
                )
                self.share_state()
            yield self.round(single, bounds)

    def schedule(self) -> list[bool]:
        """True for single-set rounds: at least one, at a secret place."""
        count = max(1, round(self.config.rounds * self.config.single_share))
        kinds = [True] * count + [False] * (self.config.rounds - count)
        self.secret.shuffle(kinds)
        return kinds

    def round(
        self, single: bool, bounds: Sequence[Errors]
    ) -> tuple[RoundObservation, CaseObservation]:
        sets = list(range(self.plan.single)) if single else self.plan.timed
        self.secret.shuffle(sets)
        self.fill(sets)
        for side in (self.reference, self.candidate):
            side.poison("slots", 0, self.plan.sets)
        if single:
            self.candidate.poison("inputs", 0, self.plan.sets)
        else:
            self.share_inputs(0, self.plan.sets)
        times: dict[Subject, tuple[float, float]] = {}
        case = CaseObservation("timed rounds")
        order = [self.reference, self.candidate]
        self.secret.shuffle(order)
        if (
            self.signature.mutates
        ):  # the candidate's inputs are copied from the reference's unused ones
            order = [self.candidate, self.reference]
        for side in order:
            if side is self.candidate:
                seconds, collect, case = self.run_candidate(sets, single, case)
            else:
                seconds, collect = self.run_reference(sets, single)
            times[side] = (seconds, collect)
        case = replace(case, **self.differences(sets), bounds=tuple(bounds))
        (reference_s, reference_collect), (candidate_s, candidate_collect) = (
            times[self.reference],
            times[self.candidate],
        )
        return (
            RoundObservation(
                pair=self.number,
                single=single,
                calls=len(sets),
                reference_s=reference_s,
                candidate_s=candidate_s,
                reference_collect_s=reference_collect,
                candidate_collect_s=candidate_collect,
                void="" if single else self.drift(reference_s / len(sets)),
            ),
            case,
        )

    def run_reference(self, sets: list[int], single: bool) -> tuple[float, float]:
        """The reference's turn, with the candidate's whole process tree stopped."""
        self.candidate.worker.freeze()
        try:
            self.ready(self.reference)
            if single:
                seconds = 0.0
                for index in sets:
                    self.rouse(self.reference)
                    seconds += self.reference.go([index])
            else:
                seconds = self.net(self.reference.go(sets))
            # What the candidate's outputs wait for, the reference's wait for too: a pause between
            # "done" and collect makes collect slower.
            self.reference.worker.freeze()
            self.unchanged(sets)
            self.reference.poison("slots", 0, self.plan.sets)
            self.synchronize()
            self.reference.worker.thaw()
            collect, _ = self.reference.collect(sets)
        finally:
            self.candidate.worker.thaw()
        return seconds, collect

    def run_candidate(
        self, sets: list[int], single: bool, case: CaseObservation
    ) -> tuple[float, float, CaseObservation]:
        """The candidate's turn: its inputs are checked and poisoned before it hands outputs
        over.
        """
        self.ready(self.candidate)
        if single:
            seconds = 0.0
            for index in sets:
                self.share_inputs(index, 1)
                self.rouse(self.candidate)
                seconds += self.candidate.go([index])
        else:
            seconds = self.net(self.candidate.go(sets))
        mutated = False
        self.candidate.worker.freeze()  # so that nothing goes on unpaid while inputs are compared
        try:
            if not self.signature.mutates:
                mutated = not self.unchanged(sets)
                if not self.signature.aliases:
                    self.candidate.poison("inputs", 0, self.plan.sets)
                    self.synchronize()
        finally:
            self.candidate.worker.thaw()
        collect, claim = self.candidate.collect(sets)
        return (
            seconds,
            collect,
            replace(case, inputs_mutated=mutated, **structure(claim, self.signature, len(sets))),
        )

    def unchanged(self, sets: list[int]) -> bool:
        """The candidate's inputs are, byte for byte, the reference's."""
        count = len(sets)  # sets are 0..n-1 in some order
        return compare.identical(
            self.reference.set_bytes("inputs", 0, count),
            self.candidate.set_bytes("inputs", 0, count),
        )

    def ready(self, side: Subject) -> None:
        """Warm up on other sets; restore the state that calls would move."""
        side.warm(self.plan.warm_sets)
        if self.signature.moves_state:
            side.request("restate", self.config.run_timeout_s)
        self.synchronize()

    def net(self, seconds: float) -> float:
        """Seconds without the harness's own round trip."""
        return max(seconds - self.overhead_s, 1e-9)

    def rouse(self, side: Subject) -> None:
        """One call on a warm-up set, results kept, so that a single call does not pay for cold
        code.
        """
        side.request("rouse", self.config.run_timeout_s, set=self.plan.warm_sets[0])

    def differences(self, sets: list[int]) -> dict[str, Any]:
        """Worst errors over all sets of the round, against the reference worker's outputs."""
        worst = [Errors() for _ in self.signature.outputs]
        for leaf, spec in enumerate(self.signature.outputs):
            # Sets are 0..n-1 in some order; a scalar's scale is then that of the whole batch.
            outs = self.candidate.stack("slots", leaf)[: len(sets)]
            truths = self.reference.stack("slots", leaf)[: len(sets)]
            worst[leaf] = compare.errors(outs, truths)
            if worst[leaf].misplaced and not spec.floating:
                worst[leaf] = self.forgive_ties(leaf, sets, worst[leaf])
        found: dict[str, Any] = {"errors": tuple(worst)}
        if self.signature.mutates:
            found["inputs_mutated"] = not all(map(self.same_inputs, sets))
        return found

    def forgive_ties(self, leaf: int, sets: list[int], found: Errors) -> Errors:
        """Index outputs that break ties otherwise are right."""
        for index in sets:
            ours, theirs = (
                self.reference.leaf("slots", index, leaf),
                self.candidate.leaf("slots", index, leaf),
            )
            values = [
                self.reference.leaf("inputs", index, i)
                for i, spec in enumerate(self.signature.inputs)
                if spec.floating
            ]
            if not torch.equal(ours, theirs) and not compare.ties_explain(theirs, ours, values):
                return found
        return replace(found, misplaced=0)

    def same_inputs(self, index: int) -> bool:
        """For references that write their inputs: both sides left the same values there."""
        return all(
            compare.errors(
                self.candidate.leaf("inputs", index, leaf),
                self.reference.leaf("inputs", index, leaf),
            ).within(Errors(1e-4, 1e-3, 1e-2))
            for leaf in range(len(self.signature.inputs))
        )

    def fill(self, sets: Iterable[int], scale: float = 1.0) -> None:
        """Fresh values in the reference's input sets, under a seed nobody else knows."""
        self.reference.request(
            "fill",
            self.config.run_timeout_s,
            sets=list(sets),
            seed=secrets.randbits(60),
            scale=scale,
        )

    def share_inputs(self, first: int, count: int) -> None:
        source = self.reference.set_bytes("inputs", first, count)
        self.candidate.set_bytes("inputs", first, count).copy_(source)
        self.synchronize()

    def share_state(self) -> None:
        """The candidate's parameters and buffers become the reference's."""
        if not self.signature.state or not self.new_weights:
            return
        self.reference.request("publish", self.config.run_timeout_s)
        self.candidate.arenas["state"].bytes.copy_(self.reference.arenas["state"].bytes)
        self.synchronize()
        self.candidate.request("restate", self.config.run_timeout_s)

    def drift(self, seconds: float) -> str:
        """Why a round is void: the reference ran slower beside the candidate than alone."""
        middle = statistics.median(self.solo)
        spread = statistics.median(abs(x - middle) for x in self.solo)
        limit = middle * (1 + DRIFT[self.reference.task.device]) + 5 * spread
        if seconds <= limit:
            return ""
        return f"reference took {seconds * 1e6:.1f} us a call, {middle * 1e6:.1f} us alone"


def structure(claim: dict[str, Any], signature: Signature, sets: int) -> dict[str, Any]:
    """How the outputs the candidate describes differ from the reference's; claims, so only
    harmful ones.
    """
    try:
        return _structure(claim, signature, sets)
    except trees.CLAIM_ERRORS:
        return {"structure_differs": "outputs that were described in no known form"}


def _structure(claim: dict[str, Any], signature: Signature, sets: int) -> dict[str, Any]:
    kinds = [parse_kind(kind) for kind in claim["kinds"]]
    complete = len(claim["sets"]) == sets
    found = {"structure_differs": "", "shape_differs": "", "dtype_differs": "", "foreign_type": ""}
    if not kinds or not complete:
        found["structure_differs"] = "outputs of several calls differ in structure"
    for tree, leaves in kinds:
        if len(leaves) != len(signature.outputs) or not trees.same_structure(
            signature.output_tree, tree
        ):
            found["structure_differs"] = (
                f"{len(leaves)} tensors in another structure than the reference's "
                f"{len(signature.outputs)}"
            )
            continue
        for spec, stride, leaf in zip(signature.outputs, signature.classes, leaves, strict=True):
            shape, dtype, stride_class, type_name = leaf
            if tuple(shape) != spec.shape:
                found["shape_differs"] = f"{tuple(shape)}, expected {spec.shape}"
            elif dtype != spec.dtype:
                found["dtype_differs"] = f"{dtype}, expected {spec.dtype}"
            elif stride_class not in ("contiguous", stride):
                found["shape_differs"] = f"a {stride_class} layout, expected {stride}"
            if type_name not in ("Tensor", "Parameter"):
                found["foreign_type"] = type_name
    return found


def parse_kind(kind: Any) -> tuple[Any, list[list[Any]]]:
    tree, leaves = kind
    return tree, [[list(map(int, leaf[0]))[:64], *map(_word, leaf[1:4])] for leaf in leaves]


def _word(claimed: object) -> str:
    """Short and printable: it ends up in the verdict's one line."""
    return ascii(str(claimed))[1:-1][:100]
