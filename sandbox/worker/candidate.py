"""The untrusted side: loads the candidate and builds ModelNew. Everything it replies is a claim."""

from __future__ import annotations

import contextlib
import gc
import sys
from pathlib import Path
from typing import Any

import torch

from sandbox.building.light import Ways
from sandbox.machine import memory
from sandbox.worker import ahead, extensions, facts, faster, kernels, models
from sandbox.worker.session import Request, Session


class CandidateSession(Session):
    module: Any = None
    watch: facts.Watch | None = None
    constructed: Any = None
    """A model that waits to be opened, after what it was made from."""

    def do_load(self, request: Request, fds: list[int]) -> Request:
        """Import the candidate; `load_inline` and Triton find what the build stage compiled."""
        extensions.intercept(self.folder)
        if "triton" in sys.modules:
            ahead.movable_cache()
        self.watch = facts.Watch()
        compile(request["source"], "candidate.py", "exec")
        self.module = models.load_module(request["source"], "candidate", self.folder)
        models.require(self.module, "ModelNew")
        return {}

    def do_construct(self, request: Request, fds: list[int]) -> Request:
        """Construct ModelNew ahead, unless that takes memory of the device, which others hold."""
        self.constructed = None
        taken, model = torch.cuda.memory_allocated(), None
        with contextlib.suppress(torch.OutOfMemoryError):  # once the device is held there is room
            model = self.construct(request)
        if model is not None and torch.cuda.memory_allocated() <= taken:
            self.constructed = ((request["init"], request["seed"]), model)
            return {}
        del model
        if self.device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        return {}

    def construct(self, request: Request) -> torch.nn.Module:
        """ModelNew under the reference's seed."""
        arguments = models.decode(request["init"])
        return models.construct(self.module.ModelNew, arguments, request["seed"])

    def do_open(self, request: Request, fds: list[int]) -> Request:
        """Move ModelNew, constructed now or before, and list its parameters and buffers."""
        constructed, self.constructed = self.constructed, None
        if constructed is None or constructed[0] != (request["init"], request["seed"]):
            constructed = None  # before there are two of them
            model = self.construct(request)
        else:
            _, model = constructed
        self.model = self.call = model.to(device=self.device, dtype=self.dtype)
        return {
            "state": [
                [name, memory.describe(tensor).dense().to_json()]
                for name, tensor in models.state_of(self.model)
            ]
        }

    def do_bind(self, request: Request, fds: list[int]) -> Request:
        """Put the candidate's tensors in the order of the reference's state; "" where it has
        none.
        """
        self.state_names = request["names"]
        return {}

    def do_facts(self, request: Request, fds: list[int]) -> Request:
        """What its code has replaced and set, and its kernels, beside what any worker says."""
        changes = {} if self.watch is None else self.watch.changes()
        own = {**changes, "kernels": kernels.described(self.module)}
        return {**super().do_facts(request, fds), **own}


class BuildSession(Session):
    """A build process: imports the candidate, so that every `load_inline` in it compiles, or calls
    it without a GPU.
    """

    made: extensions.Recorded

    def do_build(self, request: Request, fds: list[int]) -> Request:
        ready = request["preludes"]
        self.made = made = extensions.record(
            self.folder, Ways(**request["ways"]), None if ready is None else Path(ready)
        )
        compile(request["source"], "candidate.py", "exec")
        note = ""
        try:
            models.load_module(request["source"], "candidate", self.folder)
        except extensions.BuildFailed:
            raise
        except Exception as error:  # noqa: BLE001  the import may need a GPU: the run stage decides
            note = f"{type(error).__name__}: {error}"
        return {"artifacts": made.artifacts, "missing": made.missing, "note": note[:2000]}

    def do_rehearse(self, request: Request, fds: list[int]) -> Request:
        """Import, construct and call what was built as where there is a GPU, so that extensions
        compile that it asks for only then; they are not called.
        """
        self.made.rehearsing, known = True, len(self.made.artifacts)
        dtype = getattr(torch, request["dtype"])
        problem = ahead.rehearse(
            request["source"], request["calls"], dtype, request["capability"], self.folder
        )
        return {
            "artifacts": self.made.artifacts[known:],
            "missing": self.made.missing,
            "problem": problem,
        }

    def do_describe(self, request: Request, fds: list[int]) -> Request:
        """What calls of a task are made from; no candidate's code runs in this process."""
        return {"calls": ahead.described(request["task"], request["shapes"], self.folder)}

    def do_foresee(self, request: Request, fds: list[int]) -> Request:
        """Call the candidate without a GPU, so that Triton compiles what it launches."""
        dtype = getattr(torch, request["dtype"])
        count, problem = ahead.compile_ahead(
            request["source"], request["calls"], dtype, request["capability"], self.folder
        )
        return {"kernels": count, "problem": problem}

    def do_precompile(self, request: Request, fds: list[int]) -> Request:
        """Compile the light prelude; no candidate's code runs in this process."""
        return faster.precompile(self.folder, request["flags"], request["cuda"])
