"""Where the seconds of a longer piece of work go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

OTHER = "other"


class Stages:
    """Called with a stage's name, a block whose seconds are added to that stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start

    @contextmanager
    def other(self) -> Iterator[None]:
        """A block that holds stages: its seconds outside them are those of the stage OTHER."""
        known, start = sum(self.seconds.values()), time.monotonic()
        try:
            yield
        finally:
            told = sum(self.seconds.values()) - known
            outside = time.monotonic() - start - told
            self.seconds[OTHER] = self.seconds.get(OTHER, 0.0) + max(0.0, outside)
