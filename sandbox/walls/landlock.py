"""File, TCP, signal and abstract-socket walls (Documentation/userspace-api/landlock.rst).

Does not cover stat(2), chdir(2), sockets that have a path (seccomp denies connect), nor descriptors
that were open before. Rights newer than the kernel's ABI are left out, not emulated. Constants:
include/uapi/linux/landlock.h (Linux 6.12). System call numbers are equal on every machine.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from sandbox.walls.kernel import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
READ = EXECUTE | READ_FILE | READ_DIR
USE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""All that a rule on something that is not a directory may name."""
MAKE_CHAR, MAKE_BLOCK = 1 << 6, 1 << 11

RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Every file right up to MAKE_SYM; + REFER; + TRUNCATE; + IOCTL_DEV."""
NET_BIND_TCP, NET_CONNECT_TCP = 1 << 0, 1 << 1
"""ABI 4."""
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1
SCOPE_ABI = 6


def abi() -> int:
    """The kernel's Landlock version; raises OSError (ENOSYS, EOPNOTSUPP) where it has none."""
    return syscall(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION)


def handled_rights(version: int) -> int:
    """The file rights that a kernel of this ABI can deny."""
    return RIGHTS_BY_ABI[max(known for known in RIGHTS_BY_ABI if known <= version)]


def restrict(
    readable: Iterable[Path], writable: Iterable[Path], usable: Iterable[Path], version: int
) -> None:
    """Leave this thread and its later children these paths, no TCP and no outward signal.

    In `usable`, what exists can be read, written and sent ioctls, and nothing can be made. Needs
    no_new_privs. A path that does not exist is skipped.
    """
    handled = handled_rights(version)
    network = NET_BIND_TCP | NET_CONNECT_TCP if version >= 4 else 0
    scopes = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= SCOPE_ABI else 0
    words = 1 if version < 4 else 2 if version < SCOPE_ABI else 3
    attributes = struct.pack("=QQQ", handled, network, scopes)[: 8 * words]
    ruleset = syscall(CREATE_RULESET, _buffer(attributes), len(attributes), 0)
    try:
        for rights, paths in (
            (READ, readable),
            (handled & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV), writable),
            (USE, usable),
        ):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # PermissionError: an ordinary user could not have read it anyway.
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)  # packed struct landlock_path_beneath_attr
        syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, _buffer(rule), 0)
    finally:
        os.close(descriptor)


def _buffer(content: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(content, len(content))
