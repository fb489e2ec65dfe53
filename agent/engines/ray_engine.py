"""The engine on Ray: one exclusive lane per GPU, or per node on the CPU; builds on any free core.

The only module that imports ray. Ray places work and notices lost nodes; hostile code never runs in
a Ray worker itself but in the processes of the evaluator there, so a lost actor is a lost machine,
not a bad kernel, and its job moves to another lane. A CPU lane reserves its node by Ray's own
`node:IP` resource, so that a second campaign waits. Nodes that join later are not used. Compiled
artefacts are shared between nodes only where the cache lies on a shared file system.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent.engines.engine import Build, Lane, LaneEngine, LocalLane, MakeEvaluator, build_with
from agent.engines.lanes import LaneLost, NoLane
from agent.engines.reaper import Reaper
from agent.types import Measured
from sandbox.cleanup import on_failure
from sandbox.doctor import gpu_count
from sandbox.errors import DeviceError, SandboxFault, WarpsmithError
from sandbox.many import ahead
from sandbox.types import Candidate, EvalConfig, Evaluation, Task

# Before the import: without it Ray 2.60 writes ~/.ray/auth_token and prints about it.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Else whatever is asked after its end, as by a lane that is still being opened, starts another Ray.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 100 << 20
"""Sources and evaluations are small; Ray's default is 30 % of the memory."""
START_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 5.0
KNOCK_S = 5.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What opens HTTP/2 and so gRPC, with settings that change nothing (RFC 9113, 3.4)."""
SETTINGS = 4
"""Type of the frame that answers it, in the frame's fourth byte."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
KIND = "accelerator_type:"
"""Begins the name of a node's resource that tells its GPUs."""


class LaneActor:
    """Lives in a Ray worker and holds the evaluator of its lane."""

    def __init__(self, make_evaluator: MakeEvaluator, threads: str | None) -> None:
        # Ray sets OMP_NUM_THREADS to the actor's cores; both engines must measure alike.
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = threads
        self._make_evaluator = make_evaluator

    def open(self) -> None:
        """Apart from the constructor, whose exceptions Ray reports as a dead actor."""
        self._lane = LocalLane.open(self._make_evaluator, 0)

    def environment(self) -> Mapping[str, str]:
        return self._lane.environment()

    def prepare(self, task: Task, config: EvalConfig) -> Measured:
        return self._lane.prepare(task, config)

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, to_beat: float | None
    ) -> Evaluation:
        return self._lane.evaluate(task, candidate, config, to_beat)

    def close(self) -> None:
        self._lane.close()


@dataclass
class RayLane:
    """Our side of a lane actor: blocking calls from several threads."""

    make_evaluator: MakeEvaluator
    options: dict[str, Any]
    made: list[RayLane]
    """To which it is added, for whoever has to end it."""
    opened: bool = field(default=False, init=False)
    _actor: Any = field(init=False)

    def __post_init__(self) -> None:
        lane = ray.remote(LaneActor).options(max_restarts=0, max_task_retries=0, **self.options)
        self._actor = lane.remote(self.make_evaluator, os.environ.get("OMP_NUM_THREADS"))
        self.made.append(self)
        try:
            with on_failure(self.end):
                _get(self._actor.open.remote(), timeout_s=START_TIMEOUT_S)
        except GetTimeoutError as error:
            raise DeviceError(
                f"Ray placed no lane within {START_TIMEOUT_S:.0f} s; another campaign may hold it"
            ) from error
        self.opened = True

    def end(self) -> None:
        ray.kill(self._actor)

    def environment(self) -> Mapping[str, str]:
        found = self._answer(self._actor.environment.remote())
        assert isinstance(found, Mapping)
        return found

    def prepare(self, task: Task, config: EvalConfig) -> Measured:
        measured = self._answer(self._actor.prepare.remote(task, config))
        assert isinstance(measured, Measured)
        return measured

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, to_beat: float | None
    ) -> Evaluation:
        evaluation = self._answer(self._actor.evaluate.remote(task, candidate, config, to_beat))
        assert isinstance(evaluation, Evaluation)
        return evaluation

    def _answer(self, reference: Any) -> Any:
        """What it answers. Where the lane is lost the actor is ended, which may live, out of reach
        for a moment: it would hold the device that the lane is opened on again.
        """
        try:
            return _get(reference)
        except LaneLost:
            self.end()
            raise

    def close(self) -> None:
        try:
            _get(self._actor.close.remote(), timeout_s=CLOSE_TIMEOUT_S)
        except (LaneLost, GetTimeoutError) as error:
            log.warning("closing a lane: %s", error)
        self.end()


class RayEngine(LaneEngine):
    """Joins the cluster at `address`, or starts Ray on this machine."""

    def __init__(
        self,
        make_evaluator: MakeEvaluator,
        build: Build | None = None,
        *,
        device: str = "cpu",
        address: str | None = None,
        gpu_type: str | None = None,
        cpus: int | None = None,
        gpus: int | None = None,
        kept_gpus: int = 0,
        depth: int | None = 1,
    ) -> None:
        """`cpus` and `gpus` limit what Ray started here may use of this machine, whose first
        `kept_gpus` it does not see. `depth`: None for what suits the cores of the lanes' nodes,
        which may be others than this one.
        """
        self._own = not ray.is_initialized()
        if self._own:
            with _sigterm_kept(), _hidden(kept_gpus if address is None else 0):
                session = _connect(address, cpus, gpus)
        self._reaper: Reaper | None = None
        if self._own and address is None:
            self._reaper = Reaper(session)
        nodes = _nodes(device, gpu_type)
        placements = _gpu_lanes(nodes, gpu_type) if device == "cuda" else _cpu_lanes(nodes)
        if not placements:
            self._shut_down()
            wanted = f"GPU of type {gpu_type}" if gpu_type else "GPU" if device == "cuda" else "CPU"
            raise DeviceError(f"the Ray cluster has no {wanted}; `ray status` shows what it has")
        if depth is None:
            depth = ahead(device, min(int(n["Resources"].get("CPU", 1)) for n in nodes))
        self._made: list[RayLane] = []
        openers: list[Callable[[], Lane]] = [
            partial(RayLane, make_evaluator, options | {"max_concurrency": depth + 1}, self._made)
            for options in placements
        ]
        cores = int(ray.cluster_resources().get("CPU", 1))
        super().__init__("ray", openers, depth=depth, builders=max(1, min(cores, 64)))
        self._build = build
        self._remote_build = ray.remote(build_with)
        self._under_way: set[Any] = set()
        """Builds, some of which may wait for a core that others have."""
        self._nodes = itertools.cycle([node["NodeID"] for node in nodes])
        """Where lanes are: what is built for another GPU, or for none, no lane would find."""

    def submit_build(self, task: Task, candidate: Candidate, config: EvalConfig) -> Future[None]:
        def run(_: NoLane) -> None:
            there = NodeAffinitySchedulingStrategy(next(self._nodes), soft=True)
            options = {"num_cpus": 1, "max_retries": 2, "scheduling_strategy": there}
            remote = self._remote_build.options(**options)
            reference = remote.remote(self._build, task, candidate, config)
            self._under_way.add(reference)
            try:
                _get(reference)
            except WarpsmithError:
                raise
            except Exception as error:  # Ray's, of a node that cannot load what builds
                why = str(error).splitlines()[0]
                raise SandboxFault(f"building {candidate.id}: {why}") from error
            finally:
                self._under_way.discard(reference)

        return self._builders.submit(run)

    def abandon(self) -> bool:
        """An evaluator's processes end with the one that holds it."""
        for reference in list(self._under_way):
            ray.cancel(reference, force=True)
        self._pool.close(grace_s=0.0)
        for lane in self._made:
            lane.end()
        return True

    def close(self) -> None:
        self._pool.close(grace_s=0.0)
        for lane in self._made:
            if not lane.opened:  # Else its opening would be waited for.
                lane.end()
        super().close()
        self.abandon()
        self._shut_down()

    def _shut_down(self) -> None:
        if self._own:
            ray.shutdown()
        if self._reaper is not None:
            self._reaper.close()


def _connect(address: str | None, cpus: int | None, gpus: int | None) -> str:
    """Returns the session's folder. `local`, not None: None would silently join a cluster named by
    RAY_ADDRESS.
    """
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
    }
    if address is not None:
        try:
            _knock(address)
            joined = ray.init(address=address, **common)
        except (OSError, ValueError) as error:  # ValueError: no such form of address
            raise DeviceError(f"no Ray cluster answers at {address}: {error}") from error
        except RuntimeError as error:  # it is of another version of Ray or Python
            why = " ".join(str(error).split())
            raise DeviceError(f"the Ray cluster at {address} cannot be joined: {why}") from error
        return str(joined.address_info.get("session_dir"))
    try:
        started = ray.init(
            address="local",
            num_cpus=cpus or len(os.sched_getaffinity(0)),
            num_gpus=gpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **common,
        )
    except (OSError, RuntimeError) as error:  # its folder cannot be used, or has too long a path
        why = " ".join(str(error).split())
        raise DeviceError(
            f"Ray cannot be started here: {why}; name a short folder in RAY_TMPDIR that can be "
            "written, or use --engine local"
        ) from error
    return str(started.address_info["session_dir"])


@contextlib.contextmanager
def _hidden(kept: int) -> Iterator[None]:
    """What is started in this block sees the GPUs of this process but the first so many."""
    if not kept:
        yield
        return
    before = os.environ.get(VISIBLE)
    names = before.split(",") if before else [str(i) for i in range(gpu_count())]
    os.environ[VISIBLE] = ",".join(names[kept:])
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """SIGTERM does after the block what it did before: Ray's start takes it over, in Python and
    again in C++, to print a trace and exit.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _knock(address: str) -> None:
    """Raises OSError where nothing listens, or nothing that speaks gRPC: Ray itself tries for a
    quarter of an hour, and warns every few seconds. What names no port is left to Ray.
    """
    if address == "auto":
        address = canonicalize_bootstrap_address(address) or ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), KNOCK_S) as line:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return
        line.sendall(PREFACE)
        told = b""
        while len(told) < 4 and (more := line.recv(4 - len(told))):
            told += more
    if len(told) < 4 or told[3] != SETTINGS:
        raise OSError("what listens there is no Ray")


def _nodes(device: str, gpu_type: str | None) -> list[dict[str, Any]]:
    """Those that have what lanes are for."""
    resource = "CPU" if device == "cpu" else "GPU"
    if device != "cpu" and gpu_type is not None:
        resource = f"{KIND}{gpu_type}"
    return [n for n in ray.nodes() if n["Alive"] and n["Resources"].get(resource, 0) > 0]


def _gpu_lanes(nodes: list[dict[str, Any]], gpu_type: str | None) -> list[dict[str, Any]]:
    """Not bound to a node: a lane that is lost may be opened again wherever a GPU is free. Each has
    a core of its own, unless none were left to build on.
    """
    resources = [node["Resources"] for node in nodes]
    spare = all(r.get("CPU", 0) > r.get("GPU", 0) for r in resources)
    options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 1 if spare else 0}
    kinds = sorted({k.removeprefix(KIND) for r in resources for k in r if k.startswith(KIND)})
    if gpu_type is not None:
        options["accelerator_type"] = gpu_type
    elif len(kinds) > 1:
        log.warning(
            "lanes on unlike GPUs (%s): what one tells is the bar on another; gpu_type names one "
            "kind to take alone",
            ", ".join(kinds),
        )
    return [options] * sum(int(r.get("GPU", 0)) for r in resources)


def _cpu_lanes(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lanes = []
    for node in nodes:
        reserve = f"node:{node['NodeManagerAddress']}"
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        lanes.append({"num_cpus": 0, "resources": {reserve: 1.0}, "scheduling_strategy": strategy})
    return lanes


def _get(reference: Any, timeout_s: float | None = None) -> Any:
    """The remote result; the remote exception itself, or LaneLost where Ray lost the process."""
    try:
        return ray.get(reference, timeout=timeout_s)
    except RayTaskError as error:
        raise error.cause from None
    except GetTimeoutError:
        raise
    except RayActorError as error:
        raise LaneLost(_why_lost(error)) from error
    except RayError as error:
        raise LaneLost(str(error).splitlines()[0]) from error


def _why_lost(error: RayActorError) -> str:
    """One line; where an actor could not be made Ray says why in the last."""
    lines = str(error).splitlines()
    if not error.actor_init_failed:
        return lines[0]
    return f"its node cannot load it: {lines[-1]}; Warpsmith must be installed on every node"
