"""The supervisor's end of one worker: requests with deadlines, and the end of its process tree."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sandbox.cache import TEMPORARY
from sandbox.errors import SandboxFault
from sandbox.machine import proc, processes
from sandbox.machine.channel import Channel, ChannelClosed, ChannelProtocol, ChannelTimeout
from sandbox.machine.cores import LaunchingCore
from sandbox.machine.logs import Log
from sandbox.machine.slots import Slot
from sandbox.machine.storage import Disk
from sandbox.observation import Failure, FailureKind

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""For the zygote to import torch: 1.4 s here, 4 s on a GPU machine, far longer on a cold disk."""


WEIGHED_EVERY_S = 0.25
"""How often a worker beside a timing is weighed: each look reads every process of the machine."""


class WorkerFailed(Exception):
    """A worker did not answer as its harness would; carries the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.stage}: {failure.kind.value}: {failure.message[:200]}")
        self.failure = failure


class Silence(Protocol):
    """What keeps timed regions quiet (sandbox/machine/quiet.py)."""

    def noise(self) -> contextlib.AbstractContextManager[None]: ...


class Parent(Protocol):
    """The process that workers are forked from."""

    device: str
    launching_core: LaunchingCore | None

    @property
    def pid(self) -> int | None:
        """None once it has died."""
        ...

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """A dead worker's raw wait status, or None if it is not known."""
        ...


class Worker:
    """One forked process. Every request has a deadline; a worker that fails is killed with its
    tree.
    """

    memory_limit_bytes = 8 << 30
    arena_bytes = 0
    """Of host arenas shared with it, which are not charged to it."""
    trusted = False
    """Whether it runs the reference."""
    left_nothing = False
    """Set once it is closed and whatever it had started has ended: its uid was its own."""
    quiet: Silence | None = None
    """Set while it works beside what is timed: looking at its memory must wait then."""

    def __init__(
        self,
        zygote: Parent,
        pid: int,
        channel: Channel,
        scratch: Path,
        slot: Slot | None,
        logs: tuple[Log, Log],
    ) -> None:
        self.pid = pid
        self.scratch = scratch
        self.walls: dict[str, Any] = {}
        self._zygote = zygote
        self._channel = channel
        self._born_of = zygote.pid
        self._slot = slot
        self._uid = None if slot is None else slot.uid
        self._logs = logs
        self._disk = Disk(scratch)
        self._alive = True
        self._weighed_s = 0.0
        self._frozen = False
        self._on_host = zygote.device == "cpu"
        self._stage = "load"
        """Of the last request."""
        self._later: tuple[str, float] | None = None
        """Stage and seconds of an answer that is still to be read."""

    @property
    def living(self) -> bool:
        """Its zygote lives and it has not ended."""
        return self._zygote.pid == self._born_of and proc.count_processes(self.pid) > 0

    @property
    def core(self) -> LaunchingCore | None:
        """Where it launches what is timed; None on the CPU, and where cores are few."""
        return self._zygote.launching_core

    def limit(self, memory_bytes: int, log_bytes: int) -> None:
        """Other limits than it was started with."""
        self.memory_limit_bytes = memory_bytes
        for log in self._logs:
            log.limit(log_bytes)

    def furnish(self, folders: Sequence[tuple[Path, str]]) -> None:
        """Copy folders into its scratch folder, each with its place there, before it runs what
        they are for; files that it has stay as they are.
        """
        furnish(self.scratch, folders, self._uid)

    def greet(self) -> None:
        """Wait for the hello that says the walls are up."""
        start = time.perf_counter()
        try:
            self.walls = self._channel.receive(START_TIMEOUT_S)["walls"]
            logger.debug("%d up in %.1f ms", self.pid, (time.perf_counter() - start) * 1e3)
        except (ChannelClosed, ChannelTimeout, ChannelProtocol) as error:
            words = self.stderr()
            self.close()
            raise SandboxFault(f"a worker did not start: {error} {words}".strip()) from error

    def request(
        self, op: str, *, stage: str, timeout_s: float, fds: Sequence[int] = (), **fields: Any
    ) -> dict[str, Any]:
        """One round trip; raises WorkerFailed (and kills the tree) when no proper reply comes."""
        start = time.perf_counter()
        self.send(op, stage=stage, fds=fds, **fields)
        reply = self.reply(stage=stage, timeout_s=timeout_s)
        logger.debug("%d %s %s: %.1f ms", self.pid, stage, op, (time.perf_counter() - start) * 1e3)
        return reply

    def send(self, op: str, *, stage: str, fds: Sequence[int] = (), **fields: Any) -> None:
        if self._later is not None:
            due, limit_s = self._later
            self._later = None
            self.reply(stage=due, timeout_s=limit_s)
        self._stage = stage
        try:
            self._channel.send({"op": op, **fields}, fds)
        except ChannelClosed:
            raise self._died(stage) from None
        except ChannelProtocol as error:  # ours: a task whose text is larger than a frame
            raise SandboxFault(f"{stage}: {error}") from error

    def reply(
        self, *, stage: str, timeout_s: float, asleep_s: float = 0.0, awake_s: float = 0.0
    ) -> dict[str, Any]:
        """What it answers; for `awake_s` seconds we look for that without sleeping, once
        `asleep_s` are over.
        """
        try:
            body = self._channel.receive(timeout_s, self._watch, asleep_s=asleep_s, awake_s=awake_s)
        except ChannelTimeout:
            raise self._failed(
                stage, FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s"
            ) from None
        except ChannelClosed:
            raise self._died(stage) from None
        except ChannelProtocol as error:
            raise self._failed(stage, FailureKind.PROTOCOL, str(error)) from None
        except _TooMuchMemory as error:
            raise self._failed(stage, FailureKind.MEMORY, str(error)) from None
        if isinstance(body, dict) and isinstance(body.get("ok"), dict):
            return dict(body["ok"])
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            raise WorkerFailed(_claimed(stage, body["error"]))
        raise self._failed(stage, FailureKind.PROTOCOL, "a reply that is no reply")

    def answers(self) -> bool:
        """Whether there is one to read."""
        return self._channel.readable()

    def answers_later(self, *, stage: str, timeout_s: float) -> None:
        """What it answers to the last request is read before the next one is sent."""
        self._later = (stage, timeout_s)

    def place(self) -> None:
        """Give the worker's threads their cores for what is timed: on a GPU's host the core that
        launches, on the CPU one each.
        """
        if self.core is not None:
            processes.place(self.pid, self.core.number)
        elif self._on_host:
            processes.spread_threads(self.pid)

    def freeze(self) -> None:
        """Stop the whole process tree, so that it cannot disturb a measurement."""
        processes.freeze_tree(self.pid, threads=self._on_host)
        self._frozen = True

    def thaw(self) -> float:
        """Let it go on, and say when by the clock; raises WorkerFailed, and kills the tree, where a
        candidate's has gone on before.
        """
        woken = self._frozen and not self.trusted and processes.woken(self.pid)
        self._frozen = False
        if woken:
            raise self._failed(self._stage, FailureKind.AWAKE, "it went on while it was stopped")
        now = time.perf_counter()
        processes.thaw_tree(self.pid)
        return now

    def pause(self, *, surely: bool) -> None:
        """Freeze, and let the time not count against what was asked of the worker; unless
        `surely`, whatever does not stand still at once goes on for a while.
        """
        if not self._alive:
            return
        self._channel.stop_clock()
        if surely:
            processes.freeze_tree(self.pid, blocked=True, threads=self._on_host)
        else:
            processes.stop_tree(self.pid)

    def resume(self) -> None:
        if self._alive:
            self.thaw()
            self._channel.start_clock()

    def stdout(self) -> str:
        return self._logs[0].text()

    def stderr(self) -> str:
        return self._logs[1].text()

    def close(self) -> None:
        """Kill the tree, reap it, remove its scratch folder."""
        if not self._alive:
            return
        self._alive = False
        processes.kill_tree(self.pid, self._uid)
        self.left_nothing = self._uid is not None
        self._channel.close()
        self._zygote.wait(self.pid, 0.0)
        if self._slot is not None:
            self._slot.close()
        remove_tree(self.scratch)

    def _watch(self) -> None:
        now_s = time.monotonic()
        if self.quiet is not None and now_s < self._weighed_s + WEIGHED_EVERY_S:
            return
        self._weighed_s = now_s
        with self._noise():
            used = proc.tree_memory_bytes(self.pid, self.arena_bytes, self.memory_limit_bytes)
        limit = self.memory_limit_bytes >> 20
        if used > self.memory_limit_bytes:
            raise _TooMuchMemory(f"{used >> 20} MiB of host memory; the limit is {limit} MiB")
        stored = self._disk.exceeds(self.memory_limit_bytes, lambda: proc.members(self.pid))
        if stored is not None:
            raise _TooMuchMemory(f"{stored >> 20} MiB in files; the limit is {limit} MiB")

    def _died(self, stage: str) -> WorkerFailed:
        status = self._zygote.wait(self.pid, 2.0)
        if status is None and self._zygote.pid != self._born_of:
            raise SandboxFault("the zygote died, and its workers with it")
        if status is None:
            words = "the process ended"
        elif os.WIFSIGNALED(status):
            words = f"killed by {signal_name(os.WTERMSIG(status))}"
        else:
            words = f"exited with code {os.WEXITSTATUS(status)} before it replied"
        return self._failed(stage, FailureKind.DIED, words)

    def _noise(self) -> contextlib.AbstractContextManager[None]:
        quiet = self.quiet
        return contextlib.nullcontext() if quiet is None else quiet.noise()

    def _failed(self, stage: str, kind: FailureKind, message: str) -> WorkerFailed:
        with self._noise():
            processes.kill_tree(self.pid, self._uid)
        return WorkerFailed(Failure(stage, kind, message=message))


class _TooMuchMemory(Exception):
    pass


def furnish(scratch: Path, folders: Sequence[tuple[Path, str]], uid: int | None) -> None:
    """Copy folders into a scratch folder, for the slot's own uid."""
    for source, name in folders:
        if not source.is_dir():
            continue
        shutil.copytree(
            source,
            scratch / name,
            symlinks=True,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(TEMPORARY),
            copy_function=_copy_new,
        )
        if uid is not None:
            for path in [source, *source.rglob("*")]:
                with contextlib.suppress(FileNotFoundError):  # what is not whole was not copied
                    place = scratch / name / path.relative_to(source)
                    os.chown(place, uid, uid, follow_symlinks=False)


def _copy_new(source: str, target: str) -> str:
    return target if os.path.lexists(target) else str(shutil.copy2(source, target))


def remove_tree(folder: Path) -> None:
    """Also one that is nested deeper than Python's own removal can follow."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, stderr=subprocess.DEVNULL)


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _claimed(stage: str, error: dict[str, Any]) -> Failure:
    listed = error.get("types")
    types = tuple(_text(t)[:100] for t in (listed if isinstance(listed, list) else [])[:16])
    message, trace = _text(error.get("message", ""))[:4000], _text(error.get("trace", ""))[-4000:]
    return Failure(stage, FailureKind.CLAIMED, types, message, trace)


def _text(claimed: object) -> str:
    """As UTF-8 can store it: JSON may carry lone surrogates."""
    return str(claimed).encode(errors="replace").decode()
