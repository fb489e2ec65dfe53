"""The harness both sides share: open a model, attach arenas, warm up, go, collect.

Nothing here is trusted when it runs in a candidate's worker: the supervisor's clock and its copies
of the slots decide. It only has to cost the same on both sides.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from sandbox import memory, trees
from sandbox.trees import Layout, Leaf
from sandbox.worker import models

Request = dict[str, Any]


class Session:
    """One model on one device, driven by requests. Subclasses say how the model is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = "cpu"
        self.dtype = torch.float32
        self.model: Any = None
        self.call: Any = None
        self.arenas: dict[str, torch.Tensor] = {}
        self.input_tree: dict[str, Any] = {}
        self.inputs: Layout = Layout((), 0)
        self.slots: Layout = Layout((), 0)
        self.state: Layout = Layout((), 0)
        self.state_tensors: list[torch.Tensor | None] = []
        self.results: list[Any] = []

    def do_setup(self, request: Request, fds: list[int]) -> Request:
        """Device, threads and precision policy; on a GPU the context is created here."""
        self.device = request["device"]
        self.dtype = getattr(torch, request["dtype"])
        torch.set_grad_enabled(False)
        if self.device == "cuda":
            torch.cuda.init()
            torch.zeros(1, device="cuda")
        else:
            torch.set_num_threads(request["threads"])
        models.apply_precision(request["tf32"])
        self.synchronize()
        return {}

    def do_attach(self, request: Request, fds: list[int]) -> Request:
        """Open an arena under a name (`inputs`, `slots`, `state`); the previous one is dropped."""
        fd = fds.pop(0) if fds else None
        self.arenas[request["name"]] = memory.open_ticket(request["ticket"], fd)
        layout = Layout(tuple(map(Leaf.from_json, request["leaves"])), request["sets"])
        setattr(self, request["name"], layout)
        if request["name"] == "inputs":
            self.input_tree = request["tree"]
        return {}

    def do_release(self, request: Request, fds: list[int]) -> Request:
        """Drop arenas, results and the model."""
        self.arenas.clear()
        self.results.clear()
        self.state_tensors.clear()
        self.model = self.call = None
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return {}

    def do_flush(self, request: Request, fds: list[int]) -> Request:
        """Give cached device memory back, so that later outputs lie elsewhere."""
        self.results.clear()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return {}

    def do_restate(self, request: Request, fds: list[int]) -> Request:
        """Overwrite parameters and buffers in place with the state arena's contents."""
        for index, tensor in enumerate(self.state_tensors):
            if tensor is not None:
                tensor.copy_(memory.leaf_view(self.arenas["state"], self.state, 0, index))
        self.synchronize()
        return {}

    def do_publish(self, request: Request, fds: list[int]) -> Request:
        """Copy parameters and buffers to the state arena."""
        for index, tensor in enumerate(self.state_tensors):
            if tensor is not None:
                memory.leaf_view(self.arenas["state"], self.state, 0, index).copy_(tensor)
        self.synchronize()
        return {}

    def do_warm(self, request: Request, fds: list[int]) -> Request:
        """Call the model on the warm-up sets, discard the results, and get ready for a batch."""
        self.results.clear()
        for index in request["sets"]:
            self.call(*self.arguments(index))
        self.synchronize()
        gc.collect(0)
        gc.disable()
        return {}

    def do_rouse(self, request: Request, fds: list[int]) -> Request:
        """One more warm-up call between timed single calls."""
        self.call(*self.arguments(request["set"]))
        self.synchronize()
        return {}

    def do_go(self, request: Request, fds: list[int]) -> Request:
        """The timed region: one call per set, every output retained, then a device
        synchronisation.
        """
        call, results = self.call, self.results
        for arguments in [self.arguments(index) for index in request["sets"]]:
            results.append(call(*arguments))
        self.synchronize()
        return {}

    def do_collect(self, request: Request, fds: list[int]) -> Request:
        """Copy the retained outputs to their slots and describe them."""
        described: list[int] = []
        kinds: list[Any] = []
        for position, index in enumerate(request["sets"]):
            tree, tensors = trees.flatten(self.results[position], torch.is_tensor)
            leaves = [self._deliver(tensor, index, leaf) for leaf, tensor in enumerate(tensors)]
            if [tree, leaves] not in kinds:
                kinds.append([tree, leaves])
            described.append(kinds.index([tree, leaves]))
            if len(kinds) > 4:
                break
        self.synchronize()
        self.results.clear()
        gc.enable()
        return {"kinds": kinds, "sets": described}

    def arguments(self, index: int) -> list[Any]:
        """The positional arguments of input set `index`, as views of the arena."""
        arena = self.arenas["inputs"]
        tensors = [
            memory.leaf_view(arena, self.inputs, index, leaf)
            for leaf in range(len(self.inputs.leaves))
        ]
        return list(trees.unflatten(self.input_tree, tensors))

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _deliver(self, tensor: torch.Tensor, index: int, leaf: int) -> list[Any]:
        described = [
            list(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            trees.stride_class(tensor.shape, tensor.stride()),
            type(tensor).__name__,
        ]
        if leaf < len(self.slots.leaves):
            slot = memory.leaf_view(self.arenas["slots"], self.slots, index, leaf)
            if slot.shape == tensor.shape and slot.dtype == tensor.dtype:
                slot.copy_(tensor)
        return described
