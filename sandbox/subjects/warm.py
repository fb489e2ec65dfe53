"""Reference workers that wait for the next candidate of their task, with its model open."""

from __future__ import annotations

from collections import OrderedDict

from sandbox.machine.handle import WorkerFailed
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task

KEPT_WARM = 4
"""Reference workers that wait for the next candidate of their task."""
WARM_BYTES = 4 << 30
"""Of arenas that one of them may keep meanwhile."""


class WarmReferences:
    """Of one device, by task and configuration; those used longest ago end first."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self._warm: OrderedDict[str, Subject] = OrderedDict()

    def get(self, task: Task, config: EvalConfig, known: Signature) -> Subject:
        """The task's worker, open at the timed shape; kept until other tasks' displace it."""
        key = _key(task, config)
        if key not in self._warm:
            subject, _ = self.stand.reference(task, config, Opening(known=known))
            self.keep(task, config, subject)
        self._warm.move_to_end(key)
        return self._warm[key]

    def keep(
        self, task: Task, config: EvalConfig, subject: Subject, *, rested: bool = False
    ) -> None:
        """Beside the others, of which the large free their arenas and the oldest ends. `rested`:
        it has served for something else, and frees its own.
        """
        key = _key(task, config)
        if key in self._warm:
            self.stand.retire(self._warm.pop(key))
        for other in list(self._warm.values()):
            if other.arena_bytes > WARM_BYTES:
                self._rest(other)
        self._warm[key] = subject
        if rested:
            self._rest(subject)
        if len(self._warm) > KEPT_WARM:
            _, oldest = self._warm.popitem(last=False)
            self.stand.reuse(oldest)

    def take(self, task: Task, config: EvalConfig) -> Subject | None:
        """The task's worker, if there is one, which is the caller's from now on."""
        return self._warm.pop(_key(task, config), None)

    def rest(self, needed: Subject | None = None) -> None:
        """Free all but their models in the workers, but for the one needed now."""
        for subject in list(self._warm.values()):
            if subject is not needed:
                self._rest(subject)

    def cool(self, task: Task | None = None, config: EvalConfig | None = None) -> None:
        """End the worker of a task, or all of them."""
        wanted = None if task is None or config is None else _key(task, config)
        for key in list(self._warm):
            if wanted in (None, key):
                self.stand.retire(self._warm.pop(key))

    def _rest(self, subject: Subject) -> None:
        try:
            subject.rest()
        except WorkerFailed:  # it died while it waited: the next candidate of its task starts one
            key = next(key for key, known in self._warm.items() if known is subject)
            self.stand.retire(self._warm.pop(key))


def _key(task: Task, config: EvalConfig) -> str:
    return f"{task.hash}-{config.id}"
