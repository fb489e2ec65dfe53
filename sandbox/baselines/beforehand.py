"""The next tasks, begun while another one is timed: references examined, models compiled.

All stands still in timed regions, as whatever is made beside them; so how long calls take is found
out once more in the task's turn. What fails here, for want of memory above all, is done again then,
and fails there if it is to fail; and so is what was ended because the one that is timed lacked
memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from sandbox.baselines.baselines import Baselines
from sandbox.baselines.compiling import Ahead
from sandbox.cleanup import on_failure
from sandbox.errors import WarpsmithError
from sandbox.machine.handle import WorkerFailed
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task

logger = logging.getLogger(__name__)

SHARE = 0.1
"""Of a GPU's memory, for a reference that is examined beside another task: how much its calls take
is not known before."""


class Begun:
    """One task, whose turn is to come."""

    def __init__(self, stand: Stand, subject: Subject, signature: Signature, ahead: Ahead | None):
        self.signature = signature
        self.ahead = ahead
        self._stand = stand
        self._subject: Subject | None = subject
        self._closing = threading.Lock()

    def take(self) -> Subject:
        """The reference's worker, open, which is the caller's from now on."""
        subject, self._subject = self._subject, None
        assert subject is not None
        return subject

    def close(self) -> None:
        """End what nobody took."""
        with self._closing:
            if self.ahead is not None:
                self.ahead.close()
            if self._subject is not None:
                self._stand.retire(self.take())


class Beginnings:
    """Of one device: tasks that are begun or about to be, and have not had their turn."""

    def __init__(self, tell_room: Callable[[bool], object], settle: Callable[[], object]) -> None:
        """`tell_room` is told what the method is; `settle` waits until ended workers are gone."""
        self._tell_room, self._settle = tell_room, settle
        self.alone = False
        """The one that is timed lacked memory: nothing begins beside it, whatever room it has."""
        self._changed = threading.Condition()
        self._beginning = 0
        self._begun: list[Begun] = []

    def tell_room(self, room: bool) -> None:
        """Whether another task may begin beside the one that is timed."""
        self._tell_room(room and not self.alone)

    def begin(self, work: Callable[[], Begun | None]) -> Begun | None:
        """What `work` begins, which `end` may end from now on."""
        begun = None
        with self._changed:
            self._beginning += 1
        try:
            begun = work()
        finally:
            with self._changed:
                self._beginning -= 1
                if begun is not None:
                    self._begun.append(begun)
                self._changed.notify_all()
        return begun

    def take(self, begun: Begun) -> Begun | None:
        """Its turn has come; None where it was ended before."""
        with self._changed:
            if begun not in self._begun:
                return None
            self._begun.remove(begun)
            return begun

    def end(self) -> bool:
        """For the one that is timed: end them all, and let no other begin; False where there was
        none.
        """
        self.alone = True
        self.tell_room(False)
        with self._changed:
            self._changed.wait_for(lambda: not self._beginning)
            ended, self._begun = self._begun, []
        for begun in ended:
            begun.close()
        if ended:
            self._settle()
        return bool(ended)


def begin(stand: Stand, baselines: Baselines, task: Task, config: EvalConfig) -> Begun | None:
    """None where it cannot be begun yet."""
    limit_s = config.load_timeout_s
    try:
        subject = stand.start_reference(task, config)
        ended = on_failure(partial(stand.retire, subject))
        with ended, stand.quiet.beside(subject.worker):
            subject.request("bound", limit_s, share=SHARE)
            signature = stand.open_reference(subject, Opening())
            subject.request("bound", limit_s, share=1.0)
            ahead = baselines.ahead(task, config, signature)
    except (WorkerFailed, WarpsmithError, OSError) as failed:
        logger.info("%s is not begun beforehand: %s", task.id, failed)
        return None
    return Begun(stand, subject, signature, ahead)
