"""To end with whoever started us, at any moment.

A helper process learns from end of file that its parent is gone, but only when it next reads:
importing torch takes seconds before that, tracing a reference may take minutes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def tied_to(fd: int, last: Callable[[], None] = lambda: None) -> Iterator[None]:
    """This process ends (code 0, after `last`) once the other end of `fd`, a pipe or a socket, is
    closed.

    For the main thread, and for descriptors of which no other process here holds the other end.
    """
    poll = select.poll()
    poll.register(fd, select.POLLHUP | select.POLLRDHUP)

    def look(*_: object) -> None:
        if any(events & (select.POLLHUP | select.POLLRDHUP) for _, events in poll.poll(0)):
            last()
            os._exit(0)

    before = signal.signal(signal.SIGIO, look)  # also comes with data, which is left where it is
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        look()
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        signal.signal(signal.SIGIO, before)
