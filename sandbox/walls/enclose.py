"""Puts the walls up around the calling process, for good.

Called once by a freshly forked, single-threaded worker before it touches candidate code. The order
matters: namespaces and rules need root's rights, the uid change clears the parent-death signal,
seccomp forbids what the steps before it use.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sandbox.errors import SandboxFault
from sandbox.walls import folders, landlock, limits, namespaces, privileges, seccomp


class Layer(StrEnum):
    """One wall; each holds or is missing on its own."""

    NETWORK = "network namespace"
    FOLDERS = "private /tmp and /dev/shm"
    LANDLOCK = "landlock files"
    SCOPE = "landlock signal scope"
    SECCOMP = "seccomp"
    OWN_UID = "own uid"
    PROCESSES = "process limit"


class Grade(StrEnum):
    """How much an evaluation's isolation can be trusted."""

    FULL = "full"
    """Namespaces made by root, Landlock, seccomp and a uid per slot."""
    UNPRIVILEGED = "unprivileged"
    """Landlock with signal scope, and seccomp."""
    WEAK = "weak"
    """Anything less: for trusted candidates only."""


@dataclass(frozen=True)
class Walls:
    """The layers that hold, and those that do not with the reason."""

    grade: Grade
    layers: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Enclosure:
    """What one walled process tree is left with."""

    scratch: Path
    """Made by `prepare_scratch`; the only place it can write."""
    readable: tuple[Path, ...]
    """Beyond the system, Python and packages already imported."""
    uid: int | None
    """The slot's own user, where we are root; None keeps the present one."""
    devices: tuple[Path, ...]
    """The files of a GPU and its driver that can be opened."""
    cpu_seconds: int
    """Per process, not for the tree."""
    file_bytes: int
    processes: int
    """Processes and threads."""
    address_space_bytes: int | None
    """None where CUDA runs: it reserves a huge address space."""
    parent_pid: int
    """The process whose end ends this one."""

    def __post_init__(self) -> None:
        if not self.scratch.is_absolute():
            raise ValueError(f"scratch is {self.scratch}; expected an absolute path")
        if self.uid == 0:
            raise ValueError("uid is 0; expected an unused ordinary uid, or None")


def enclose(enclosure: Enclosure, *, without: frozenset[Layer] = frozenset()) -> Walls:
    """Wall this process and its later children in; returns what holds, and why the rest does not.

    A layer the host refuses is reported, not raised. Raises SandboxFault where the process is in no
    state to be walled: several threads, a lost parent, a scratch not prepared, an unusable uid.
    `without` leaves layers out, to show what the others hold.
    """
    return _Builder(enclosure, without).build()


def grade_of(layers: frozenset[Layer]) -> Grade:
    """FULL needs every layer but the scope, which an own uid replaces."""
    if layers >= set(Layer) - {Layer.SCOPE}:
        return Grade.FULL
    alone = Layer.SCOPE in layers or Layer.OWN_UID in layers
    if {Layer.LANDLOCK, Layer.SECCOMP} <= layers and alone:
        return Grade.UNPRIVILEGED
    return Grade.WEAK


class _Builder:
    def __init__(self, enclosure: Enclosure, without: frozenset[Layer]) -> None:
        self.enclosure = enclosure
        self.without = without
        self.root = os.geteuid() == 0
        self.layers: list[Layer] = []
        self.missing: dict[Layer, str] = {}
        self.own_user_namespace = False
        self.imports = folders.python_folders()
        self.readable = (*folders.SYSTEM, *self.imports, *enclosure.readable)

    def build(self) -> Walls:
        e = self.enclosure
        self._check()
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        privileges.stay_dumpable()
        self._try(Layer.NETWORK, self._unshare)
        self._try(Layer.FOLDERS, self._cover)
        privileges.no_new_privileges()
        limits.limit_resources(e.cpu_seconds, e.file_bytes, e.address_space_bytes)
        self._try(Layer.LANDLOCK, self._restrict)
        self._change_user()
        self._limit_processes()
        privileges.stay_dumpable()
        privileges.die_with(e.parent_pid)
        os.environ.update(folders.scratch_environment(e.scratch))
        tempfile.tempdir = None
        os.chdir(e.scratch)
        self._try(Layer.SECCOMP, self._filter)
        missing = (
            f"{layer}: {self.missing.get(layer, 'needs Landlock')}"
            for layer in Layer
            if layer not in self.layers
        )
        return Walls(grade_of(frozenset(self.layers)), tuple(self.layers), tuple(missing))

    def _check(self) -> None:
        if len(os.listdir("/proc/self/task")) > 1:
            raise SandboxFault("walls need a single-threaded process: fork, then enclose first")
        if not (self.enclosure.scratch / "tmp").is_dir():
            raise SandboxFault(
                f"{self.enclosure.scratch} is not a scratch: call prepare_scratch before"
            )
        if not self.root and self.enclosure.uid not in (None, os.geteuid()):
            raise SandboxFault(f"only root can give a slot uid {self.enclosure.uid}; expected None")

    def _try(self, layer: Layer, build: Callable[[], None]) -> None:
        if layer in self.without:
            self.missing[layer] = "left out"
            return
        try:
            build()
        except OSError as error:
            self.missing[layer] = error.strerror or str(error)
        else:
            self.layers.append(layer)

    def _unshare(self) -> None:
        flags = namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS
        if self.root:
            namespaces.unshare(flags)
        else:
            namespaces.unshare_as_user(flags)
            self.own_user_namespace = True

    def _cover(self) -> None:
        if Layer.NETWORK not in self.layers:
            raise OSError("no mount namespace")
        scratch = self.enclosure.scratch
        covers = {target: scratch / name for target, name in folders.PRIVATE.items()}
        landlocked = self._has_landlock()
        if not landlocked:
            # Mounts do what they can of Landlock's part: the home is out of sight but for what
            # imports need.
            home = folders.coverable_home(self.readable)
            if home is not None:
                covers[home] = folders.make_empty(scratch)
        namespaces.cover(covers, self.readable, scratch)
        if not landlocked or not self._changes_user():
            # Nor does Landlock bound what a file's owner may do to its mode, times and attributes.
            # CUDA names its threads through /proc.
            shared = [target for target in folders.PRIVATE if target.is_dir()]
            namespaces.leave_writable(scratch, [*shared, Path("/proc")])

    def _changes_user(self) -> bool:
        uid = self.enclosure.uid
        return self.root and uid is not None and Layer.OWN_UID not in self.without

    def _has_landlock(self) -> bool:
        if Layer.LANDLOCK in self.without:
            return False
        try:
            landlock.abi()
        except OSError:
            return False
        return True

    def _restrict(self) -> None:
        version = landlock.abi()
        writable = [self.enclosure.scratch]
        if Layer.FOLDERS in self.layers:
            writable += folders.PRIVATE
        # cuInit names its threads through /proc/self/task/*/comm and fails with error 304 where it
        # cannot (measured: H200, driver 580). Not all of /proc: the supervisor may share our uid.
        own = Path(f"/proc/{os.getpid()}/task")
        usable = [*folders.DEVICES, own, *self.enclosure.devices]
        scoped = Layer.SCOPE not in self.without
        if not scoped:
            version = min(version, landlock.SCOPE_ABI - 1)
        landlock.restrict(self.readable, writable, usable, version)
        if version >= landlock.SCOPE_ABI:
            self.layers.append(Layer.SCOPE)
        else:
            kernel = f"kernel has Landlock ABI {version}, this needs {landlock.SCOPE_ABI}"
            self.missing[Layer.SCOPE] = kernel if scoped else "left out"

    def _change_user(self) -> None:
        uid, scratch = self.enclosure.uid, self.enclosure.scratch
        if uid is not None and self._changes_user():
            needed = (*self.imports, *self.enclosure.readable, scratch)
            closed = privileges.closed_to(uid, needed)
            privileges.become(uid, read_everything=closed is not None)
            self.layers.append(Layer.OWN_UID)
            if closed is not None and Layer.LANDLOCK not in self.layers:
                unbounded = f"{closed} is closed to others, so every file can be read"
                why = self.missing[Layer.LANDLOCK]
                self.missing[Layer.LANDLOCK] = f"{why}; {unbounded}: move Python out of it"
            return
        privileges.drop_capabilities()
        self.missing[Layer.OWN_UID] = f"runs as uid {os.getuid()}"

    def _filter(self) -> None:
        protected = privileges.protected(self.enclosure.parent_pid)
        bounded = not {Layer.OWN_UID, Layer.FOLDERS}.isdisjoint(self.layers)
        seccomp.install(protected, owns_files=not bounded)

    def _limit_processes(self) -> None:
        uid_is_ours = Layer.OWN_UID in self.layers or self.own_user_namespace
        if self.root and not uid_is_ours:
            # copy_process() in kernel/fork.c exempts the initial user.
            self.missing[Layer.PROCESSES] = "uid 0 is exempt"
            return
        limits.limit_processes(self.enclosure.processes, shared_uid=not uid_is_ours)
        self.layers.append(Layer.PROCESSES)
