"""Calls of a kernel that keeps something between them: scratch memory, a ticket, launch arguments.

They are made one at a time, on whatever device, since some of it is the host's; on a GPU each waits
for the one before on the device, whatever its stream. A call that a CUDA graph captures is made
alone and waits for none: captures on several streams, and replays beside other calls of the kernel,
are the caller's to keep apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Order:
    """Of one kernel on one device; `lock` is the kernel's."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._done: torch.cuda.Event | None = None

    def run(self, call: Callable[[], Result], device: torch.device) -> Result:
        """Whatever `call` raises passes through."""
        with self._lock:
            if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
                return call()
            stream = torch.cuda.current_stream()
            if self._done is None:
                self._done = torch.cuda.Event()
            else:  # also where the handle is the same: it may be another stream's by now
                stream.wait_event(self._done)
            try:
                return call()
            finally:
                self._done.record(stream)
