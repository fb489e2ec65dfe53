"""Capped JSON frames over a private socket pair, with a per-run nonce; never pickle.

A frame is a 4-byte little-endian length and UTF-8 JSON `{"nonce": ..., "body": ...}`. File
descriptors travel beside frames (SCM_RIGHTS), supervisor to worker only. The nonce keeps stray
writers out; a candidate in the same process as its harness can still speak for it, so what arrives
is a *claim*.
"""

from __future__ import annotations

import array
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

FRAME_LIMIT = 4 << 20
"""Bytes; a reply is metadata, tensors never travel here."""
SEND_TIMEOUT_S = 10
"""A living reader takes a frame in microseconds."""
WATCHED_S = 0.05
"""How often who waits asleep looks after the worker."""
_HEADER = struct.Struct("<I")
_MAX_FDS = 8


class ChannelClosed(Exception):
    """The other end is gone."""


class ChannelTimeout(Exception):
    """No whole frame arrived before the deadline."""


class ChannelProtocol(Exception):
    """The other end sent something that is no frame of ours."""


class Channel:
    """One end of the pair. Not thread-safe."""

    def __init__(self, sock: socket.socket, nonce: str, *, takes_fds: bool = False) -> None:
        """`takes_fds` on the worker's end only: an untrusted peer could exhaust our descriptors."""
        # A peer that answers without reading would otherwise block us once its buffer is full.
        seconds = struct.pack("@ll", SEND_TIMEOUT_S, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        self._socket = sock
        self._nonce = nonce
        self._room = socket.CMSG_SPACE(_MAX_FDS * 4) if takes_fds else 0
        self._fds: list[int] = []
        self._stopped_s = 0.0
        self._stopped_at: float | None = None

    def send(self, body: Any, fds: Sequence[int] = ()) -> None:
        """Send one frame; raises ChannelClosed when the other end is gone or reads no more."""
        payload = json.dumps({"nonce": self._nonce, "body": body}).encode()
        if len(payload) > FRAME_LIMIT:
            raise ChannelProtocol(f"frame of {len(payload)} bytes; the limit is {FRAME_LIMIT}")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([_HEADER.pack(len(payload))], rights)
            self._socket.sendall(payload)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(
        self,
        timeout_s: float | None = None,
        watch: Callable[[], None] | None = None,
        *,
        asleep_s: float = 0.0,
        awake_s: float = 0.0,
    ) -> Any:
        """The next frame's body.

        `watch` is called every WATCHED_S while asleep and may raise. `awake_s`: seconds to look for
        it without sleeping, after `asleep_s`: a virtual core needs 0.1 ms and more to wake. Raises
        ChannelTimeout after `timeout_s` seconds, ChannelClosed at end of file, ChannelProtocol on a
        malformed or foreign frame.
        """
        now = self._clock()
        deadline = None if timeout_s is None else now + timeout_s
        until = now + (asleep_s if timeout_s is None else min(asleep_s, timeout_s))
        if awake_s and not (asleep_s and self._came(until, watch)):
            self._look(awake_s)
        (length,) = _HEADER.unpack(self._read(_HEADER.size, deadline, watch))
        if length > FRAME_LIMIT:
            raise ChannelProtocol(f"frame of {length} bytes; the limit is {FRAME_LIMIT}")
        payload = self._read(length, deadline, watch)
        try:
            frame = json.loads(payload)
            nonce, body = frame["nonce"], frame["body"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ChannelProtocol("a frame that is not our JSON") from error
        if nonce != self._nonce:
            raise ChannelProtocol("a frame with the wrong nonce")
        return body

    def stop_clock(self) -> None:
        """Time from here on does not count against a receiver's deadline."""
        self._stopped_at = time.monotonic()

    def start_clock(self) -> None:
        """It counts again."""
        if self._stopped_at is not None:
            self._stopped_s += time.monotonic() - self._stopped_at
            self._stopped_at = None

    def take_fds(self) -> list[int]:
        """File descriptors that came with the frames received so far."""
        fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def _clock(self) -> float:
        """Seconds, without those for which the clock stood."""
        stopped_at = self._stopped_at
        now = time.monotonic() if stopped_at is None else stopped_at
        return now - self._stopped_s

    def _read(self, size: int, deadline: float | None, watch: Callable[[], None] | None) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            self._wait(deadline, watch)
            try:
                data, ancillary, _, _ = self._socket.recvmsg(size - len(chunks), self._room)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                    self._fds.extend(fds)
            if not data:
                raise ChannelClosed("end of file")
            chunks += data
        return bytes(chunks)

    def readable(self) -> bool:
        """Whether something has come, or the other end is gone."""
        return bool(self._poller().poll(0))

    def _poller(self) -> select.poll:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return poller

    def _look(self, seconds: float) -> None:
        """Until something has come, or that long."""
        poller = self._poller()
        end = time.perf_counter() + seconds
        while not poller.poll(0) and time.perf_counter() < end:
            pass

    def _wait(self, deadline: float | None, watch: Callable[[], None] | None) -> None:
        if (deadline is not None or watch is not None) and not self._came(deadline, watch):
            raise ChannelTimeout

    def _came(self, deadline: float | None, watch: Callable[[], None] | None) -> bool:
        """Whether something has come by then, asleep meanwhile. The last look is for that alone:
        what `watch` does takes milliseconds.
        """
        poller = self._poller()
        while True:
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return False
            step = left if watch is None else min(WATCHED_S, WATCHED_S if left is None else left)
            if poller.poll(None if step is None else max(step * 1000, 1)):
                return True
            if watch is not None and step == WATCHED_S:
                watch()
