"""The harness both sides share: open a model, attach arenas, warm up, go, collect.

Nothing here is trusted when it runs in a candidate's worker: the supervisor's clock and its copies
of the slots decide. It only has to cost the same on both sides.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sandbox.machine import memory, trees
from sandbox.machine.queues import VARIABLE
from sandbox.machine.trees import Layout, Leaf
from sandbox.subjects.bell import Bell
from sandbox.worker import counters, facts, lone, models, profile, reserve

Request = dict[str, Any]
WARM_S = 0.004
"""Warm-up before a batch: clocks and caches settle (2 calls left 3 % of noise on an H200)."""
WARM_CALLS = 200
LATE_CYCLES = 2_000_000
"""A millisecond: longer than the host takes to launch an ordinary call."""
LONG_WARM_S, LONG_WARM_CALLS = 0.2, 512
"""Once a pair: a ring of buffers comes round to an output that is kept."""
PLAIN = (torch.Tensor, torch.nn.Parameter)
SPOILT = 85
"""In outputs of integers: it fits all types, and is True."""


class Session:
    """One model on one device, driven by requests. Subclasses say how the model is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = "cpu"
        self.dtype = torch.float32
        self.model: Any = None
        self.call: Any = None
        self.arenas: dict[str, memory.OpenedArena] = {}
        self.calls: list[list[Any]] = []
        self.input_tree: dict[str, Any] = {}
        self.inputs: Layout = Layout((), 0)
        self.slots: Layout = Layout((), 0)
        self.state: Layout = Layout((), 0)
        self.scrambled: Layout = Layout((), 0)
        self.state_names: list[str] = []
        self.results: list[Any] = []
        self.places: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
        """By arena, views that `place` made."""
        self.described: dict[Any, list[Any]] = {}
        """What `_deliver` says of outputs, by what it says it of: those of a batch are alike."""
        self.take_turn: Callable[[], object] = lambda: None
        """A small operation, which waits until the device turns to this process."""
        self.bell: Any = None
        self.pinned = contextlib.ExitStack()
        self.hasty: int | None = None
        """A set whose slot has its output before the rest is collected."""
        self.kept: list[Any] = []
        """The tensors of one call's output, held while others are made."""
        self.spent: list[Any] = []
        """Tensors that were handed over and are still to be spoilt."""
        self.usual: tuple[bool, bool] | None = None
        """Torch's own precision policy, once it was changed."""

    def do_setup(self, request: Request, fds: list[int]) -> Request:
        """Device, threads and precision policy, torch's own where TF32 is None (KernelBench's); on
        a GPU the context is created here.
        """
        self.device = request["device"]
        self.dtype = getattr(torch, request["dtype"])
        torch.set_grad_enabled(False)
        if self.device == "cuda":
            torch.cuda.init()
            self.take_turn = partial(torch.Tensor.add_, torch.zeros(1, device="cuda"), 1)
        else:
            torch.set_num_threads(request["threads"])
        if request["tf32"] is not None:
            self.usual = self.usual or models.precision()
            models.apply_precision(request["tf32"], request["tf32"])
        elif self.usual is not None:
            models.apply_precision(*self.usual)
        self.synchronize()
        # The context is made, and a candidate need not know its role.
        os.environ.pop(VARIABLE, None)
        return {}

    def do_attach(self, request: Request, fds: list[int]) -> Request:
        """Open an arena under a name (`inputs`, `slots`, `state`, `scrambled`); the previous one is
        dropped. With the ticket of the same that one stays, with other leaves.
        """
        name, ticket = request["name"], request["ticket"]
        if ticket["kind"] == "same":
            self.arenas[name].fit(ticket["size"])
        else:
            self.drop(name)
            self.arenas[name] = memory.OpenedArena(ticket, fds.pop(0) if fds else None)
        layout = Layout(tuple(map(Leaf.from_json, request["leaves"])), request["sets"])
        setattr(self, request["name"], layout)
        self.places.pop(name, None)
        if request["name"] == "inputs":
            self.input_tree = request["tree"]
            # Views only, made before any value is there: the timed region holds model calls alone.
            self.calls = [self.arguments(index) for index in range(request["sets"])]
        return {}

    def do_bell(self, request: Request, fds: list[int]) -> Request:
        """Map the bell for calls that are alone in their "go"; pinned, its inputs come quickly."""
        shared = memory.OpenedArena(request["ticket"], fds.pop(0)).bytes
        self.pinned.close()
        if self.device == "cuda":
            self.pinned.enter_context(memory.pinned(shared))
        self.bell = Bell(shared)
        return {}

    def do_release(self, request: Request, fds: list[int]) -> Request:
        """Drop arenas, results and the model."""
        self.part_with_model()
        return self.do_rest(request, fds)

    def do_drop_model(self, request: Request, fds: list[int]) -> Request:
        """And its results. Arenas stay for the next one, and what torch's allocator holds."""
        self.part_with_model()
        self.forget()
        return {}

    def part_with_model(self) -> None:
        self.state_names = []
        self.model = self.call = None

    def do_rest(self, request: Request, fds: list[int]) -> Request:
        """Keep the model, give all other memory back."""
        for name in list(self.arenas):
            self.drop(name)
        self.forget()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return {}

    def forget(self) -> None:
        """Results, and what is kept of them."""
        self.kept, self.spent = [], []
        self.results.clear()
        gc.collect()

    def do_discard(self, request: Request, fds: list[int]) -> Request:
        """Drop one arena, and what was cached of the work in it."""
        self.drop(request["name"])
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        return {}

    @property
    def state_tensors(self) -> list[torch.Tensor | None]:
        """What the model has registered by these names now: a call may bind a buffer anew."""
        named = dict(models.state_of(self.model)) if self.state_names else {}
        return [named.get(name) for name in self.state_names]

    def do_restate(self, request: Request, fds: list[int]) -> Request:
        """Overwrite parameters and buffers in place with the state arena's contents."""
        for index, tensor in enumerate(self.state_tensors):
            if tensor is not None:
                tensor.copy_(memory.leaf_view(self.arenas["state"].bytes, self.state, 0, index))
        self.synchronize()
        return {}

    def do_publish(self, request: Request, fds: list[int]) -> Request:
        """Copy parameters and buffers to the state arena."""
        for index, tensor in enumerate(self.state_tensors):
            if tensor is not None:
                memory.leaf_view(self.arenas["state"].bytes, self.state, 0, index).copy_(tensor)
        self.synchronize()
        return {}

    def do_reserve(self, request: Request, fds: list[int]) -> Request:
        """Let there be memory for the outputs of `count` sets, or for so many `bytes` of them on a
        GPU.
        """
        if "bytes" in request:
            reserve.segment(request["bytes"])
            return {}
        make_room = reserve.on_device if self.device == "cuda" else reserve.on_host
        make_room(self.slots, request["count"])
        return {}

    def do_warm(self, request: Request, fds: list[int]) -> Request:
        """Call the model on the warm-up sets for a while, and get ready for a batch."""
        self.results.clear()
        long = request.get("long", False)
        calls, seconds = (LONG_WARM_CALLS, LONG_WARM_S) if long else (WARM_CALLS, WARM_S)
        start = time.perf_counter()
        for index in itertools.islice(itertools.cycle(request["sets"]), calls):
            self.call(*self.calls[index])
            self.synchronize()
            if index == request["sets"][-1] and time.perf_counter() - start > seconds:
                break
        gc.collect(0)
        gc.disable()
        return {}

    def do_rouse(self, request: Request, fds: list[int]) -> Request:
        """One more warm-up call between timed single calls."""
        self.call(*self.calls[request["set"]])
        self.synchronize()
        gc.disable()
        return {}

    def do_go(self, request: Request, fds: list[int]) -> Request:
        """The timed region: one call per set, every output retained, then a device
        synchronisation; tells the seconds of these.

        `rung`: the ticket of a lone call, whose inputs come with the ring or the key to them.
        `hasty`: then call once more, as `hurry` says. `drops`: nothing is retained. `turned`: a GPU
        has turned to this process before the first call, whose launches would else hide in that.
        """
        call, calls, results = self.call, self.calls, self.results
        if request.get("turned"):
            self.take_turn()
            self.synchronize()
        if "rung" in request:
            self.stand_by(request)
        begin = time.perf_counter()
        if request.get("drops"):
            for index in request["sets"]:
                call(*calls[index])
        else:
            for index in request["sets"]:
                results.append(call(*calls[index]))
        self.synchronize()
        seconds = time.perf_counter() - begin
        if "rung" in request:
            self.bell.tell(request["rung"])
        if request.get("hasty") is not None:
            self.hurry(request["sets"][-1], request["hasty"])
        return {"seconds": seconds}

    def hurry(self, index: int, at: int) -> None:
        """Call on the values of set `index`, which come late to the place of set `at`, and deliver
        the output at once, both on the caller's stream: work on a stream that does not wait for
        it, or that it does not wait for, goes wrong.
        """
        values, place = self.input_bytes(index).clone(), self.input_bytes(at)
        before = place.clone()
        self.synchronize()
        if self.device == "cuda":
            torch.cuda._sleep(LATE_CYCLES)
        place.copy_(values)
        self.results[-1] = self.call(*self.calls[at])
        _, tensors = trees.flatten(self.results[-1], torch.is_tensor)
        for leaf, tensor in enumerate(tensors):
            self._deliver(tensor, index, leaf)
        self.hasty = index
        self.synchronize()
        place.copy_(before)
        self.synchronize()

    def input_bytes(self, index: int) -> torch.Tensor:
        """(bytes of a set,) uint8 view of input set `index`."""
        stride = self.inputs.stride
        return self.arenas["inputs"].bytes[index * stride : (index + 1) * stride]

    def stand_by(self, request: Request) -> None:
        """Until the bell rings; then its inputs are made out, and the device is idle: that is no
        work that launches could hide behind.
        """
        scrambled = None if self.bell.given.numel() else self.arenas["scrambled"].bytes
        place = self.input_bytes(request["sets"][0])

        def call() -> None:
            self.call(*self.calls[request["warm"]])
            self.synchronize()

        lone.stand_by(self.bell, request["rung"], place, scrambled, call)
        self.synchronize()

    def do_collect(self, request: Request, fds: list[int]) -> Request:
        """Copy the retained outputs to their slots and describe them; `spoil`: hold them until they
        are.
        """
        described: list[int] = []
        kinds: list[Any] = []
        outputs: list[Any] = []
        for position, index in enumerate(request["sets"]):
            tree, tensors = trees.flatten(self.results[position], torch.is_tensor)
            outputs.append(tensors)
            leaves = [self._deliver(tensor, index, leaf) for leaf, tensor in enumerate(tensors)]
            if [tree, leaves] not in kinds:
                kinds.append([tree, leaves])
            described.append(kinds.index([tree, leaves]))
            if len(kinds) > 4:
                break
        self.synchronize()
        shared = self.sharing(outputs) if request.get("look") else []
        keep = request.get("keep")
        if keep is not None:
            self.kept = outputs[keep]
        if request.get("spoil"):
            self.spent = [t for i, tensors in enumerate(outputs) if i != keep for t in tensors]
        self.results.clear()
        self.hasty = None
        gc.enable()
        return {"kinds": kinds, "sets": described, "sharing": shared}

    def do_spoil(self, request: Request, fds: list[int]) -> Request:
        """Change outputs that were handed over, in place, and let go of them: they are the
        caller's, and memory that is used again holds nothing that is known.
        """
        for tensor in self.spent:
            with contextlib.suppress(Exception):  # one row expanded, or what is no plain tensor
                exact = not torch.is_floating_point(tensor) and not torch.is_complex(tensor)
                torch.Tensor.fill_(tensor, SPOILT if exact else torch.nan)
        self.spent = []
        self.synchronize()
        return {}

    def do_recollect(self, request: Request, fds: list[int]) -> Request:
        """Copy the output that was kept to a slot once more."""
        for leaf, tensor in enumerate(self.kept):
            self._deliver(tensor, request["set"], leaf)
        self.synchronize()
        return {}

    def do_facts(self, request: Request, fds: list[int]) -> Request:
        """What this process can say of itself after its calls."""
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        return {"peak_device_bytes": peak}

    def do_arm(self, request: Request, fds: list[int]) -> Request:
        """Let the profiler begin, before its time is anyone else's."""
        profile.profile(self.device, lambda: torch.zeros(1, device=self.device), self.synchronize)
        return {}

    def do_profile(self, request: Request, fds: list[int]) -> Request:
        """Where the time of calls on one input set goes."""
        arguments = self.calls[request["set"]]
        return profile.profile(self.device, lambda: self.call(*arguments), self.synchronize)

    def do_count(self, request: Request, fds: list[int]) -> Request:
        """Hardware counters of calls on one input set."""
        arguments = self.calls[request["set"]]
        return counters.count(lambda: self.call(*arguments), self.synchronize)

    def arguments(self, index: int) -> list[Any]:
        """The positional arguments of input set `index`, as views of the arena."""
        arena = self.arenas["inputs"].bytes
        tensors = [
            memory.leaf_view(arena, self.inputs, index, leaf)
            for leaf in range(len(self.inputs.leaves))
        ]
        return list(trees.unflatten(self.input_tree, tensors))

    def place(self, name: str, index: int, leaf: int) -> torch.Tensor:
        """View of a leaf of a set in an arena, made when it is first needed; no model is given it:
        one may change the shape of a view.
        """
        known = self.places.setdefault(name, {})
        view = known.get((index, leaf))
        if view is None:
            arena, layout = self.arenas[name].bytes, getattr(self, name)
            view = known[index, leaf] = memory.leaf_view(arena, layout, index, leaf)
        return view

    def drop(self, name: str) -> None:
        """Unmap an arena and forget every view of it."""
        if name == "inputs":
            self.calls = []
        self.places.pop(name, None)
        arena = self.arenas.pop(name, None)
        if arena is not None:
            arena.close()

    def sharing(self, outputs: list[Any]) -> list[str]:
        """How the outputs of a batch share memory; no figure is taken meanwhile."""
        _, inputs = trees.flatten(self.calls, torch.is_tensor)
        return facts.sharing(outputs, inputs, self.state_tensors)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def layout_class(self, tensor: torch.Tensor) -> str:
        """As `trees.stride_class`, but of what is on another device, or holds the negative of what
        it stands for.
        """
        if tensor.device.type != self.device:
            return f"{tensor.device.type} device's"
        if torch.Tensor.is_neg(tensor):
            return "negated"
        return trees.stride_class(tensor.shape, tensor.stride())

    def _deliver(self, tensor: torch.Tensor, index: int, leaf: int) -> list[Any]:
        """Copy an output to its slot, if it fits; shape, type, strides and class of it."""
        promised = tensor.device.type, torch.Tensor.is_neg(tensor)
        key = (type(tensor), tensor.shape, tensor.dtype, tensor.stride(), promised)
        described = self.described.get(key)
        if described is None:
            self.described[key] = described = [
                list(tensor.shape),
                str(tensor.dtype).removeprefix("torch."),
                self.layout_class(tensor),
                # Not its name alone: a subclass may be called Tensor too.
                "Tensor" if type(tensor) in PLAIN else type(tensor).__qualname__ + " (a subclass)",
            ]
        if leaf < len(self.slots.leaves) and index != self.hasty:
            slot = self.place("slots", index, leaf)
            if slot.shape == tensor.shape and slot.dtype == tensor.dtype:
                slot.copy_(tensor)
        return described
