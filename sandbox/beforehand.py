"""The next tasks, begun while another one is timed: references examined, models compiled.

All stands still in timed regions, as whatever is made beside them; so how long calls take is found
out once more in the task's turn. What fails here, for want of memory above all, is done again then,
and fails there if it is to fail.
"""

from __future__ import annotations

import logging
from functools import partial

from sandbox.baselines import Baselines
from sandbox.cleanup import on_failure
from sandbox.compiling import Ahead
from sandbox.errors import WarpsmithError
from sandbox.handle import WorkerFailed
from sandbox.stand import Stand
from sandbox.subject import Opening, Signature, Subject
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

    def take(self) -> Subject:
        """The reference's worker, open, which is the caller's from now on."""
        subject, self._subject = self._subject, None
        assert subject is not None
        return subject

    def close(self) -> None:
        """End what nobody took."""
        if self.ahead is not None:
            self.ahead.close()
        if self._subject is not None:
            self._stand.retire(self.take())


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
