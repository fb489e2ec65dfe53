"""What both sides of a process pair are given: equal inputs, fresh for every round, and equal
parameters.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterator

import torch

from sandbox.checking import compare, hidden
from sandbox.checking.updates import same_buffer
from sandbox.machine import memory
from sandbox.machine.trees import Layout
from sandbox.pairs.unlike import Unlike
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig

FLOAT32_BYTES = 4


class Given:
    """Values come from the reference's worker, under seeds that nobody else knows, and reach the
    candidate's memory when they are disclosed.
    """

    def __init__(
        self,
        reference: Subject,
        candidate: Subject,
        signature: Signature,
        config: EvalConfig,
        synchronize: Callable[[], None],
        *,
        new_weights: bool,
    ) -> None:
        """`new_weights`: parameters are the reference's, and may be overwritten."""
        self.reference = reference
        self.candidate = candidate
        self.signature = signature
        self.config = config
        self.synchronize = synchronize
        self.new_weights = new_weights and bool(signature.state)
        self.varied = False
        """Inputs that get_inputs() makes alike each time differ too."""
        self.publish_s: tuple[float, float] | None = None
        """Of the reference and of the candidate, to tell what they had updated in the round before;
        None where nothing is."""
        self._fresh = 0
        """The first so many input sets have values that no round has used."""
        self._made, self._used = (0, 0), (0, 0)
        """Sets and seed of the newest values, and of those that the present round has."""

    def fill(self, count: int) -> None:
        """Fresh values in the reference's first input sets, unless they have them already."""
        if self._fresh < count:
            with self._filling(count):
                pass
        self._fresh, self._used = 0, self._made

    def refill(self) -> bool:
        """The values of the round that was, once more; False where they cannot be had, since a
        seed does not tell them (numpy's generators are the task's own): a second time tells.
        """
        if self._used == self._made:
            return True
        count, seen = self._used[0], []
        for _ in range(2):
            with self._filling(*self._used):
                pass
            sets = self.reference.set_bytes("inputs", 0, count).view(torch.int64)
            seen.append(sets.view(count, -1).sum(1))
        self._fresh = 0
        same = bool(torch.equal(*seen))
        if not same:
            self._made = (0, 0)
        return same

    def change(self, unlike: Unlike, secret: random.Random) -> None:
        """Give some of the filled sets fresh values of other kinds."""
        self.reference.finish_ours()
        domains = self.signature.domains
        for sets, kind in unlike.places:
            self.reference.request(
                "fill",
                self.config.run_timeout_s,
                sets=list(sets),
                seed=secrets.randbits(60),
                scale=kind.scale,
                domains=domains,
            )
            if kind.change is None:
                continue
            numbers = hidden.concerned(kind.change, self.signature.inputs, domains)
            for index in sets:
                views = [self.reference.leaf("inputs", index, leaf) for leaf in numbers]
                hidden.CHANGES[kind.change](views, [domains[leaf] for leaf in numbers], secret)
        self.synchronize()

    @contextlib.contextmanager
    def meanwhile_filled(self, count: int) -> Iterator[None]:
        """The same for the next round, while the block runs: making values takes as long as
        comparing outputs. Not where the comparison needs the inputs that were used.
        """
        compared = self.signature.mutates or not all(o.floating for o in self.signature.outputs)
        if compared or not count:
            yield
            return
        with self._filling(count):
            yield
        self._fresh = count

    @contextlib.contextmanager
    def _filling(self, count: int, seed: int | None = None) -> Iterator[None]:
        self.reference.finish_ours()
        worker, stage = self.reference.worker, self.reference.stage
        sets, seed = list(range(count)), secrets.randbits(60) if seed is None else seed
        self._made = count, seed
        worker.send(
            "fill",
            stage=stage,
            sets=sets,
            seed=seed,
            scale=1.0,
            varied=self.varied,
            domains=self.signature.domains,
        )
        try:
            yield
        finally:
            worker.reply(stage=stage, timeout_s=self.config.run_timeout_s)

    def share_inputs(self, count: int) -> None:
        """The candidate's first input sets become the reference's."""
        source = self.reference.set_bytes("inputs", 0, count)
        self.candidate.set_bytes("inputs", 0, count).copy_(source)
        self.synchronize()

    def disclose(self, side: Subject, first: int, count: int) -> float:
        """Write the sets that are timed next: after warm-up, which could otherwise compute on them,
        and with the side stopped. Returns when it was let go on: from then on its threads may read
        them, and those that spin kept us from saying "go" for up to 6 ms (two cores).

        The reference's are rewritten in place: both sides then find the same in their caches.
        """
        side.worker.freeze()
        try:
            self.write(side, first, count)
        finally:
            since = side.worker.thaw()
        return since

    def write(self, side: Subject, first: int, count: int) -> None:
        """The same for a side that is trusted to wait for "go"."""
        if side is self.reference:
            self.rewrite(first, count)
        else:
            own = self.reference.set_bytes("inputs", first, count)
            side.set_bytes("inputs", first, count).copy_(own)
        self.synchronize()

    def rewrite(self, first: int, count: int) -> None:
        """The reference's sets with the values that they have, for what it does to caches."""
        self.reference.set_bytes("inputs", first, count).view(torch.int64).add_(0)

    def unchanged(self, first: int, count: int) -> bool:
        """The candidate's inputs are, byte for byte, the reference's."""
        return compare.identical(
            self.reference.set_bytes("inputs", first, count),
            self.candidate.set_bytes("inputs", first, count),
        )

    def restyle(self, *, part: bool = False) -> None:
        """New parameters on both sides, as a training loop would have them, or a small `part` of
        one: who looks at a few elements does not see it.
        """
        if self.new_weights:
            limit_s, seed = self.config.run_timeout_s, secrets.randbits(31)
            self.reference.request("restyle", limit_s, state_seed=seed, part=part)
            self.share_state()

    def same_state(self) -> bool:
        """Whether both sides' calls left the same in what they update, after a round of them; how
        long either takes to tell is in `publish_s`. Not told of half precision: what is fed back
        drifts.
        """
        if not (self.new_weights and self.signature.moves_state and self.config.check_state):
            return True
        sides = self.reference, self.candidate
        before = self.reference.arenas["state"].bytes.clone()
        spent = []
        for side in sides:
            side.idle.end()
            start = time.perf_counter()
            side.request("publish", self.config.run_timeout_s)
            spent.append(time.perf_counter() - start)
        self.publish_s = spent[0], spent[1]
        layout = Layout(tuple(leaf for _, leaf in self.signature.state), 1)
        same = all(
            same_buffer(
                self.candidate.leaf("state", 0, number),
                self.reference.leaf("state", 0, number),
                memory.leaf_view(before, layout, 0, number),
            )
            for number, (_, leaf) in enumerate(self.signature.state)
            if not (leaf.floating and leaf.itemsize < FLOAT32_BYTES)
        )
        for side in sides:
            side.arenas["state"].bytes.copy_(before)
        self.synchronize()
        self.candidate.idle.begin()
        return same

    def share_state(self) -> None:
        """The candidate's parameters and buffers become the reference's."""
        if not self.new_weights:
            return
        self.reference.request("publish", self.config.run_timeout_s)
        self.candidate.arenas["state"].bytes.copy_(self.reference.arenas["state"].bytes)
        self.synchronize()
        self.candidate.idle.end()
        self.candidate.restate()
