"""What is begun and cannot be finished is undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_failure(undo: Callable[[], object]) -> Iterator[None]:
    """`undo` is called where the block raises, and only there."""
    try:
        yield
    except BaseException:  # Ctrl-C too: what was begun outlives it otherwise.
        undo()
        raise
