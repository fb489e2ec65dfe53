"""What the reference's output depends on: one input or parameter is changed, all others are held.

An output that does not answer within its bound cannot tell a candidate that ignores the leaf from
an honest one. One draw of other values is tried, and a second, on other inputs too, before a leaf
is called ignored; a dependence that none shows is missed.
"""

from __future__ import annotations

import itertools
import secrets

import torch

from sandbox.checking import compare
from sandbox.checking.pool import Case, Pool
from sandbox.errors import InvalidReference
from sandbox.observation import Errors
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig

DRAWS, CASES = 2, 5
Leaf = tuple[str, int]
"""("input", i) or ("parameter", i), numbered as the reference's worker does."""


class Variation:
    """Repeated calls of an open reference on its first case; attaches arenas of one set."""

    def __init__(self, subject: Subject, pool: Pool, config: EvalConfig) -> None:
        self.subject = subject
        self.pool = pool
        self.config = config
        subject.attach_all(pool.signature, 1, 1)
        self.turn_to(pool.cases[0])
        subject.arenas["state"].bytes.copy_(pool.state)
        subject.restate()

    def turn_to(self, case: Case) -> None:
        """Hold the inputs of another case."""
        self.case = case
        self.subject.set_bytes("inputs", 0).copy_(case.inputs)

    def outputs(self, leaf: Leaf | None) -> list[torch.Tensor] | None:
        """Copies of the outputs with this leaf changed (None: nothing, under another RNG state);
        None where the leaf has no other values.
        """
        self.subject.poison("slots", 0, 1)
        reply = self.subject.request(
            "vary",
            self.config.run_timeout_s,
            leaf=leaf,
            seed=secrets.randbits(31),
            domains=self.pool.signature.domains,
        )
        if not reply["changed"]:
            return None
        count = len(self.pool.signature.outputs)
        return [self.subject.leaf("slots", 0, i).clone() for i in range(count)]

    def ignores(self, leaf: Leaf) -> bool | None:
        """Whether the output stays within its bound, on inputs of several draws: a flag among them
        may leave a leaf aside; None where that cannot be asked.
        """
        first = self.case
        drawn = (case for case in self.pool.cases if case.change is None)
        try:
            for case in itertools.islice(drawn, CASES):
                self.turn_to(case)
                found = self._ignores(leaf)
                if not found:
                    return found
            return True
        finally:
            self.turn_to(first)

    def _ignores(self, leaf: Leaf) -> bool | None:
        """The same, on these inputs."""
        for _ in range(DRAWS):
            found = self.outputs(leaf)
            if found is None:
                return None
            if not all(
                compare.errors(out, truth).within(bound)
                for out, truth, bound in zip(found, self.case.truth, self.case.bounds, strict=True)
            ):
                return False
        return True

    def repeat(self) -> tuple[Errors, ...]:
        """By leaf, how far two calls on the same inputs are apart under different RNG states."""
        first, second = self.outputs(None), self.outputs(None)
        assert first is not None
        assert second is not None
        return tuple(compare.errors(b, a) for a, b in zip(first, second, strict=True))

    def close(self) -> None:
        for name in ("inputs", "slots"):
            self.subject.detach(name)


def refuse_ignored_inputs(subject: Subject, pool: Pool, config: EvalConfig) -> None:
    """Raise InvalidReference where one of several inputs makes no difference.

    Of a single one the cases themselves tell.
    """
    count = len(pool.signature.inputs)
    if count < 2:
        return
    variation = Variation(subject, pool, config)
    for index in range(count):
        if variation.ignores(("input", index)):
            raise InvalidReference(f"degenerate: {ignored_input(index)}")
    variation.close()


def ignored_input(index: int) -> str:
    """The reason, in words."""
    return f"the output does not depend on input {index}"
