"""A worker's stdout and stderr: drained so that it cannot block, kept head and tail."""

from __future__ import annotations

import os
import threading


class Log:
    """The read end of a pipe, drained by a thread; holds at most `limit` bytes whatever is
    printed.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def limit(self, limit: int) -> None:
        """Another limit, before anything was written."""
        self._half = limit // 2

    def started(self) -> None:
        """The worker holds the write end now: drop ours, so that end of file is seen."""
        os.close(self.write_fd)

    def text(self, wait_s: float = 0.2) -> str:
        """What was written, with a note of how much is missing from its middle."""
        self._thread.join(wait_s)
        gap = f"\n... {self._dropped} bytes left out ...\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")

    def _drain(self) -> None:
        while data := os.read(self._read_fd, 1 << 16):
            room = self._half - len(self._head)
            self._head += data[: max(room, 0)]
            self._tail += data[max(room, 0) :]
            if len(self._tail) > self._half:
                self._dropped += len(self._tail) - self._half
                del self._tail[: len(self._tail) - self._half]
        os.close(self._read_fd)
