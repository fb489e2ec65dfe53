"""The C library's raw `syscall` and `prctl`, with errno turned into OSError."""

from __future__ import annotations

import ctypes
import functools
import os

# include/uapi/linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library this process runs on."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, call: str) -> int:
    """`result`, or OSError from errno where it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)
    return result


def syscall(number: int, *args: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """A system call by number; integers travel as C longs."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return checked(int(libc().syscall(ctypes.c_long(number), *words)), f"syscall {number}")


def prctl(option: int, *args: int) -> int:
    """prctl(2), its unused arguments zero as newer options demand."""
    words = [ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0)[:4]]
    return checked(int(libc().prctl(ctypes.c_int(option), *words)), f"prctl {option}")
