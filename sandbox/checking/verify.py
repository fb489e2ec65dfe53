"""A candidate against a pool: one batch of all cases, judged by the oracle."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sandbox.checking import compare
from sandbox.checking.mismatch import mismatch
from sandbox.checking.pool import Case, Pool, leaves_of
from sandbox.checking.structure import structure
from sandbox.checking.updates import input_share, same_buffer, same_update
from sandbox.machine import hardware_counters, memory
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.trees import Layout
from sandbox.observation import CaseObservation
from sandbox.subjects.claims import words
from sandbox.subjects.subject import Subject

HASTY_BYTES = 64 << 20
"""Of a set's inputs, and of its outputs, up to which one call is made in haste: inputs are needed
twice there, and calls on more fill a device, so that none gains by running beside another."""


def verify(
    subject: Subject, pool: Pool, matched: str, synchronize: Any
) -> tuple[CaseObservation, ...]:
    """What the candidate's outputs look like on every case of one shape; raises WorkerFailed."""
    signature, count = pool.signature, len(pool.cases)
    subject.attach_all(signature, count, count)
    for index, case in enumerate(pool.cases):
        subject.set_bytes("inputs", index).copy_(case.inputs)
    subject.poison("slots", 0, count)
    subject.arenas["state"].bytes.copy_(pool.state)
    synchronize()
    checker = _Checker(subject, pool, matched, synchronize)
    # Calls that move buffers are made one by one, each from the pool's state.
    batches = [[i] for i in range(count)] if signature.moves_state else [order(pool.cases)]
    repeats = () if signature.mutates or signature.moves_state else (secrets.randbelow(count),)
    found = {i: case for batch in batches for i, case in checker.run(batch, repeats)}
    return tuple(found[i] for i in range(count))


def profiled(subject: Subject, pool: Pool, synchronize: Any) -> dict[str, Any]:
    """What the worker's profiler says of calls on the first case; raises WorkerFailed."""
    subject.attach_all(pool.signature, 1, 1)
    subject.set_bytes("inputs", 0).copy_(pool.cases[0].inputs)
    subject.arenas["state"].bytes.copy_(pool.state)
    synchronize()
    subject.restate()
    return subject.request("profile", subject.config.run_timeout_s, set=0)


def counted(subject: Subject) -> tuple[dict[str, float], str]:
    """Hardware counters of calls on the inputs that were profiled, or why there are none; a worker
    that fails meanwhile is no candidate's fault.
    """
    try:
        claim = subject.request("count", subject.config.run_timeout_s, set=0)
    except WorkerFailed as failed:
        return {}, str(failed)[:200]
    return hardware_counters.values(claim), ascii(str(claim.get("problem", "")))[1:-1][:200]


def order(cases: Sequence[Case]) -> list[int]:
    """A secret order of calls; of two cases that are alike but to who looks at all of them, one
    comes right before and one right after the case that they are made from.
    """
    secret = random.Random(secrets.randbits(64))
    alike = [i for i, case in enumerate(cases) if case.alike]
    calls = [i for i in range(len(cases)) if i not in alike]
    secret.shuffle(calls)
    secret.shuffle(alike)
    side = secret.randrange(2)
    for index in alike:
        base = next(i for i, case in enumerate(cases) if case.name == cases[index].made_from)
        calls.insert(calls.index(base) + side, index)
        side = 1 - side
    return calls


class _Checker:
    def __init__(self, subject: Subject, pool: Pool, matched: str, synchronize: Any) -> None:
        self.subject = subject
        self.pool = pool
        self.matched = matched
        self.synchronize = synchronize

    def run(
        self, batch: list[int], repeats: Sequence[int] = ()
    ) -> list[tuple[int, CaseObservation]]:
        """Calls the batch, then `repeats` of it again, the last one in haste (`Session.hurry`): the
        last result of a case is compared.
        """
        subject, signature = self.subject, self.pool.signature
        subject.restate()
        subject.warm([])
        calls = [*batch, *repeats]
        elsewhere = self.elsewhere(batch, repeats)
        subject.go(calls, hasty=elsewhere)
        hasty = None if elsewhere is None else calls[-1]
        mutated = {
            i: not signature.mutates
            and not compare.identical(subject.set_bytes("inputs", i), self.pool.cases[i].inputs)
            for i in batch
        }
        updated = {i: not self.same_inputs(i) for i in batch}
        if not signature.mutates and not signature.aliases:
            for i in batch:
                subject.poison("inputs", i, 1)
            self.synchronize()
        _, claim = subject.collect(calls, look=True, spoil=signature.owns)
        dense = subject.config.dense_layouts
        differs = structure(claim, signature, len(calls), dense=dense)
        state_differs = self.state_differs(batch[-1])
        found = [
            (
                i,
                replace(
                    self.compare(i, ", in haste" if i == hasty else ""),
                    inputs_mutated=mutated[i],
                    update_differs=updated[i],
                    state_differs=state_differs,
                    sharing=words(claim.get("sharing")),
                    **differs,
                ),
            )
            for i in batch
        ]
        refused = any(found for what, found in differs.items() if what != "layout_differs")
        if signature.owns and not refused:
            subject.spoil()  # last: until then its code could still write what is compared
        return found

    def elsewhere(self, batch: list[int], repeats: Sequence[int]) -> int | None:
        """The set in whose place the last call is made, in haste; None where it is not."""
        signature = self.pool.signature
        large = max(signature.input_bytes, signature.output_bytes) > HASTY_BYTES
        others = [index for index in batch if index not in repeats]
        return None if large or not repeats or not others else secrets.choice(others)

    def compare(self, index: int, manner: str) -> CaseObservation:
        case, signature = self.pool.cases[index], self.pool.signature
        found, wrong = [], []
        for leaf, truth in enumerate(case.truth):
            out = self.subject.leaf("slots", index, leaf)
            bound = case.bounds[leaf]
            errors = compare.errors(out, truth, bound)
            if errors.misplaced and not signature.outputs[leaf].floating:
                values = leaves_of(case.inputs, signature)
                if compare.ties_explain(out, truth, values):
                    errors = replace(errors, misplaced=0)
            found.append(errors)
            wrong.append(None if errors.within(bound) else mismatch(out, truth, bound))
        shape = self.subject.task.shapes[signature.shape].name
        return CaseObservation(
            f"{shape}, {case.name}{manner}", tuple(found), case.bounds, tuple(wrong)
        )

    def state_differs(self, index: int) -> bool:
        """Buffers after the call against the reference's, where calls move them and names match; of
        one that it does not have the arena holds what it was before.
        """
        expected = self.pool.cases[index].state_after
        if expected is None or not self.subject.config.check_state:
            return False
        if self.matched not in ("name", "order", "subset"):
            return False
        self.subject.request("publish", self.subject.config.run_timeout_s)
        layout, arena = self.subject.layouts["state"], self.subject.arenas["state"].bytes
        three = (arena, expected, self.pool.state)
        same = all(
            same_buffer(*(memory.leaf_view(each, layout, 0, leaf) for each in three))
            for leaf in range(len(layout.leaves))
        )
        arena.copy_(self.pool.state)  # the next case begins there too
        return not same

    def same_inputs(self, index: int) -> bool:
        """Inputs after the call are the reference's, where calls write to them."""
        case, layout = self.pool.cases[index], Layout(self.pool.signature.inputs, 1)
        if case.inputs_after is None:
            return True
        return all(
            same_update(
                self.subject.leaf("inputs", index, leaf),
                expected := memory.leaf_view(case.inputs_after, layout, 0, leaf),
                memory.leaf_view(case.inputs, layout, 0, leaf),
                input_share(expected.dtype),
            )
            for leaf in range(len(layout.leaves))
        )
