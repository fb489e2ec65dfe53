"""One worker with its model and its arenas, seen from the supervisor: reference, baseline or
candidate.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from sandbox.judging.drift import Alone
from sandbox.machine import memory, proc, tree
from sandbox.machine.handle import Worker
from sandbox.machine.memory import Arena
from sandbox.machine.trees import Layout
from sandbox.observation import RuntimeClaim, TreeFacts
from sandbox.subjects import bell
from sandbox.subjects.bell import Bell
from sandbox.subjects.claims import runtime_claim
from sandbox.subjects.scrambling import KEY_BITS, Scrambler
from sandbox.subjects.signature import Signature, layouts
from sandbox.types import EvalConfig, Task

SLOWLY_FREED_BYTES = 1 << 30
"""The driver took 0.2 s after a worker's end to give 18 GB back (H200); what is planned or started
meanwhile would lack them."""
AWAKE_S = 0.05
"""Longer than there is between two requests of a timed region; whoever waits longer may sleep."""
ANSWERS_S = 50e-6
"""How often one who waits for the bell looks whether there is an answer instead: a look takes as
long as an operator."""
BEYOND_KEPT = 9
"""Batches whose median tells what a batch takes beyond its calls."""
POISON = -1
"""Eight bytes 0xFF, written over output slots and used inputs: NaN in every float type, -1 in every
integer."""
SCRAMBLED = "scrambled"
"""The arena of a lone call's inputs that the bell does not carry."""
BLANK = 0xFF
"""A byte of it."""


class Subject:
    """Requests to one worker at one shape; closes its arenas with it."""

    def __init__(self, worker: Worker, task: Task, config: EvalConfig, stage: str) -> None:
        self.worker = worker
        self.task = task
        self.config = config
        self.stage = stage
        self.arenas: dict[str, Arena] = {}
        self.layouts: dict[str, Layout] = {}
        self.since_s = time.time()
        """Unix time from when on its process has this task."""
        self.fresh = False
        """Its arenas take memory that none had before."""
        self.idle = tree.IdleClock(worker.pid)
        self.threads_before = 0
        self.solo: tuple[Alone, ...] = ()
        """The last batches run alone, newest last; a warm reference keeps them while its arenas
        stay."""
        self.last_beyond_s = 0.0
        """Seconds of the last batch, of one that is trusted, in which none of its calls ran."""
        self.beyond = deque[float](maxlen=BEYOND_KEPT)
        """The same of the last timed ones."""
        self.call_s = {alone: deque([0.0], maxlen=2) for alone in (False, True)}
        """Of the last two batches, and the last two calls alone: we are awake when the next one
        ends."""
        self.room: Mapping[str, int] = {}
        """Bytes that arenas are made with, as far as they will be needed later."""
        self.given_bytes = 0
        """Of a GPU's memory, before its turn."""
        self._bell: Bell | None = None
        self._rung = 0
        self._mapped: dict[str, int] = {}
        """Bytes by arena that the worker maps, some of them perhaps detached on our side."""

    def setup(self, threads: int) -> None:
        tf32 = self.config.tf32 and not self.task.exact_float32
        self.request(
            "setup",
            self.config.load_timeout_s,
            device=self.task.device,
            dtype=self.task.dtype,
            threads=threads,
            tf32=None if self.config.torch_default_precision else tf32,
        )
        self.threads_before = proc.count_threads(self.worker.pid)

    def load(self, source: str) -> None:
        self.request("load", self.config.load_timeout_s, source=source)

    def attach(self, name: str, layout: Layout, tree: dict[str, Any] | None = None) -> None:
        """Share an arena with the worker under `name`, unless it has such a one: a fresh one, or
        what it has by that name.
        """
        if self.layouts.get(name) == layout and name in self.arenas:
            return
        size = max(layout.bytes, 1)
        # Else a GPU's memory is planned to the byte.
        able = name in self.arenas and (self.task.device == "cpu" or name in self.room)
        same = able and self.arenas[name].fit(size)
        if not same:
            self.detach(name)
            self.arenas[name] = self.allocate(max(size, self.room.get(name, 0)), self.task.device)
            self._blank(self.arenas[name])
            self.arenas[name].fit(size)
        same = same and name in self._mapped
        arena, self.layouts[name] = self.arenas[name], layout
        self.solo = ()
        self.worker.arena_bytes = self.arena_bytes
        self._mapped[name] = arena.room
        self.request(
            "attach",
            self.config.load_timeout_s,
            fds=[] if same else arena.fds,
            name=name,
            ticket={"kind": "same", "size": arena.bytes.numel()} if same else arena.ticket(),
            leaves=[leaf.to_json() for leaf in layout.leaves],
            sets=layout.sets,
            tree=tree or {},
        )

    def take_room(self, room: Mapping[str, int]) -> None:
        """Memory for arenas of these bytes, which the worker has no part in yet. Raises an
        OutOfMemoryError, ours or torch's, where there is none; then it does without.
        """
        self.room = room
        try:
            for name, size in room.items():
                self.arenas[name] = self.allocate(size, self.task.device)
        except (memory.OutOfMemoryError, torch.OutOfMemoryError):
            self.room = {}
            for name in list(self.arenas):
                self.detach(name)
            raise

    def blank_room(self) -> None:
        """All that was made for later, before the worker maps it."""
        for arena in self.arenas.values():
            self._blank(arena)
        self.finish_ours()

    def _blank(self, arena: Arena) -> None:
        """Leave nothing there of what others had in it: a candidate sees more of it than it is
        given. A host's pages that others had are zero (sandbox/machine/pages.py).
        """
        if self.task.device == "cuda" and not self.worker.trusted:
            arena.bytes.fill_(BLANK)

    def allocate(self, size: int, device: str) -> Arena:
        """An arena for this worker."""
        return memory.allocate(size, device, trusted=self.worker.trusted, fresh=self.fresh)

    @property
    def arena_bytes(self) -> int:
        return sum(arena.bytes.numel() for arena in self.arenas.values())

    def attach_all(self, signature: Signature, sets: int, slots: int) -> None:
        """Inputs, output slots and state for one shape."""
        for name, layout in layouts(signature, sets, slots).items():
            self.attach(name, layout, signature.input_tree if name == "inputs" else None)

    def rest(self) -> None:
        """Keep the worker and its model, free its arenas and what it has cached."""
        self._vacate("rest")

    def release(self) -> None:
        """Drop the worker's model, and its arenas unless they were made for later; keep the
        worker.
        """
        if self.room:
            self.request("drop_model", self.config.load_timeout_s)
        else:
            self._vacate("release")

    def leave(self) -> list[str]:
        """Drop the task as well; what is left of it in the process, which is then for no other."""
        return list(self._vacate("leave")["left"])

    def _vacate(self, op: str) -> dict[str, Any]:
        reply = self.request(op, self.config.load_timeout_s)
        self._mapped.clear()
        for name in list(self.arenas):
            self.detach(name)
        self.worker.arena_bytes = 0
        return reply

    def discard(self, name: str) -> None:
        """Free an arena on both sides, and what the worker has cached."""
        self.request("discard", self.config.load_timeout_s, name=name)
        self._mapped.pop(name, None)
        self.detach(name)
        self.worker.arena_bytes = self.arena_bytes

    def detach(self, name: str, *, unshared: bool = False) -> None:
        """Free an arena; `unshared`: no process of the worker's is left."""
        arena = self.arenas.pop(name, None)
        if arena is not None:
            arena.close(unshared=unshared)
            self.solo = ()

    def leaf(self, name: str, index: int, leaf: int) -> torch.Tensor:
        """Supervisor's view of one leaf of one set."""
        return memory.leaf_view(self.arenas[name].bytes, self.layouts[name], index, leaf)

    def stack(self, name: str, leaf: int) -> torch.Tensor:
        """Supervisor's (sets, *shape) view of one leaf of every set."""
        return memory.stacked_view(self.arenas[name].bytes, self.layouts[name], leaf)

    def set_bytes(self, name: str, first: int, count: int = 1) -> torch.Tensor:
        """Supervisor's (bytes,) uint8 view of consecutive sets."""
        stride = self.layouts[name].stride
        return self.arenas[name].bytes[first * stride : (first + count) * stride]

    def poison(self, name: str, first: int, count: int) -> None:
        self.set_bytes(name, first, count).view(torch.int64).fill_(POISON)

    def request(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """One round trip, begun once all that we do in the arenas is done: between processes a GPU
        keeps no order, and a slot poisoned late would spoil what was written to it.
        """
        self.finish_ours()
        return self.worker.request(op, stage=self.stage, timeout_s=timeout_s, **fields)

    def finish_ours(self) -> None:
        """Without arenas there is nothing, and the thread may have no device of its own."""
        if self.arenas and self.task.device == "cuda":
            torch.cuda.current_stream().synchronize()

    @property
    def awake_s(self) -> float:
        """Seconds to wait awake for what is timed: only where that takes no core from the work."""
        return 0.0 if self.worker.core is None else AWAKE_S

    def reserve(self, count: int) -> None:
        """Have memory for so many sets' outputs."""
        self.request("reserve", self.config.run_timeout_s, count=count)

    def reserve_bytes(self, size: int) -> None:
        """Have so much memory for outputs."""
        self.request("reserve", self.config.run_timeout_s, bytes=size)

    def warm(self, sets: list[int]) -> None:
        """Warm up for the "go" that follows."""
        self.request("warm", self.config.run_timeout_s, sets=sets, awake_s=self.awake_s)

    def rouse(self, index: int) -> None:
        """One more call, so that the lone one that follows does not pay for cold code."""
        self.request("rouse", self.config.run_timeout_s, set=index, awake_s=self.awake_s)

    def restate(self, awake_s: float = 0.0) -> None:
        """Give the model the state arena's parameters and buffers; for `awake_s` seconds it then
        waits awake, since something is timed next.
        """
        self.request("restate", self.config.run_timeout_s, awake_s=awake_s)

    def grow_old(self, sets: list[int]) -> None:
        """Many more calls, of which nothing is kept."""
        self.request("warm", self.config.run_timeout_s, sets=sets, long=True)

    def go(
        self,
        sets: list[int],
        *,
        hasty: int | None = None,
        drops: bool = False,
        turned: bool = False,
        since: float | None = None,
    ) -> float:
        """Seconds from "go", or an earlier moment `since`, to "done" by the supervisor's clock.

        `hasty`: then call on the last set's values once more, in the place of this set, and deliver
        what the caller's stream finds at once. `drops`: outputs are let go of one by one. `turned`:
        the first call begins once the GPU has turned to this worker.
        """
        limit_s = self.config.run_timeout_s
        more: dict[str, Any] = {"hasty": hasty, "drops": drops, "turned": turned}
        start = time.perf_counter() if since is None else since
        self.worker.send("go", stage=self.stage, sets=sets, **more)
        # Who slept at the end of a long batch of the reference's would take too much off a short
        # one of the candidate's, as what any batch takes beyond its calls.
        usual = self.call_s[len(sets) == 1]
        asleep_s = max(0.0, len(sets) * min(usual) - self.awake_s / 2)
        told = self.worker.reply(
            stage=self.stage, timeout_s=limit_s, asleep_s=asleep_s, awake_s=self.awake_s
        )
        seconds = time.perf_counter() - start
        usual.append(seconds / max(1, len(sets)))
        if self.worker.trusted and sets and hasty is None:
            self.last_beyond_s = seconds - float(told["seconds"])
        return seconds

    def attach_bell(self, signature: Signature) -> None:
        """What lone calls are rung for with: the bell, and memory for what it does not carry."""
        carried = bell.carried(signature.input_bytes)
        if not carried:
            self.attach(SCRAMBLED, Layout(signature.inputs, 1))
        if self._bell is None or self._bell.given.numel() != carried:
            arena = self.allocate(bell.HEADER_BYTES + carried, "cpu")
            limit_s = self.config.load_timeout_s
            self.request("bell", limit_s, fds=arena.fds, ticket=arena.ticket())
            self._bell = Bell(arena.bytes)
            arena.close()

    def ring(self, index: int, warm: int, values: torch.Tensor) -> float:
        """Seconds of one call on `values`, the (bytes,) of set `index`, begun by a bell in shared
        memory, with making them out; `warm`: a set to keep warm on.
        """
        assert self._bell is not None
        self._rung += 1
        key, carried = 0, b""
        if self._bell.given.numel():
            carried = bytes(values.cpu().numpy())
        else:
            key, own = secrets.randbits(KEY_BITS), values.view(torch.int64)
            secret = self.set_bytes(SCRAMBLED, 0).view(torch.int64)
            Scrambler(len(own), own.device).scramble(own, key, secret)
        self.finish_ours()
        self.worker.send("go", stage=self.stage, sets=[index], rung=self._rung, warm=warm)
        return self._over_s(self._bell.ring(self._rung, key, carried))

    def _over_s(self, start: float) -> float:
        """Seconds from then until the bell says that the call is over; its answer is read before
        the next request. Where the bell says nothing, as of a long call or one that failed, until
        that answer comes.
        """
        assert self._bell is not None
        worker, limit_s = self.worker, self.config.run_timeout_s
        asleep, look = start + self.awake_s, start + ANSWERS_S
        while not self._bell.over(self._rung):
            now = time.perf_counter()
            if now > asleep or (now > look and worker.answers()):
                worker.reply(stage=self.stage, timeout_s=limit_s)
                return time.perf_counter() - start
            look = now + ANSWERS_S if now > look else look
        seconds = time.perf_counter() - start
        worker.answers_later(stage=self.stage, timeout_s=limit_s)
        return seconds

    def forget(self) -> None:
        """After a call that was rung for: nothing is left to make its inputs out of again."""
        assert self._bell is not None
        self._bell.forget()
        if not self._bell.given.numel():
            self.poison(SCRAMBLED, 0, 1)

    def collect(
        self,
        sets: list[int],
        *,
        look: bool = False,
        keep: int | None = None,
        spoil: bool = False,
    ) -> tuple[float, dict[str, Any]]:
        """Seconds to copy the outputs to their slots, and what the worker claims about them.

        `look`: say also which outputs share memory, where no figure is taken. `keep`: hold the
        output of the call at this position. `spoil`: hold the others until `spoil` is asked.
        """
        self.finish_ours()
        start = time.perf_counter()
        limit_s = self.config.run_timeout_s
        claim = self.worker.request(
            "collect",
            stage=self.stage,
            timeout_s=limit_s,
            sets=sets,
            look=look,
            keep=keep,
            spoil=spoil,
        )
        return time.perf_counter() - start, claim

    def spoil(self) -> None:
        """Have outputs that were collected changed in place, as their caller may: untimed."""
        self.request("spoil", self.config.run_timeout_s)

    def claim(self) -> RuntimeClaim:
        """What the worker says of its process."""
        return runtime_claim(self.request("facts", self.config.run_timeout_s))

    def facts(self) -> tuple[RuntimeClaim, TreeFacts]:
        """What the worker says of its process, and what that looks like from outside."""
        claim = self.claim()
        seen = tree.look(self.worker.pid, self.threads_before, self.idle)
        return claim, replace(seen, peak_device_bytes=claim.peak_device_bytes)

    def close(self) -> None:
        """End the worker; where it mapped gigabytes of a GPU, wait until they are free again."""
        mapped = sum(self._mapped.values())
        wait = self.task.device == "cuda" and mapped > SLOWLY_FREED_BYTES
        ours = sum(arena.room for arena in self.arenas.values())
        left = memory.others_free_bytes() + mapped - ours if wait else 0
        try:
            self.worker.close()
        finally:
            for name in list(self.arenas):
                self.detach(name, unshared=self.worker.left_nothing)
        if wait:
            memory.wait_for_device(left, memory.others_free_bytes, memory.STEADY_S)
