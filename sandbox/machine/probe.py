"""Fork a child, wall it in, ask it something: behind `warpsmith doctor` and the tests."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.errors import SandboxFault
from sandbox.machine.processes import kill_tree
from sandbox.walls.enclose import Enclosure, Grade, Layer, Walls, enclose
from sandbox.walls.folders import prepare_scratch

PROBE_UID = 60_999
"""Beyond what distributions hand out (UID_MAX 60000 in login.defs), below nobody."""


def probe() -> Walls:
    """The walls this user gets on this host, put up around a child: the caller is untouched."""
    uid = PROBE_UID if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="warpsmith-probe-"))
    try:
        scratch = prepare_scratch(folder / "scratch", uid)
        enclosure = Enclosure(scratch, (), uid, (), 10, 1 << 20, 16, None, os.getpid())
        record = ask(enclosure, dataclasses.asdict)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not isinstance(record, dict):
        raise SandboxFault(f"the walled child answered {record!r}; expected its walls")
    return Walls(Grade(record["grade"]), tuple(record["layers"]), tuple(record["missing"]))


def ask(
    enclosure: Enclosure,
    question: Callable[[Walls], object],
    *,
    without: frozenset[Layer] = frozenset(),
    user: int | None = None,
    timeout_s: float = 30.0,
) -> object:
    """The JSON value `question` returns in a forked, walled child of this process.

    `user` is whom the child becomes before the walls rise. Raises SandboxFault with the child's
    exception, or where it ended or stayed silent. Trusted questions only: the reply is believed.
    """
    enclosure = dataclasses.replace(enclosure, parent_pid=os.getpid())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, lambda: question(_enclosed(enclosure, without, user)))
    os.close(writer)
    try:
        reply = _read(reader, timeout_s)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)  # it may have failed before it had its own group
        kill_tree(child, enclosure.uid if os.geteuid() == 0 else None)
        _, status = os.waitpid(child, 0)
    if reply is None:
        raise SandboxFault(
            f"the walled child gave no answer within {timeout_s} s (status {status})"
        )
    if "error" in reply:
        raise SandboxFault(f"the walled child failed: {reply['error']}")
    return reply["value"]


def _enclosed(enclosure: Enclosure, without: frozenset[Layer], user: int | None) -> Walls:
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    return enclose(enclosure, without=without)


def _answer(writer: int, work: Callable[[], object]) -> None:
    """Never returns: a forked child must not run its caller's clean-up."""
    try:
        reply = {"value": work()}
    except BaseException as error:  # noqa: BLE001 - the process ends here, and the parent must hear why
        reply = {"error": f"{type(error).__name__}: {error}"}
    os.write(writer, json.dumps(reply).encode())
    os._exit(0)


def _read(reader: int, timeout_s: float) -> dict[str, object] | None:
    """One reply; not until EOF, which grandchildren that hold the pipe would delay."""
    deadline = time.monotonic() + timeout_s
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        text += chunk
        try:
            reply: dict[str, object] = json.loads(text)
        except json.JSONDecodeError:
            continue  # the rest is on its way
        return reply
    return None
