"""Identity: a uid per slot, no capability but one that imports may need, death with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Iterable
from pathlib import Path

from sandbox.errors import SandboxFault
from sandbox.walls.kernel import (
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_RAISE,
    PR_CAPBSET_DROP,
    PR_SET_DUMPABLE,
    PR_SET_KEEPCAPS,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    checked,
    libc,
    prctl,
)

# include/uapi/linux/capability.h
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION_3 = 0x20080522


def no_new_privileges() -> None:
    """From here on no exec can gain rights; Landlock and seccomp ask for it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def closed_to(uid: int, paths: Iterable[Path]) -> Path | None:
    """The first folder, among these and their parents, that this user cannot enter or read.

    Groups do not count: a slot's user is in none but its own.
    """
    entered: set[Path] = set()

    def lacks(path: Path, right: int) -> bool:
        found = path.stat()
        return not found.st_mode & (right << 6 if found.st_uid == uid else right)

    for path in paths:
        real = Path(os.path.realpath(path))
        if os.path.exists(real) and lacks(real, 0o4):
            return real
        for parent in (real, *real.parents):
            if parent in entered:
                break
            entered.add(parent)
            if parent.is_dir() and lacks(parent, 0o1):
                return parent
    return None


def become(uid: int, *, read_everything: bool) -> None:
    """From root to `uid` (and the gid of that number) for good, with no capability.

    `read_everything` keeps CAP_DAC_READ_SEARCH, so that a Python below a closed home still imports;
    Landlock's allow-list bounds what it can read. Raises SandboxFault where root may not do this.
    """
    kept = 1 << CAP_DAC_READ_SEARCH if read_everything else 0
    if kept & ~_permitted():
        raise SandboxFault(
            "Python lies in a closed folder and CAP_DAC_READ_SEARCH is missing: move it"
        )
    _drop_bounding(kept)
    prctl(PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise SandboxFault(
            f"cannot become uid {uid} ({error.strerror}): use a mapped uid, or none"
        ) from error
    _set_capabilities(kept)
    if kept:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH)
    prctl(PR_SET_KEEPCAPS, 0)


def drop_capabilities() -> None:
    """Give up every capability, also those a user namespace brought."""
    _drop_bounding(0)
    _set_capabilities(0)


def stay_dumpable() -> None:
    """Keep /proc/self ours after the uid change.

    A process that is not dumpable has its /proc entries owned by root: uid_map cannot be written,
    and libraries cannot name their threads. It would only keep out processes of the same uid, and
    those are the candidate's own tree (own uid), or refused by Landlock and seccomp (shared uid).
    """
    prctl(PR_SET_DUMPABLE, 1)


def die_with(parent_pid: int) -> None:
    """SIGKILL when the parent ends; set after the uid change, which clears it (prctl(2)).

    Covers this process only, not its children: the supervisor kills the group.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SandboxFault(f"parent {parent_pid} has ended")


def protected(pid: int) -> list[int]:
    """The process, its parents, and the groups of all of these, whose leaders need not be among
    them: a shell's background job has the group of a process that may have ended.
    """
    found = ancestors(pid)
    for process in list(found):
        with contextlib.suppress(ProcessLookupError):
            group = os.getpgid(process)
            if group > 1 and group not in found:
                found.insert(1, group)
    return found


def ancestors(pid: int) -> list[int]:
    """The process and its parents, nearest first, without init."""
    line = []
    while pid > 1:
        line.append(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break  # hidden, or ended meanwhile
        # The command in parentheses may itself contain spaces and parentheses (proc(5)).
        pid = int(stat.rpartition(")")[2].split()[1])
    return line


def _permitted() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    raise SandboxFault("/proc/self/status has no CapPrm line: is /proc mounted?")


def _drop_bounding(kept: int) -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if not kept >> capability & 1:
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except PermissionError:
                # Without CAP_SETPCAP; no_new_privs alone then keeps exec from regaining any.
                return


def _set_capabilities(kept: int) -> None:
    header = ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), 8)
    # effective, permitted, inheritable: low words, then high words (all below 32 here)
    sets = ctypes.create_string_buffer(struct.pack("=6I", kept, kept, kept, 0, 0, 0), 24)
    checked(libc().capset(header, sets), "capset")
