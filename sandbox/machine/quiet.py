"""Timed regions, kept apart from the work for other candidates that goes on beside them.

While one candidate holds the device the next ones are built, forked and loaded by other threads.
In every timed region this process holds still, whose interpreter lock stands between the clock and
a worker's reply, and so do workers that load: while contexts were made a GPU came back late behind
9 of 195 batches, by up to 21 ms (H200). Those that work on the host alone go on in a search,
unless all use the same cores. Time that a worker stood still does not count against its deadlines.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.machine.handle import Worker

BEGUN = 2
"""Tasks that are begun at most beside the one that holds the device: what compiles for one stands
still in timed regions, and is seldom done when its turn comes."""
SWITCH_S = 1e-4
"""How long another thread of ours may keep the interpreter in a timed region (Python's default is
5 ms, a quarter of a batch)."""


class Quiet:
    """One per device. `noise` and `timed` exclude each other; `noise` blocks are short: a candidate
    that is measured waits for their ends.
    """

    def __init__(self, *, same_cores: bool) -> None:
        """`same_cores`: what is timed may run on the cores of everything else, as on the CPU."""
        self.same_cores = same_cores
        self._changed = threading.Condition()
        self._noises = 0
        self._murmurs = 0
        self._timing = False
        self._strictly = False
        self._beside: dict[Worker, bool] = {}
        """Whether each works on the host alone."""
        self._mine = threading.local()

    @contextmanager
    def noise(self) -> Iterator[None]:
        """Work of our own that would disturb a clock: begins between timed regions, delays them."""
        if getattr(self._mine, "noisy", False):
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._timing)
            self._noises += 1
        self._mine.noisy = True
        try:
            yield
        finally:
            self._mine.noisy = False
            with self._changed:
                self._noises -= 1
                self._changed.notify_all()

    @contextmanager
    def murmur(self) -> Iterator[None]:
        """Work that only a figure to be reported, or one taken on the same cores, must not have
        beside it: a search goes on.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._strictly)
            self._murmurs += 1
        try:
            yield
        finally:
            with self._changed:
                self._murmurs -= 1
                self._changed.notify_all()

    @contextmanager
    def beside(
        self, worker: Worker, *, on_host: bool = False, then_stop: bool = False
    ) -> Iterator[None]:
        """The worker is busy for a candidate that is not being timed, maybe `on_host` alone;
        `then_stop` leaves it frozen, since code that has run may have left threads.
        """
        with self.noise():
            self._beside[worker] = on_host
        worker.quiet = self
        stop = False
        try:
            yield
            stop = then_stop
        finally:
            worker.quiet = None
            with self.noise():
                self._beside.pop(worker, None)
                if stop:
                    worker.freeze()

    @contextmanager
    def timed(self, *, strict: bool = True) -> Iterator[None]:
        """A region in which nothing of ours runs but what is timed. Not to be nested.

        `strict`: whatever is busy beside it stands still, even on the host and its own cores.
        """
        strict = strict or self.same_cores
        with self._changed:
            self._timing, self._strictly = True, strict
            self._changed.wait_for(lambda: not self._noises and not (strict and self._murmurs))
        interval = sys.getswitchinterval()
        stopped = [w for w, on_host in self._beside.items() if strict or not on_host]
        try:
            for worker in stopped:
                worker.pause(surely=strict)  # a search waits for no driver call to end
            sys.setswitchinterval(SWITCH_S)
            yield
        finally:
            sys.setswitchinterval(interval)
            for worker in stopped:
                worker.resume()
            with self._changed:
                self._timing = self._strictly = False
                self._changed.notify_all()


class Turns:
    """Who holds the device: whoever has waited longest, but first those of the task just served.

    `under_way` is around everything a candidate's code may do; `alone` waits until no candidate is.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._served = ""
        self._waiting: list[tuple[str, object]] = []
        self._under_way = 0
        self._wanting = 0
        self._room = False
        """Beside the one that holds the device, as far as it has said so."""
        self._begun = 0
        """So many have that room, or had it beside an earlier one, and wait for the device."""
        self._mine = threading.local()

    @property
    def idle(self) -> bool:
        """No candidate is under way."""
        return not self._under_way

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A candidate's processes may exist in this block; not to be nested."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wanting)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing is under way and nothing begins: for measurements that all candidates share."""
        with self._changed:
            self._wanting += 1
            self._changed.wait_for(lambda: not self._under_way)
        try:
            yield
        finally:
            with self._changed:
                self._wanting -= 1
                self._changed.notify_all()

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        """The device, for work on the task that `key` names. Not to be nested."""
        ticket = object()
        with self._changed:
            self._waiting.append((key, ticket))
            try:
                self._changed.wait_for(lambda: not self._held and self._next() is ticket)
            finally:  # interrupted, it would keep all others waiting
                self._waiting.remove((key, ticket))
                self._changed.notify_all()
            self._held, self._served, self._room = True, key, False
            self.leave_room()
        try:
            yield
        finally:
            with self._changed:
                self._held = self._room = False
                self._changed.notify_all()

    def tell_room(self, room: bool) -> None:
        """For the one that holds the device: whether other tasks may begin beside it."""
        with self._changed:
            self._room = room
            self._changed.notify_all()

    def room_beside(self) -> bool:
        """Whether the caller's task may begin now, before it holds the device; waits for room as
        long as another one holds it, or is to. Not to be asked again before that.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (self._room and self._begun < BEGUN) or not (self._held or self._waiting)
            )
            room = self._room and self._begun < BEGUN
            self._begun += room
            self._mine.has_room = room
            return room

    def leave_room(self) -> None:
        """The caller's task has its turn, or will have none: its room is another one's."""
        with self._changed:
            self._begun -= getattr(self._mine, "has_room", False)
            self._mine.has_room = False
            self._changed.notify_all()

    def _next(self) -> object:
        keys = [key for key, _ in self._waiting]
        place = keys.index(self._served) if self._served in keys else 0
        return self._waiting[place][1]
