"""The trusted side: builds Model, makes inputs, computes the oracle, runs baselines.

Task files are trusted, yet they run here and not in the supervisor.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sandbox.checking.compare import few_values
from sandbox.checking.domain import move, rescale
from sandbox.machine import memory, trees
from sandbox.machine.domains import Domain
from sandbox.machine.trees import Layout
from sandbox.worker import facts, labels, models
from sandbox.worker.alike import close, same
from sandbox.worker.constant import constant_inputs, shrink
from sandbox.worker.session import Request, Session
from sandbox.worker.tf32 import Tf32
from sandbox.worker.weights import change_part, randomise, shake
from sandbox.worker.wrapped import untuned, wrapped

NAME = "reference"
"""Of the task's module."""
CALLED = (
    ("torch", lambda: torch),
    ("torch.Tensor", lambda: torch.Tensor),
    ("torch.nn", lambda: torch.nn),
    ("torch.nn.Module", lambda: torch.nn.Module),
    ("torch.nn.functional", lambda: torch.nn.functional),
)
"""What the next task calls."""
DYNAMO_CHANGES = ("torch.nn.Module.__init__", "torch.nn.Module.__setstate__")
"""The first torch.compile of a process counts the modules that are made from then on."""
LEFT_BYTES = 64 << 20
"""Of a GPU's memory, that a process may hold for torch while it waits for another task."""
FILLS = 8
FILLS_S = 0.1
"""How many input sets are made, and for how long, to know what one costs."""
QUICK_FILL_S, MANY_FILLS = 1e-3, 16
"""Quick ones are timed as they come, many in a row: waiting for one took longer than making it."""
BATCH_S = 0.005
"""Of calls in a row, to know what one takes."""


class ReferenceSession(Session):
    module: Any = None
    init: Any = None
    watch: Any = None
    """Of torch, as it was before the task was loaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.replaced: dict[str, Any] = {}
        """Module constants as the task wrote them, where a shape has set others."""
        self.constant: frozenset[int] | None = None
        """Inputs of this shape that seeds do not change, once it is known."""

    def do_load(self, request: Request, fds: list[int]) -> Request:
        self.watch, self.replaced = facts.Watch(CALLED), {}
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.module = models.load_module(request["source"], NAME, self.folder)
        models.require(self.module, "Model", "get_inputs", "get_init_inputs")
        return {}

    def do_leave(self, request: Request, fds: list[int]) -> Request:
        """Drop the task with its model, and say what of it is left: changes of torch, memory."""
        self.module = self.init = None
        sys.modules.pop(NAME, None)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        if self.device == "cuda":
            torch._C._cuda_clearCublasWorkspaces()
        self.do_release(request, fds)
        changes = self.watch.changes()
        left = [name for name in changes["patched"] if name not in DYNAMO_CHANGES]
        left += changes["flags"]
        if self.device == "cuda" and torch.cuda.memory_reserved() > LEFT_BYTES:
            left.append("memory of a GPU")
        return {"left": left}

    def do_open(self, request: Request, fds: list[int]) -> Request:
        """Build the model at one shape with randomised state, and `describe` inputs and state:
        what is known already would take a set of inputs.
        """
        self.constant = None
        for name, value in self.replaced.items():  # by the shape that was open before
            setattr(self.module, name, value)
        written = vars(self.module)
        self.replaced = {k: written[k] for k, _ in request["constants"] if k in written}
        for name, value in request["constants"]:
            setattr(self.module, name, value)
        models.seed_all(request["seed"])
        self.init = models.cast(list(self.module.get_init_inputs()), "cpu", torch.float32)
        model = models.construct(self.module.Model, self.init, request["seed"])
        # Torch would keep their real parts, with a warning.
        if named := next((n for n, t in models.state_of(model) if t.is_complex()), None):
            raise models.ContractError(f"{named} is complex: split it with torch.view_as_real")
        self.model = model.to(device=self.device, dtype=self.dtype)
        if request["state_seed"] is not None:
            randomise(self.model, request["state_seed"])
        self.state_names = [name for name, _ in models.state_of(self.model)]
        self.call = wrapped(self.model, request.get("wrap"))
        if not request["describe"]:
            return {}
        models.seed_all(request["seed"])
        inputs = self.make_inputs()
        tree, tensors = trees.flatten(inputs, torch.is_tensor)
        return {
            "inputs": {"tree": tree, "leaves": [memory.describe(t).to_json() for t in tensors]},
            "init": models.encode(self.init),
            "state": [
                [name, memory.describe(tensor).dense().to_json()]
                for name, tensor in models.state_of(self.model)
            ],
        }

    def own_state(self) -> list[torch.Tensor]:
        """As it is registered now."""
        return [tensor for _, tensor in models.state_of(self.model)]

    def do_examine(self, request: Request, fds: list[int]) -> Request:
        """Run the model twice on equal inputs under different RNG states: outputs, side effects,
        latency.
        """
        models.seed_all(request["seed"])
        inputs = self.make_inputs()
        given_tree, tensors = trees.flatten(inputs, torch.is_tensor)
        before = [t.clone() for t in tensors]
        own = self.own_state()
        state = [t.clone() for t in own]
        models.seed_all(request["seed"] + 1)
        tree, first = trees.flatten(self.model(*inputs), torch.is_tensor)
        mutates = not all(map(same, before, tensors))
        own, bound = self.own_state(), own
        moves = not all(map(same, state, own))
        storages = {t.untyped_storage().data_ptr() for t in [*tensors, *own, *bound]}
        aliases = any(t.untyped_storage().data_ptr() in storages for t in first if t.numel())
        outputs = [memory.describe(t).dense().to_json() for t in first]
        classes = [self.layout_class(t) for t in first]
        kept = [t.clone() for t in first] if aliases else first
        given = {t.untyped_storage().data_ptr() for t in kept if t.numel()}
        del first
        if mutates:  # An expanded input could not be written to.
            restore(tensors, before)
        restore(own, state)
        models.seed_all(request["seed"] + 2)
        _, second = trees.flatten(self.model(*inputs), torch.is_tensor)
        lends = any(t.untyped_storage().data_ptr() in given for t in second if t.numel())
        repeat = all(map(close, kept, second)) and len(kept) == len(second)
        restore(self.own_state(), state)
        del kept, second
        domains = self.domains(given_tree, before, request["seed"])
        restore(self.own_state(), state)
        del before
        paced = self.paced(inputs, request["seed"])
        if self.device == "cuda":
            torch.cuda.empty_cache()  # this took several times what a call takes
        return {
            "outputs": {"tree": tree, "leaves": outputs, "classes": classes},
            "repeatable": repeat,
            "mutates": mutates,
            "moves_state": moves,
            "aliases": aliases,
            "lends": lends,
            "domains": domains,
            **paced,
        }

    def domains(self, tree: dict[str, Any], given: list[torch.Tensor], seed: int) -> list[Domain]:
        """What the inputs are, of which calls are given copies."""

        def outputs(leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            models.seed_all(seed)
            copies = [leaf.clone() for leaf in leaves]
            found = self.model(*trees.unflatten(tree, copies))
            return [t.clone() for t in trees.flatten(found, torch.is_tensor)[1]]

        return labels.domains(given, outputs)

    def do_pace(self, request: Request, fds: list[int]) -> Request:
        """What of an examination depends on what else goes on."""
        models.seed_all(request["seed"])
        return self.paced(self.make_inputs(), request["seed"])

    def paced(self, inputs: list[Any], seed: int) -> Request:
        return {"latency_s": self.latency(inputs), "fill_s": self.fill_s(seed)}

    def do_bound(self, request: Request, fds: list[int]) -> Request:
        """Take at most this share of a GPU's memory from now on."""
        if self.device == "cuda":
            torch.cuda.set_per_process_memory_fraction(request["share"])
        return {}

    def do_call(self, request: Request, fds: list[int]) -> Request:
        """Call the model as it was opened, a baseline's first call compiling it; `tuned`: as quick
        as that can make it.
        """
        models.seed_all(request["seed"])
        tuned = request["tuned"] or self.device == "cpu"
        with contextlib.nullcontext() if tuned else untuned():
            self.call(*self.make_inputs())
            self.synchronize()
        if self.device == "cuda":
            torch.cuda.empty_cache()  # no plan knows of what it took
        return {}

    def do_restyle(self, request: Request, fds: list[int]) -> Request:
        """Randomise parameters and buffers afresh, as new weights would arrive, or change a `part`
        of one parameter, as a partial update would.
        """
        if not request["part"] or not change_part(self.model, request["state_seed"]):
            randomise(self.model, request["state_seed"])
        self.synchronize()
        return {}

    def do_fill(self, request: Request, fds: list[int]) -> Request:
        """Fill input sets with fresh values, scaled: one `get_inputs` after the other under the
        supervisor's secret seed. `varied`: no two sets have the same.
        """
        constant = self.constant_inputs(request["seed"]) if request.get("varied") else frozenset()
        models.seed_all(request["seed"])
        scale, domains = request["scale"], known_domains(request)
        with torch.device(self.device):
            for index in request["sets"]:
                inputs = self.given()
                tree, tensors = trees.flatten(inputs, torch.is_tensor)
                if tree != self.input_tree:
                    raise models.ContractError("get_inputs() returns another structure each time")
                for leaf, tensor in enumerate(tensors):
                    place = self.place("inputs", index, leaf)
                    if place.shape != tensor.shape:
                        raise models.ContractError("get_inputs() returns other shapes each time")
                    place.copy_(tensor)
                    if scale != 1.0 and tensor.is_floating_point():
                        rescale(place, domains[leaf], scale)
                    if leaf in constant:
                        shrink(place, domains[leaf])
        self.synchronize()
        return {}

    def constant_inputs(self, seed: int) -> frozenset[int]:
        """Of this shape; found once."""

        def make(number: int) -> list[torch.Tensor]:
            models.seed_all(number)
            with torch.device(self.device):
                return trees.flatten(self.given(), torch.is_tensor)[1]

        if self.constant is None:
            self.constant = constant_inputs(make, seed)
        return self.constant

    def do_vary(self, request: Request, fds: list[int]) -> Request:
        """Run the model on input set 0 with one leaf changed, its outputs into slot 0.

        `leaf` is ["input", i], ["parameter", i], or None for no change at all. `changed` is False
        where the leaf has no other value that is certainly valid, and then nothing is run.
        """
        inputs = self.flat_arguments(0)
        kind, index = request["leaf"] or (None, 0)
        # Calls may move buffers, or bind them anew, and a parameter is to be put back.
        state = [tensor.clone() for tensor in self.own_state()]
        try:
            models.seed_all(request["seed"])
            moved = kind == "input" and known_domains(request)[index].apart
            if kind == "input" and not self.replace(inputs, index, request["seed"], moved):
                return {"changed": False}
            if kind == "parameter" and not shake(list(self.model.parameters())[index].detach()):
                return {"changed": False}
            models.seed_all(request["seed"] + 1)
            outputs = self.model(*trees.unflatten(self.input_tree, inputs))
            _, tensors = trees.flatten(outputs, torch.is_tensor)
            for leaf, tensor in enumerate(tensors):
                self._deliver(tensor, 0, leaf)
        finally:
            restore(self.own_state(), state)
        self.synchronize()
        return {"changed": True}

    def replace(self, inputs: list[torch.Tensor], index: int, seed: int, moved: bool) -> bool:
        """One input by the one of a fresh set; where all sets hold the same, by a shaken one, or
        of a mask by one with its values elsewhere: no factor changes what it masks.
        """
        models.seed_all(seed)
        _, fresh = trees.flatten(self.make_inputs(), torch.is_tensor)
        if same(inputs[index], fresh[index]):
            elsewhere = moved and move(inputs[index], random.Random(seed))
            return elsewhere or shake(inputs[index])
        inputs[index] = fresh[index]
        return True

    def do_weigh(self, request: Request, fds: list[int]) -> Request:
        """What one call takes: floating-point operations that torch can count (matmul, convolution,
        attention), peak device memory, and the parameters that it may use.
        """
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with FlopCounterMode(display=False) as counter:
            self.model(*trees.unflatten(self.input_tree, self.flat_arguments(0)))
        self.synchronize()
        return {
            "flops": counter.get_total_flops(),
            "peak_bytes": torch.cuda.max_memory_allocated() if self.device == "cuda" else None,
            "parameters": [name for name, _ in self.model.named_parameters()],
        }

    def do_oracle(self, request: Request, fds: list[int]) -> Request:
        """The float64 truth of one input set into the `oracle` arena, inputs optionally jittered.

        `jitter` is the relative rounding noise put on float inputs: its effect on the output says
        how well conditioned the case is. `tf32`: as that would have it, where it may be used;
        `rounded` in the reply says whether any operation may.
        """
        inputs = [
            t.double() if torch.is_tensor(t) and t.is_floating_point() else t
            for t in self.flat_arguments(request["set"])
        ]
        if request["jitter"]:
            models.seed_all(request["seed"])
            inputs = [
                t * (1 + request["jitter"] * torch.empty_like(t).uniform_(-1, 1))
                # A mask is exact, and a hair below a label lies another one.
                if t.is_floating_point() and not domain.moved and not few_values(t)
                else t
                for t, domain in zip(inputs, known_domains(request), strict=True)
            ]
        model = copy.deepcopy(self.model).double()
        mode = Tf32(*models.precision()) if request["tf32"] else None
        torch.set_default_dtype(torch.float64)
        try:
            with mode or contextlib.nullcontext():
                outputs = model(*trees.unflatten(self.input_tree, inputs))
        finally:
            torch.set_default_dtype(torch.float32)
        _, tensors = trees.flatten(outputs, torch.is_tensor)
        layout = self.oracle
        for leaf, tensor in enumerate(tensors):
            memory.leaf_view(self.arenas["oracle"].bytes, layout, 0, leaf).copy_(tensor)
        self.synchronize()
        return {"rounded": mode is not None and mode.used}

    oracle = Layout((), 0)

    def flat_arguments(self, index: int) -> list[torch.Tensor]:
        """Copies of the input leaves of set `index`, in the tree's order."""
        arena = self.arenas["inputs"].bytes
        return [
            memory.leaf_view(arena, self.inputs, index, leaf).clone()
            for leaf in range(len(self.inputs.leaves))
        ]

    def given(self) -> list[Any]:
        """What the task's own function gives; of a mapping or a tensor a call would get the keys,
        or the rows.
        """
        inputs = self.module.get_inputs()
        if not isinstance(inputs, list | tuple):
            raise models.ContractError(
                f"get_inputs() returns a {type(inputs).__name__}; expected a list of arguments"
            )
        return list(inputs)

    def make_inputs(self) -> list[Any]:
        """The next ones of the generators, as they were seeded."""
        with torch.device(self.device):
            inputs = self.given()
        return list(models.cast(inputs, self.device, self.dtype))

    def fill_s(self, seed: int) -> float:
        """Seconds to make one input set, best of a few: a mean of three once told seven
        milliseconds for a fifth of one (H200), and batches of four calls were planned.
        """
        models.seed_all(seed)
        self.make_inputs()
        self.synchronize()
        seconds: list[float] = []
        spent, count = 0.0, 1
        while not seconds or (len(seconds) < FILLS and spent < FILLS_S):
            start = time.perf_counter()
            for _ in range(count):
                self.make_inputs()
            self.synchronize()
            took = time.perf_counter() - start
            seconds.append(took / count)
            spent += took
            count = MANY_FILLS if seconds[-1] < QUICK_FILL_S else 1
        return min(seconds)

    def latency(self, inputs: list[Any]) -> float:
        """Seconds per call, best of five short batches; a planning figure, not a measurement."""
        # Launching costs microseconds: calls of milliseconds, counted by the host's clock while
        # they are queued, were made by the hundred (20 s for one pooling layer on an H200).
        once_s = self._calls_s(inputs, 1)
        calls = max(1, min(1000, round(BATCH_S / once_s)))
        return min(self._calls_s(inputs, calls) for _ in range(5)) / calls

    def _calls_s(self, inputs: list[Any], calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self.model(*inputs)
        self.synchronize()
        return time.perf_counter() - start


def known_domains(request: Request) -> Sequence[Domain]:
    """Of the input leaves, as an examination found them."""
    return [Domain(name) for name in request["domains"]]


def restore(tensors: list[torch.Tensor], kept: list[torch.Tensor]) -> None:
    """In place, so that what holds the tensors sees it."""
    for tensor, old in zip(tensors, kept, strict=True):
        tensor.copy_(old)
