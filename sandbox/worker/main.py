"""A worker's life after the fork: answer requests until the supervisor hangs up.

Failures travel as a claim: type name, message and traceback tail. What they mean is the judge's
business.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

from sandbox.machine.channel import Channel, ChannelClosed
from sandbox.worker.candidate import BuildSession, CandidateSession
from sandbox.worker.reference import ReferenceSession
from sandbox.worker.session import Session

OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation, and its namesake among the driver's errors."""
ROLES: dict[str, type[Session]] = {
    "reference": ReferenceSession,
    "candidate": CandidateSession,
    "build": BuildSession,
}


def serve(channel: Channel, role: str, scratch: Path) -> None:
    """Run until end of file on the channel; never returns to the zygote's code."""
    session = ROLES[role](scratch)
    request: dict[str, Any] = {}
    try:
        while True:
            request = channel.receive(awake_s=request.get("awake_s", 0.0))
            channel.send(answer(session, request, channel.take_fds()))
    except ChannelClosed:
        os._exit(0)


def answer(session: Session, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """The reply to one request: `{"ok": ...}` or `{"error": ...}`."""
    try:
        return {"ok": getattr(session, "do_" + request["op"])(request, fds)}
    except BaseException as error:  # noqa: BLE001  candidates raise anything, SystemExit included
        return {"error": claim(error)}


def claim(error: BaseException) -> dict[str, Any]:
    """What the worker says went wrong: the type names decide the Status, never the words."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "AcceleratorError" in names and getattr(error, "error_code", None) == OUT_OF_MEMORY:
        names.append("OutOfMemoryError")  # a context or a module for which there is no room
    lines = traceback.format_exception(error)
    return {"types": names, "message": str(error)[:4000], "trace": "".join(lines)[-4000:]}
