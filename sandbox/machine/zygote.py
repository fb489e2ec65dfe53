"""The warm process that workers are forked from: torch imported, no operator run, no CUDA context.

Run as `python -m sandbox.machine.zygote FD [MODULE...]`. A fork from here is ready in milliseconds,
where a fresh interpreter needs 1.4-4 s to import torch. No operator may run here: an OpenMP pool or
a CUDA context does not survive a fork. Ends, with all its workers, at end of file on its control
socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandbox.machine.channel import Channel, ChannelClosed
from sandbox.machine.parent import tied_to
from sandbox.machine.processes import adopt_orphans
from sandbox.walls.devices import keep_to
from sandbox.walls.enclose import Enclosure, enclose
from sandbox.walls.folders import python_folders


def main(fd: int, imports: Sequence[str]) -> None:
    """Serve fork requests on control socket `fd` until the supervisor goes away."""
    gc.disable()  # until all is there that stays: it took a tenth of the imports
    with tied_to(fd):
        preload(imports)
        python_folders()  # remembered for every worker
    gc.freeze()  # a collection in a worker took 0.1 s (H200), and copied the pages it looked at
    gc.enable()
    adopt_orphans()
    control = Channel(socket.socket(fileno=fd), "zygote", takes_fds=True)
    control.send({"ready": os.getpid()})
    workers: dict[int, int | None] = {}
    while True:
        try:
            request = control.receive()
        except ChannelClosed:
            break
        if request["op"] == "spawn":
            fds = control.take_fds()
            request["parent"] = os.getpid()
            pid = os.fork()
            if pid == 0:
                become_worker(request, fds, fd)
            for each in fds:
                os.close(each)
            workers[pid] = None
            control.send({"pid": pid})
        elif request["op"] == "wait":
            control.send({"status": reap(request["pid"], workers, request["timeout_s"])})
        elif request["op"] == "probe":
            control.send({"works": forks_have_cuda([Path(path) for path in request["devices"]])})
    for pid in workers:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def preload(imports: Sequence[str]) -> None:
    """Import what every worker needs; nothing here may start a thread or touch a device."""
    import torch

    # Libraries' own threads do not reach a fork; whoever looks at a campaign should not wonder.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    # Behind walls torch asks the driver for a GPU that is named by its UUID.
    warnings.filterwarnings("ignore", "Can't initialize NVML", UserWarning)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # "no CUDA runtime"
    # cpp_extension asks for a device when it is imported, which initialises the driver, and a
    # process forked after that has no CUDA.
    available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    import torch.utils.cpp_extension

    torch.cuda.is_available = available
    import sandbox.worker.main  # noqa: F401

    for name in imports:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  who needs it imports it again, and fails alone
            sys.stderr.write(f"{name} cannot be imported ahead: {error}\n")
    if imports and torch.version.cuda is not None and not forks_have_cuda():
        # One of them touched the driver: start over without them.
        os.execv(sys.executable, [sys.executable, "-m", "sandbox.machine.zygote", sys.argv[1]])
    if torch.version.cuda is not None:
        for name in ("cupy", "triton", "triton.language"):
            with contextlib.suppress(ImportError):
                __import__(name)
        complete_cupy()
    complete_triton()


def complete_triton() -> None:
    """Let it hash its own files now, 400 MB, which it does in every process that compiles."""
    cache = sys.modules.get("triton.runtime.cache")
    with contextlib.suppress(Exception):  # other versions keep it elsewhere
        if cache is not None:
            cache.triton_key()


def complete_cupy() -> None:
    """Make it fit for workers; it is imported already, if at all."""
    from sandbox.worker import nvrtc

    cupy = sys.modules.get("cupy")
    if cupy is not None:
        nvrtc.complete(cupy.cuda.compiler, cupy.cuda.driver.get_build_version() // 1000)


def forks_have_cuda(devices: Sequence[Path] | None = None) -> bool:
    """Whether a process forked now could use CUDA; true where there is no device to use. `devices`:
    whether it can with these files alone, of which a context tells.
    """
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return True
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            import torch

            if devices is None:
                torch.cuda.init()
            else:
                keep_to(devices)
                torch.zeros(1, device="cuda")
            code = 0
        finally:  # whatever it was, a forked child never runs its parent's loop
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def become_worker(request: dict[str, Any], fds: list[int], control_fd: int) -> None:
    """In the child: own session, own descriptors, walls up, then serve."""
    from sandbox.worker.main import serve

    code = 70
    try:
        os.setsid()
        os.close(control_fd)
        channel_fd, out_fd, err_fd = fds
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out_fd, 1), (err_fd, 2)):
            os.dup2(source, target)
            os.close(source)
        # A killed worker flushes nothing.
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        keep = channel_fd
        os.closerange(3, keep)
        os.closerange(keep + 1, 4096)
        channel = Channel(socket.socket(fileno=channel_fd), request["nonce"], takes_fds=True)
        scratch = Path(request["scratch"])
        settle(scratch, request["environment"])
        walls = enclosed(request)
        channel.send({"hello": os.getpid(), "walls": walls})
        code = 0
        serve(channel, request["role"], scratch)
    except BaseException as error:  # noqa: BLE001  a forked child must never run its parent's loop
        sys.stderr.write(f"worker failed to start: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def settle(scratch: Path, environment: dict[str, str]) -> None:
    """Point every cache and temporary folder into the scratch folder."""
    os.environ.update(environment)
    os.chdir(scratch)
    # tempfile caches its folder in the zygote: without this NVRTC through cupy writes to the old
    # one.
    tempfile.tempdir = None


def enclosed(request: dict[str, Any]) -> dict[str, Any]:
    """Raise the walls and say which hold."""
    limits = request["limits"]
    walls = enclose(
        Enclosure(
            scratch=Path(request["scratch"]),
            readable=tuple(map(Path, request["readable"])),
            uid=request["uid"],
            devices=tuple(map(Path, request["devices"])),
            cpu_seconds=limits["cpu_seconds"],
            file_bytes=limits["file_bytes"],
            processes=limits["processes"],
            address_space_bytes=None,
            parent_pid=request["parent"],
        )
    )
    return {
        "grade": walls.grade.value,
        "layers": list(walls.layers),
        "missing": list(walls.missing),
    }


def reap(pid: int, workers: dict[int, int | None], timeout_s: float) -> int | None:
    """The wait status of a worker that died; None while it is still being torn down.

    Never blocks for long: the driver may take a while to unmap a killed worker's context, and the
    next fork must not wait for that. Orphans are reaped on the way.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            done, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return workers.pop(pid, None)
        if done in workers:
            workers[done] = raw
        if workers.get(pid) is not None:
            return workers.pop(pid)
        if done == 0:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
