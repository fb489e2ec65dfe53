"""Locks that are free in a forked child: the thread that held one is not there to let it go.

What a lock guards may be half done there; each holder leaves nothing that is found before it is
whole.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

KNOWN: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    made = threading.Lock()
    KNOWN.add(made)
    return made


def rlock() -> Any:
    """As `lock`; the thread that holds it may take it again."""
    made = threading.RLock()
    KNOWN.add(made)
    return made


def _free() -> None:
    for each in list(KNOWN):
        each._at_fork_reinit()


os.register_at_fork(after_in_child=_free)
