"""What a hostile process tries against its supervisor: each attempt as a function of where it is.

Every attempt is harmless where it succeeds: signal 0, priorities and limits of a process that was
made to be attacked, files of one byte.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox.walls.kernel import syscall
from sandbox.walls.seccomp import ARCHITECTURES, DENIED
from tests.sandbox.walls.host import outcome

SECRET = b"the supervisor's secret"
PIDFD_OPEN, PIDFD_SEND_SIGNAL = 434, 424
PTRACE_SEIZE = 0x4206


@dataclass(frozen=True)
class Target:
    """Where the supervisor is and what it owns."""

    supervisor: int
    neighbour: int
    """Another process that the supervisor started."""
    address: int
    """Of SECRET in the supervisor's memory."""
    port: int
    """It listens on 127.0.0.1."""
    shared: Path
    """A folder that everyone may write."""
    private: Path
    """A folder of the supervisor's user alone, with a file `secret` in it."""
    name: str
    """Of files made in shared places."""
    note: Path
    """Where a process left behind says its pid."""


def attempt_all(target: Target) -> dict[str, str]:
    """`done`, or the error that refused it, by attempt."""
    return {name: outcome(act) for name, act in attempts(target).items()}


def attempts(target: Target) -> dict[str, Callable[[], object]]:
    """By kind and name, in the order to be tried."""
    them, neighbour = target.supervisor, target.neighbour
    return {
        "network: TCP": lambda: tcp(target.port),
        "network: UDP": lambda: udp(target.port),
        "network: netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "write: shared folder": lambda: (target.shared / target.name).write_text("x"),
        "write: private folder": lambda: (target.private / target.name).write_text("x"),
        "write: a file's mode": lambda: (target.private / "secret").chmod(0o644),
        "write: a file's times": lambda: os.utime(target.private / "secret", (1, 1)),
        "write: a file's attribute": lambda: os.setxattr(
            target.private / "secret", "user.warpsmith", b"x"
        ),
        "write: /tmp": lambda: Path("/tmp", target.name).write_text("x"),
        "write: /dev/shm": lambda: Path("/dev/shm", target.name).write_text("x"),
        "secrets: environment": lambda: Path(f"/proc/{them}/environ").read_bytes(),
        "secrets: files": (target.private / "secret").read_text,
        "secrets: passwords": Path("/etc/shadow").read_text,
        "memory: /proc": lambda: read_memory(them, target.address),
        "memory: process_vm_readv": lambda: read_remotely(them, target.address),
        "ptrace: supervisor": lambda: syscall(number_of("ptrace"), PTRACE_SEIZE, them, 0, 0),
        "ptrace: neighbour": lambda: syscall(number_of("ptrace"), PTRACE_SEIZE, neighbour, 0, 0),
        "signal: supervisor": lambda: os.kill(them, 0),
        "signal: its threads": lambda: syscall(number_of("tkill"), them, 0),
        "signal: by descriptor": lambda: by_descriptor(them),
        "signal: by folder": lambda: by_folder(them),
        "signal: its group": lambda: os.killpg(os.getpgid(them), 0),
        "signal: everyone": lambda: os.kill(-1, 0),
        "leave: session": os.setsid,
        "leave: session of a child": child_session,
        "leave: orphan": lambda: orphan(target.note),
        "starve: neighbour": lambda: os.kill(neighbour, 0),
        "starve: placement": lambda: os.sched_setaffinity(them, {0}),
        "starve: own placement": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        "starve: priority": lambda: os.setpriority(os.PRIO_PROCESS, them, 19),
        "starve: own priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        "starve: limits": lambda: resource.prlimit(neighbour, resource.RLIMIT_CPU, (1, 1)),
    }


def number_of(name: str) -> int:
    """Of a system call that the walls' filter names."""
    return DENIED[name][ARCHITECTURES[platform.machine()][0]]


def tcp(port: int) -> None:
    with socket.socket() as found:
        found.connect(("127.0.0.1", port))


def udp(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.sendto(b"x", ("127.0.0.1", port))


def read_memory(pid: int, address: int) -> None:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as found:
        found.seek(address)
        assert found.read(len(SECRET)) == SECRET


def read_remotely(pid: int, address: int) -> None:
    buffer = ctypes.create_string_buffer(len(SECRET))
    here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(SECRET))
    there = (ctypes.c_size_t * 2)(address, len(SECRET))
    places = ctypes.addressof(here), 1, ctypes.addressof(there), 1
    syscall(number_of("process_vm_readv"), pid, *places, 0)
    assert buffer.raw == SECRET


def by_descriptor(pid: int) -> None:
    syscall(PIDFD_SEND_SIGNAL, syscall(PIDFD_OPEN, pid, 0), 0, None, 0)


def by_folder(pid: int) -> None:
    """A process's folder in /proc serves as its descriptor (pidfd_send_signal(2))."""
    folder = os.open(f"/proc/{pid}", os.O_DIRECTORY)
    syscall(PIDFD_SEND_SIGNAL, folder, 0, None, 0)


def child_session() -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(code, "setsid")


def orphan(note: Path) -> None:
    """A grandchild whose parent ends at once; it would live for minutes."""
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            note.write_text(str(os.getpid()))
            os.execv("/bin/sleep", ["sleep", "300"])
        os._exit(0)
    os.waitpid(child, 0)
    while not (note.exists() and note.read_text()):
        os.sched_yield()
