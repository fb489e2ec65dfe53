"""A task's secret cases with their float64 truth and the error each may have; computed once per
task.

Truth is the reference in float64 (docs/measuring.md); how far from it a candidate may be is
sandbox/checking/bounds.py's to say.
"""

from __future__ import annotations

import itertools
import math
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from sandbox.checking import compare, hidden, nulls, unbounded
from sandbox.checking.bounds import JITTER, NONE, bound, explained
from sandbox.checking.nulls import NullCandidate
from sandbox.checking.refusals import refuse_degenerate, refuse_unscorable
from sandbox.checking.structure import structure
from sandbox.errors import InvalidReference
from sandbox.machine import memory
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.trees import Layout, Leaf
from sandbox.observation import Errors, FailureKind
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig

LARGE_BYTES = 4 << 30
"""Of one input set and its outputs: beyond it float64 copies do not fit beside both sides, so truth
is the reference's own float32 output, and two cases are kept."""
CHANGED_BYTES = 64 << 20
"""Of one input set, above which one hidden change is enough: each costs a comparison."""
LARGE_SCALE = -3.0
"""Of the second: another sign and size, so that U[0,1) inputs do not make a ReLU the identity."""
CHANGES_TRIED = 4
"""How often a change is made anew where the outputs stay what they were: one element of a ReLU's
input often moves from one negative value to another."""
POOL_SHARE = 0.15
"""Of free memory that stored cases may take."""


@dataclass(frozen=True)
class Case:
    """One set of inputs with what must come out."""

    name: str
    inputs: torch.Tensor
    """(bytes,) uint8, private copy of one input set."""
    truth: tuple[torch.Tensor, ...]
    """Per output leaf: float64 for floating ones."""
    bounds: tuple[Errors, ...]
    own: tuple[Errors, ...]
    """The reference's own errors."""
    state_after: torch.Tensor | None
    """(bytes,) uint8: parameters and buffers after the call, where calls move them."""
    scale: float = 1.0
    """Of the float inputs, against those that get_inputs() makes."""
    made_from: str | None = None
    """The name of the case whose inputs it changes,"""
    change: str | None = None
    """and in which way (sandbox/checking/hidden.py)."""
    alike: bool = False
    """Whether only who looks at all of its inputs can tell it from that case."""
    inputs_after: torch.Tensor | None = None
    """(bytes,) uint8: the inputs after the call, where calls write to them."""
    finite: bool = True
    """Whether all that must come out is."""


@dataclass(frozen=True)
class Pool:
    """The cases of one shape."""

    signature: Signature
    state: torch.Tensor
    """(bytes,) uint8: the parameters and buffers all cases share."""
    cases: tuple[Case, ...]
    oracle: str
    """`float64`, or `float32` where the reference does not run in float64."""

    @property
    def bytes(self) -> int:
        held: int = self.state.numel()
        return held + sum(_bytes(case) for case in self.cases)


def _bytes(case: Case) -> int:
    after = [t for t in (case.state_after, case.inputs_after) if t is not None]
    return sum(t.numel() * t.element_size() for t in (case.inputs, *case.truth, *after))


def build_pool(
    subject: Subject,
    signature: Signature,
    config: EvalConfig,
    free_bytes: int,
    admit: Callable[[Sequence[Case], Signature], None] | None = None,
) -> Pool:
    """Make the cases with the reference's worker, open at this shape.

    Raises InvalidReference for a stochastic or data-dependent reference, and what `admit` raises
    (by default `refuse_degenerate`) of the cases, before any is left out to save memory.
    """
    refuse_unscorable(signature)
    subject.attach_all(signature, 1, 1)
    subject.request("publish", config.run_timeout_s)
    state = subject.arenas["state"].bytes.clone()
    large = signature.input_bytes + signature.output_bytes > LARGE_BYTES
    maker = _CaseMaker(subject, signature, config, "float32" if large else "float64")
    truth = Layout(tuple(map(truth_leaf, signature.outputs)), 1)
    if not large:
        subject.attach("oracle", truth)
    per_case = signature.input_bytes + 2 * truth.stride
    per_case += signature.state_bytes if signature.moves_state else 0
    per_case += signature.input_bytes if signature.mutates else 0
    room = max(2, int(POOL_SHARE * free_bytes) // max(per_case, 1))
    cases = [maker.make("given", 1.0)]
    if large:
        scales = (LARGE_SCALE, 1.0) if config.scales and signature.inputs else (1.0,)
        # The first that stays finite: each case of these is gigabytes.
        moves = (True, False) if hidden.MASKS_MOVED in config.changes else (False,)
        found = (
            maker.make(f"inputs x {scale:g}", scale, moves=moved)
            for moved, scale in itertools.product(moves, scales)
        )
        cases.append(next((case for case in found if case is not None), None))
    else:
        cases.append(maker.make("given, fresh values", 1.0))
        for scale in config.scales if signature.inputs else ():
            if len(cases) < room:
                cases.append(maker.make(f"inputs x {scale:g}", scale))
    kept = tuple(case for case in cases if case is not None)
    if not kept or cases[0] is None:
        raise InvalidReference(
            "the output on the inputs as given is not finite, or zero where float64 is not"
        )
    if not large and not signature.aliases and nulls.passes(NullCandidate.ECHO, kept, signature):
        # A ReLU of values in [0, 1) is the identity; an honest copy passes this case as well.
        mirrored = maker.make("inputs x -1, not to be copied", -1.0)
        kept += () if mirrored is None else (mirrored,)
    (admit or refuse_degenerate)(kept, signature)
    if not large and len(kept) < room:
        kept += maker.changed(cases[0], config.changes)
    for name in ("inputs", "slots", "oracle"):
        subject.detach(name)
    return Pool(signature, state, kept, maker.oracle)


def tells(case: Case, other: Case) -> bool:
    """Whether the other's outputs would be refused for this one."""
    return not all(
        compare.errors(stale, truth).within(limit)
        for stale, truth, limit in zip(other.truth, case.truth, case.bounds, strict=True)
    )


def leaves_of(inputs: torch.Tensor, signature: Signature) -> list[torch.Tensor]:
    """Those of a set's (bytes,), which index outputs may refer to."""
    layout = Layout(signature.inputs, 1)
    return [memory.leaf_view(inputs, layout, 0, i) for i in range(len(layout.leaves))]


class _CaseMaker:
    def __init__(
        self, subject: Subject, signature: Signature, config: EvalConfig, oracle: str
    ) -> None:
        self.subject = subject
        self.signature = signature
        self.config = config
        self.oracle = oracle
        self.coarse = subject.task.device == "cuda" and subject.task.dtype == "float32"
        """TF32 may be used, as far as is known."""
        self.meant: Sequence[unbounded.Kinds] | None = None
        """What outputs hold beside finite numbers on inputs as given, once that is known."""

    def make(self, name: str, scale: float, *, moves: bool = False) -> Case | None:
        """The case, or None where truth or reference leaves the range of the outputs as given, or
        where the reference raises on inputs that get_inputs() does not make. `moves`: with masks
        elsewhere.
        """
        subject, limit = self.subject, self.config.run_timeout_s
        subject.restate()
        subject.request(
            "fill",
            limit,
            sets=[0],
            seed=secrets.randbits(60),
            scale=scale,
            domains=self.signature.domains,
        )
        moved = moves and self.change(hidden.MASKS_MOVED, random.Random(secrets.randbits(64)))
        return self.judged(name, scale, given=scale == 1.0 and not moved)

    def change(self, name: str, secret: random.Random) -> bool:
        """Whether that was done to the inputs in set 0."""
        domains = self.signature.domains
        numbers = hidden.concerned(name, self.signature.inputs, domains)
        views = [self.subject.leaf("inputs", 0, i) for i in numbers]
        done = hidden.CHANGES[name](views, [domains[i] for i in numbers], secret)
        if done and self.subject.task.device == "cuda":
            torch.cuda.synchronize()
        return done

    def changed(self, given: Case, names: Sequence[str]) -> tuple[Case, ...]:
        """Cases made from another's inputs; of large inputs one alone, which one is secret, beside
        the one for masks, which no scaled case changes.
        """
        secret = random.Random(secrets.randbits(64))
        masks = any(domain.apart for domain in self.signature.domains)
        able = [name for name in names if name in hidden.CHANGES]
        able = [name for name in able if masks or name != hidden.MASKS_MOVED]
        if given.inputs.numel() > CHANGED_BYTES:
            others = [name for name in able if name != hidden.MASKS_MOVED]
            kept = secret.sample(others, min(len(others), 1))
            able = [name for name in able if name in kept or name not in others]
        found = []
        for name in able:
            case = None
            for _ in range(CHANGES_TRIED):
                self.subject.restate()
                self.subject.set_bytes("inputs", 0).copy_(given.inputs)
                made = None
                if self.change(name, secret):
                    made = self.judged(f"{given.name}, {name}", given.scale, given=False)
                case = made or case
                # A mask may leave nothing of a row in one place, and not in another.
                done = name != hidden.MASKS_MOVED if made is None else tells(made, given)
                if done:
                    break
            if case is not None:
                alike = name in hidden.ALIKE
                found.append(replace(case, made_from=given.name, change=name, alike=alike))
        return tuple(found)

    def judged(self, name: str, scale: float, *, given: bool) -> Case | None:
        """The case of the inputs that are in set 0 now; `given`: as get_inputs() makes them."""
        subject = self.subject
        inputs = subject.set_bytes("inputs", 0).clone()
        if not given and not self.accepted(inputs):
            return None
        truth = self.truth(0.0)
        shaken = self.off(truth, JITTER)
        rough = self.off(truth, 0.0, tf32=True) if self.coarse else None
        subject.poison("slots", 0, 1)
        subject.set_bytes("inputs", 0).copy_(inputs)
        subject.warm([])
        subject.go([0])
        after = subject.set_bytes("inputs", 0).clone() if self.signature.mutates else None
        _, claim = subject.collect([0])
        self.check_structure(claim)
        outputs = [subject.leaf("slots", 0, i).clone() for i in range(len(self.signature.outputs))]
        beside = unbounded.kinds(outputs if truth is None else truth, outputs)
        # Without a truth what overflows is not told from what is meant.
        if beside is None or not self.means(beside) or (truth is None and any(beside)):
            return None
        truth = outputs if truth is None else truth
        own = tuple(compare.errors(out, t) for out, t in zip(outputs, truth, strict=True))
        if any(math.isinf(e.norm) for e in own):
            return None  # truth is all zeros and the reference is not: no error can be told
        values = leaves_of(inputs, self.signature)
        for leaf, out in enumerate(outputs):
            if own[leaf].misplaced and not compare.ties_explain(out, truth[leaf], values):
                # Rounding decides there, as among probabilities that float32 makes zeros.
                if not given:
                    return None
                truth[leaf] = out
        nothing = [NONE] * len(own)
        limits = tuple(
            bound(leaf, mine, shake, self.config, tf32)
            for leaf, mine, shake, tf32 in zip(
                self.signature.outputs,
                own,
                shaken or nothing,
                explained(rough or nothing, shaken or nothing),
                strict=True,
            )
        )
        state_after = self.state_after()
        return Case(
            name,
            inputs,
            tuple(truth),
            limits,
            own,
            state_after,
            scale,
            inputs_after=after,
            finite=not any(beside),
        )

    def means(self, beside: Sequence[unbounded.Kinds]) -> bool:
        """Whether outputs as given, the first that are seen, hold such numbers too."""
        if self.meant is None:
            self.meant = beside
        return all(some <= known for some, known in zip(beside, self.meant, strict=True))

    def accepted(self, inputs: torch.Tensor) -> bool:
        """Whether the reference takes what is in set 0; all is then as before the call."""
        subject = self.subject
        subject.warm([])
        try:
            subject.go([0])
        except WorkerFailed as failed:
            if failed.failure.kind is not FailureKind.CLAIMED:
                raise
            return False
        subject.set_bytes("inputs", 0).copy_(inputs)
        subject.restate()
        return True

    def off(
        self, truth: list[torch.Tensor] | None, jitter: float, *, tf32: bool = False
    ) -> list[Errors] | None:
        """By how much those other float64 outputs differ from the truth."""
        other = self.truth(jitter, tf32=tf32)
        if truth is None or other is None:
            return None
        return [compare.errors(o, t) for o, t in zip(other, truth, strict=True)]

    def truth(self, jitter: float, *, tf32: bool = False) -> list[torch.Tensor] | None:
        """The float64 outputs for input set 0; None where the reference refuses float64. `tf32`: as
        that would have them; None where the reference may not use it.
        """
        if self.oracle != "float64":
            return None
        try:
            reply = self.subject.request(
                "oracle",
                self.config.run_timeout_s,
                set=0,
                jitter=jitter,
                seed=secrets.randbits(31),
                tf32=tf32,
                domains=self.signature.domains,
            )
        except WorkerFailed as failed:
            if failed.failure.kind is not FailureKind.CLAIMED:
                raise
            if tf32:  # no room for another copy, say: the truth stands
                self.coarse = False
            else:
                self.oracle = "float32"
            return None
        if tf32 and not reply["rounded"]:
            self.coarse = False
            return None
        return [
            self.subject.leaf("oracle", 0, i).clone() for i in range(len(self.signature.outputs))
        ]

    def check_structure(self, claim: dict[str, object]) -> None:
        differs = {k: v for k, v in structure(claim, self.signature, 1).items() if v}
        differs.pop("foreign_type", None)
        if differs:
            words = "; ".join(differs.values())
            raise InvalidReference(
                f"data-dependent outputs: on other values forward() gives {words}"
            )

    def state_after(self) -> torch.Tensor | None:
        """(bytes,) uint8: what the last call left in the model's parameters and buffers; None where
        calls move none of them.
        """
        if not self.signature.moves_state:
            return None
        arena = self.subject.arenas["state"].bytes
        before = arena.clone()
        self.subject.request("publish", self.config.run_timeout_s)
        after = arena.clone()
        arena.copy_(before)  # the next case begins there too
        return after


def truth_leaf(leaf: Leaf) -> Leaf:
    """The slot of an output leaf's truth."""
    dense = leaf.dense()
    return Leaf(dense.shape, "float64", dense.stride, 8) if leaf.floating else dense
