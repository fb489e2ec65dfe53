"""Namespaces: a network with no interface, and private folders in place of /tmp and /dev/shm.

Not a PID namespace: that takes effect only after another fork, and the process group is the tree.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from sandbox.errors import SandboxFault
from sandbox.walls.folders import outermost
from sandbox.walls.kernel import checked, libc, syscall

# include/uapi/linux/sched.h
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
UNSHARE = {"x86_64": 272, "aarch64": 97}
"""asm/unistd_64.h, asm-generic/unistd.h; os.unshare is Python 3.12 and later."""
# include/uapi/linux/mount.h
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY = 1
MOUNT_SETATTR = 442
"""Equal on every machine (asm-generic/unistd.h); Linux 5.12, older than Landlock."""
# include/uapi/linux/fcntl.h
AT_FDCWD, AT_RECURSIVE = -100, 0x8000


def unshare(flags: int) -> None:
    """unshare(2); raises OSError where the kernel or its administrator refuses."""
    number = UNSHARE.get(platform.machine())
    if number is None:
        raise OSError(f"no system call number for {platform.machine()}")
    syscall(number, flags)


def unshare_as_user(flags: int) -> None:
    """`unshare` in a user namespace that maps this user to itself; leaves capabilities in it."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | flags)
    # user_namespaces(7): gid_map may be written without privilege only after this.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")


def cover(covers: dict[Path, Path], keep: Iterable[Path], scratch: Path) -> None:
    """Bind each source over its target.

    What `keep` names beneath a target stays where it was, read-only: Landlock adds up the rights of
    a path's parents, across mounts, and the target is writable. So does `scratch`, writable. Needs
    a mount namespace of our own. Raises SandboxFault where `keep` names a target or its parent
    (covering would do nothing), OSError where mounting is refused.
    """
    kept = [Path(os.path.realpath(path)) for path in keep]
    for target in covers:
        for path in kept:
            if target.is_relative_to(path):
                raise SandboxFault(
                    f"{path} cannot stay readable: {target} is private; name a folder in it"
                )
    _mount(None, Path("/"), MS_REC | MS_PRIVATE)
    for target, source in covers.items():
        if target.is_dir():
            inner = outermost(path for path in kept if path.is_relative_to(target))
            # Last, because it may lie in a folder that is kept.
            _cover(target, source, inner, [scratch] if scratch.is_relative_to(target) else [])


def _cover(target: Path, source: Path, kept: list[Path], writable: list[Path]) -> None:
    with ExitStack() as stack:
        held = []
        for path in kept + writable:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError):
                continue  # nothing that this user could have read
            stack.callback(os.close, descriptor)
            held.append((path, descriptor))
        folders = {path: path.is_dir() for path, _ in held}
        _mount(source, target, MS_BIND)
        for path, descriptor in held:
            # Made inside `source`: empty folders and files that serve as mount points.
            if folders[path]:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            _mount(Path(f"/proc/self/fd/{descriptor}"), path, MS_BIND | MS_REC)
            if path not in writable:
                _make_readonly(path)


def leave_writable(scratch: Path, mounts: Iterable[Path]) -> None:
    """Make every mount of this namespace read-only, but for `scratch` and these mount points, not
    those below them.

    In place of Landlock where the kernel has none, and for what Landlock leaves to a file's owner:
    its mode, times and attributes. Devices stay usable: a read-only mount does not stop writing to
    what they stand for.
    """
    _mount(scratch, scratch, MS_BIND)
    _make_readonly(Path("/"))
    for path in (scratch, *mounts):
        _set_attributes(path, 0, MOUNT_ATTR_RDONLY)


def _make_readonly(path: Path) -> None:
    """With every mount below; unlike a remount it keeps flags a user namespace may not drop."""
    _set_attributes(path, MOUNT_ATTR_RDONLY, 0, below=True)


def _set_attributes(path: Path, add: int, clear: int, *, below: bool = False) -> None:
    name = os.fsencode(path) + b"\0"
    attributes = struct.pack("=4Q", add, clear, 0, 0)  # struct mount_attr
    syscall(
        MOUNT_SETATTR,
        AT_FDCWD,
        ctypes.create_string_buffer(name, len(name)),
        AT_RECURSIVE if below else 0,
        ctypes.create_string_buffer(attributes, len(attributes)),
        len(attributes),
    )


def _mount(source: Path | None, target: Path, flags: int) -> None:
    origin = None if source is None else os.fsencode(source)
    checked(libc().mount(origin, os.fsencode(target), None, flags, None), f"mount {target}")
