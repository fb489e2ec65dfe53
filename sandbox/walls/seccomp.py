"""The system calls a candidate is refused: a seccomp BPF program assembled by hand (seccomp(2)).

A deny list, because CUDA, compilers and OpenMP run inside: it closes ways out that the other walls
leave (inet and netlink sockets, connect, namespaces, tracing, CPU placement), not the kernel's
whole surface. x86_64 and aarch64 only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
from collections.abc import Sequence

from sandbox.walls.kernel import PR_SET_PDEATHSIG, syscall

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine -> its column below, and AUDIT_ARCH_* (include/uapi/linux/audit.h)."""

DENIED = {
    # Other processes' memory, descriptors and identity.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Leaving the process group, which is how the supervisor finds the tree.
    "setsid": (112, 157),
    # Namespaces, mounts and file handles (open_by_handle_at walks past every path rule).
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    # Kernel surface that no kernel author needs. io_uring would also bypass this filter.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "personality": (135, 92),
    "syslog": (103, 116),
    "acct": (163, 89),
    # Placement and priority: both sides of a timing share them.
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # IPC objects that outlive the process, and sockets that have a path.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "connect": (42, 203),
    # Signals to a thread or process by ways that carry no process id to look at.
    "tkill": (200, 130),
    "pidfd_send_signal": (424, 424),
    # A signal of one's choice at a set time: SIGCONT wakes a process that the supervisor stopped.
    "timer_create": (222, 107),
    # What expires or ends while a process is stopped wakes whoever watches it: two thousand epoll
    # instances that watched each of 500 timers took half of the reference's time.
    "timerfd_create": (283, 85),
    "io_setup": (206, 0),
}
"""Refused whatever the arguments: number in x86 asm/unistd_64.h, then in asm-generic/unistd.h."""

ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
"""Refused where a process has the supervisor's user and no mounts of its own: Landlock bounds what
a file holds, not its mode, times and attributes, which its owner may change wherever it lies. None
where a machine has no such call.
"""

SETPGID, SOCKET, SOCKETPAIR = (109, 154), (41, 198), (53, 199)
CLONE, CLONE3, PRCTL, PRLIMIT64, IOCTL = (56, 220), (435, 435), (157, 167), (302, 261), (16, 29)
SECCOMP, FCNTL = (317, 277), (72, 25)
NAMING_A_PROCESS = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
}
"""Whose first argument says which process, or minus which group; -1 is everyone."""
MOST_PROTECTED = 32
"""The nearest; a jump spans 255 instructions."""

NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (include/uapi/linux/sched.h)."""
F_SETSIG = 10
"""fcntl(2): a signal of one's choice at an event (asm-generic/fcntl.h)."""
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
"""Typing into a terminal (asm-generic/ioctls.h)."""
SOCKET_TYPE_MASK = 0xF
"""Below SOCK_NONBLOCK and SOCK_CLOEXEC (include/linux/net.h)."""
X32_SYSCALL_BIT = 0x40000000
"""arch/x86/include/uapi/asm/unistd.h: a second numbering under the same AUDIT_ARCH."""

# include/uapi/linux/bpf_common.h: class | mode or operation | source
LOAD_WORD, AND = 0x00 | 0x20, 0x04 | 0x50
JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_BITS = 0x05 | 0x10, 0x05 | 0x30, 0x05 | 0x40
RETURN = 0x06
# include/uapi/linux/seccomp.h
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
DENY = ERRNO | errno.EPERM
PRETEND_SUCCESS = ERRNO | 0
SET_MODE_FILTER, SPEC_ALLOW = 1, 1 << 2
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false (in instructions skipped), operand."""


def install(protected: Sequence[int] = (), *, owns_files: bool = False) -> None:
    """Filter this thread and its later children; needs no_new_privs.

    `protected` are processes that may not be signalled, nor a group of that number: the supervisor,
    where no other wall keeps a process of its own user from that. A pid is taken as it is here.

    `owns_files`: its user has files that no other wall keeps it from, whose attributes it may not
    change; nor then those of its own, so that linkers make no file executable.

    Raises OSError with ENOSYS on a machine without a table, or what seccomp(2) says.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call table for {machine}")
    code = b"".join(
        struct.pack("=HBBI", *i) for i in program(machine, protected, owns_files=owns_files)
    )  # struct sock_filter
    filters = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(filters))  # struct sock_fprog
    number = SECCOMP[ARCHITECTURES[machine][0]]
    # Without SPEC_ALLOW kernels before 5.16 slow the whole process down, which a timing would see.
    syscall(number, SET_MODE_FILTER, SPEC_ALLOW, ctypes.create_string_buffer(header, len(header)))


def program(
    machine: str,
    protected: Sequence[int] = (),
    *,
    owns_files: bool = False,
) -> list[Instruction]:
    """The filter for one machine. Calls it does not inspect fall through to ALLOW."""
    column, architecture = ARCHITECTURES[machine]
    code: list[Instruction] = [
        (LOAD_WORD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD_WORD, 0, 0, NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        code += [(JUMP_GREATER_EQUAL, 0, 1, X32_SYSCALL_BIT), (RETURN, 0, 0, DENY)]
    for numbers in DENIED.values():
        code += _when(numbers[column], [(RETURN, 0, 0, DENY)])
    attributes = [numbers[column] for numbers in ATTRIBUTES.values()] if owns_files else []
    for number in attributes:
        if number is not None:
            code += _when(number, [(RETURN, 0, 0, DENY)])
    # glibc falls back from clone3, whose flags lie behind a pointer, to clone.
    code += _when(CLONE3[column], [(RETURN, 0, 0, ERRNO | errno.ENOSYS)])
    # Ninja gives each compiler its own group and dies where that fails; the group just stays ours.
    code += _when(SETPGID[column], [(RETURN, 0, 0, PRETEND_SUCCESS)])
    named = [-1, *protected[:MOST_PROTECTED], *(-pid for pid in protected[:MOST_PROTECTED])]
    refused = [(JUMP_EQUAL, 0, 1, pid & 0xFFFFFFFF) for pid in named]
    body: list[Instruction] = [(LOAD_WORD, 0, 0, _argument(0))]
    for test in refused:
        body += [test, (RETURN, 0, 0, DENY)]
    for numbers in NAMING_A_PROCESS.values():
        code += _when(numbers[column], [*body, (RETURN, 0, 0, ALLOW)])
    code += _when(CLONE[column], _deny_if(JUMP_BITS, 0, NAMESPACE_FLAGS))
    code += _when(PRCTL[column], _deny_if(JUMP_EQUAL, 0, PR_SET_PDEATHSIG))
    code += _when(PRLIMIT64[column], _allow_only(0, 0))
    code += _when(
        IOCTL[column], _deny_if(JUMP_EQUAL, 1, TIOCSTI)[:-1] + _deny_if(JUMP_EQUAL, 1, TIOCLINUX)
    )
    code += _when(FCNTL[column], _deny_if(JUMP_EQUAL, 1, F_SETSIG))
    # A datagram socket can name a receiver in each message, behind a pointer: streams only.
    stream = [
        *_allow_only(0, socket.AF_UNIX)[:-1],
        (LOAD_WORD, 0, 0, _argument(1)),
        (AND, 0, 0, SOCKET_TYPE_MASK),
        (JUMP_EQUAL, 2, 0, socket.SOCK_STREAM),
        (JUMP_EQUAL, 1, 0, socket.SOCK_SEQPACKET),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    ]
    code += _when(SOCKET[column], stream)
    code += _when(SOCKETPAIR[column], stream)
    return [*code, (RETURN, 0, 0, ALLOW)]


def _when(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """`body` (which returns) for one system call; the accumulator holds the number around it."""
    return [(JUMP_EQUAL, 0, len(body), number), *body]


def _argument(index: int) -> int:
    """Offset of the low half of an argument: both machines are little-endian."""
    return ARGUMENTS_OFFSET + 8 * index


def _deny_if(test: int, index: int, operand: int) -> list[Instruction]:
    return [
        (LOAD_WORD, 0, 0, _argument(index)),
        (test, 0, 1, operand),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    ]


def _allow_only(index: int, operand: int) -> list[Instruction]:
    return [
        (LOAD_WORD, 0, 0, _argument(index)),
        (JUMP_EQUAL, 1, 0, operand),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    ]
