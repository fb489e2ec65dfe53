"""A supervisor to be attacked: another process, ordinary or root, on a host that lacks something.

What the host lacks is made so by the kernel: a seccomp filter refuses the system calls behind a
wall to the process and all its children, as an administrator, a container or an old kernel would.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import struct
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from sandbox.walls.kernel import checked, libc, syscall
from sandbox.walls.namespaces import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, unshare
from sandbox.walls.privileges import no_new_privileges
from sandbox.walls.seccomp import ARCHITECTURES, DENIED, SECCOMP

LANDLOCK = (444, 445, 446)
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
SET_MODE_FILTER = 1


class Host(StrEnum):
    """What a host offers."""

    WHOLE = "whole"
    NO_UNSHARE = "unshare refused"
    NO_LANDLOCK = "Landlock absent"
    NEITHER = "neither"


def lack(host: Host) -> None:
    """Make this process and its children live on such a host, for good."""
    refused: list[tuple[int, int]] = []
    if host in (Host.NO_UNSHARE, Host.NEITHER):
        refused.append((number_of("unshare"), errno.EPERM))
    if host in (Host.NO_LANDLOCK, Host.NEITHER):
        refused += [(number, errno.ENOSYS) for number in LANDLOCK]
    if not refused:
        return
    code = [(0x20, 0, 0, 0)]  # load the system call's number
    for number, error in refused:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, ERRNO | error)]
    code.append((0x06, 0, 0, ALLOW))
    text = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    filters = ctypes.create_string_buffer(text, len(text))
    header = struct.pack("@HP", len(code), ctypes.addressof(filters))
    no_new_privileges()
    column = ARCHITECTURES[platform.machine()][0]
    buffer = ctypes.create_string_buffer(header, len(header))
    syscall(SECCOMP[column], SET_MODE_FILTER, 0, buffer)


def number_of(name: str) -> int:
    """Of a system call that the walls' filter names."""
    return DENIED[name][ARCHITECTURES[platform.machine()][0]]


def become(uid: int | None) -> None:
    """An ordinary user; None stays who we are."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again, as a fresh login is


def bind(places: Mapping[Path, Path]) -> None:
    """Show each folder at another place too, in a mount namespace of this process's own."""
    unshare(CLONE_NEWNS)
    mount(None, Path("/"), MS_REC | MS_PRIVATE)
    for target, source in places.items():
        mount(source, target, MS_REC | MS_BIND)


def mount(source: Path | None, target: Path, flags: int) -> None:
    origin = None if source is None else os.fsencode(source)
    checked(libc().mount(origin, os.fsencode(target), None, flags, None), f"mount {target}")


def in_host(host: Host, uid: int | None, work: Callable[[], Any]) -> Any:
    """The JSON value of `work` in a child that is that user on that host."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            become(uid)
            lack(host)
            reply = {"value": work()}
        except BaseException as error:  # noqa: BLE001 - the child ends here, and the test must hear why
            reply = {"error": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps(reply).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    answer = json.loads(text)
    assert "error" not in answer, answer
    return answer["value"]


def lives(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def outcome(act: Callable[[], object]) -> str:
    """`done`, or the name of the error that refused it."""
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "done"
