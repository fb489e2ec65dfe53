"""A candidate against a pool: one batch of all cases, judged by the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from sandbox import compare, memory
from sandbox.observation import CaseObservation, Errors
from sandbox.pair import structure
from sandbox.pool import Case, Pool
from sandbox.subject import Subject
from sandbox.trees import Layout

STATE_BOUND = Errors(1e-3, 1e-2, 1e-1)
"""Buffers such as running statistics, which a mistaken or missing update misses by far."""


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
    batches = [[i] for i in range(count)] if signature.moves_state else [list(range(count))]
    return tuple(found for batch in batches for found in checker.run(batch))


class _Checker:
    def __init__(self, subject: Subject, pool: Pool, matched: str, synchronize: Any) -> None:
        self.subject = subject
        self.pool = pool
        self.matched = matched
        self.synchronize = synchronize

    def run(self, batch: list[int]) -> list[CaseObservation]:
        subject, signature = self.subject, self.pool.signature
        subject.request("restate", subject.config.run_timeout_s)
        subject.warm([])
        subject.go(batch)
        mutated = {
            i: not signature.mutates
            and not compare.identical(subject.set_bytes("inputs", i), self.pool.cases[i].inputs)
            for i in batch
        }
        if not signature.mutates and not signature.aliases:
            for i in batch:
                subject.poison("inputs", i, 1)
            self.synchronize()
        _, claim = subject.collect(batch)
        differs = structure(claim, signature, len(batch))
        state_differs = self.state_differs(batch[-1])
        return [
            replace(
                self.compare(i), inputs_mutated=mutated[i], state_differs=state_differs, **differs
            )
            for i in batch
        ]

    def compare(self, index: int) -> CaseObservation:
        case, signature = self.pool.cases[index], self.pool.signature
        found = []
        for leaf, truth in enumerate(case.truth):
            out = self.subject.leaf("slots", index, leaf)
            errors = compare.errors(out, truth)
            if errors.misplaced and not signature.outputs[leaf].floating:
                values = float_inputs(case, self.pool)
                if compare.ties_explain(out, truth, values):
                    errors = replace(errors, misplaced=0)
            found.append(errors)
        shape = self.subject.task.shapes[signature.shape].name
        return CaseObservation(f"{shape}, {case.name}", tuple(found), case.bounds)

    def state_differs(self, index: int) -> bool:
        """Buffers after the call against the reference's, where calls move them and names match."""
        expected = self.pool.cases[index].state_after
        if expected is None or not self.subject.config.check_state:
            return False
        if self.matched not in ("name", "order"):
            return False
        self.subject.request("publish", self.subject.config.run_timeout_s)
        layout = self.subject.layouts["state"]
        return not all(
            compare.errors(
                self.subject.leaf("state", 0, leaf), memory.leaf_view(expected, layout, 0, leaf)
            ).within(STATE_BOUND)
            for leaf in range(len(layout.leaves))
        )


def float_inputs(case: Case, pool: Pool) -> list[torch.Tensor]:
    """The case's floating inputs, which index outputs may refer to."""
    layout = Layout(pool.signature.inputs, 1)
    return [
        memory.leaf_view(case.inputs, layout, 0, i)
        for i, leaf in enumerate(layout.leaves)
        if leaf.floating
    ]
