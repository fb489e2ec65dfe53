"""Operators of an installed library, checked and timed with nothing of Warpsmith in reach.

Reads one JSON request from stdin and writes a line of JSON for every check, or every operator that
was timed, as soon as it is done: a process that dies leaves what it had found. `what` is `check`,
with one `operator`, or `time`, with several.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import logging
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

MARK = "CHECK "
FOREIGN = ("warpsmith", "sandbox", "agent", "kernelbench")
THREADS, SECONDS = 4, 1.0
CLOSE = 1e-4
"""Of gradients, to the largest of them."""
WITH_GRADIENTS = ("test_autograd_registration", "test_aot_dispatch_dynamic")
"""What opcheck asks of gradients; the rest it asks once, without."""
WARNED: list[str] = []
BATCH_S, MOST_SETS, MEMORY_SHARE = 0.02, 64, 0.2
ROUNDS, WARM_S = 12, 0.004
LOOKS, CALLS = 7, 8
ROOM = 4.0
"""Times the reference's own error that a result may be off, as in the campaign."""


class Skip(Exception):
    """A check that does not apply here; the message says why."""


class Subject:
    """The operator with a layer of the reference's parameters, and inputs as they were measured."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.package = importlib.import_module(request["package"])
        self.name, self.device = request["operator"], torch.device(request["device"])
        self.bound, self.seed = float(request["bound"]), int(request["seed"])
        self.core = request.get("core")
        self.op = self.package.operator(self.name)
        self.source = sys.modules[self.op.reference.__module__]
        vars(self.source).update(request["constants"])
        torch.manual_seed(self.seed)
        self.layer = self.package.layer(self.name).to(self.device)
        named = dict([*self.layer.model.named_parameters(), *self.layer.model.named_buffers()])
        self.state = [named[name].detach() for name in self.op.operator.state]
        self.room = self.bound

    def inputs(self, seed: int) -> list[Any]:
        torch.manual_seed(self.seed + seed)
        dtype = getattr(torch, self.op.operator.dtype)

        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.to(self.device, dtype if value.is_floating_point() else None)

        with torch.device(self.device):  # made on the CPU they took longer than all the calls
            return [cast(value) for value in self.source.get_inputs()]

    def call(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return self.call_of([*inputs, *self.state])

    def call_of(self, everything: Sequence[Any]) -> list[torch.Tensor]:
        return listed(self.op(*everything))

    def reference(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return listed(self.layer.model(*inputs))

    def count(self, what: str = "kernel") -> int:
        return int(self.package.counts()[self.name].get(what, 0))

    def same(self, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> str:
        """How far apart; raises AssertionError where that is too far."""
        apart = [error(f, w) for f, w in zip(found, wanted, strict=True)]
        assert max(apart) <= self.room, f"{max(apart):.1e} off, {self.room:.1e} allowed"
        return f"{max(apart):.1e} off"


def listed(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error norm; 0 or infinite for integers."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)}, not {tuple(wanted.shape)}"
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else math.inf
    off = float((found.double() - wanted.double()).norm())
    size = float(wanted.double().norm())
    return off / size if size else off


# --- checks ---------------------------------------------------------------------------------------


def clean(subject: Subject) -> str:
    """Nothing of Warpsmith can be imported, and every file is as it was built."""
    reach = [name for name in FOREIGN if importlib.util.find_spec(name) is not None]
    assert not reach, f"{', '.join(reach)} can be imported"
    broken = subject.package.library.verify()
    assert not broken, broken[0]
    return ""


def kernel(subject: Subject) -> str:
    """The kernel does the call, and its result is the reference's, against float64."""
    inputs = subject.inputs(0)
    with torch.no_grad():
        before, found = subject.count(), subject.call(inputs)
        assert subject.count() == before + 1, f"no kernel ran: {why(subject)}"
        own = subject.reference(inputs)
        truth = double(subject, inputs) or own
    own_error = max(error(o, t) for o, t in zip(own, truth, strict=True))
    subject.room = max(subject.bound, ROOM * own_error)
    return subject.same(found, truth)


def why(subject: Subject) -> str:
    """The last thing that the library warned of, else the calls' reasons."""
    return WARNED[-1] if WARNED else str(subject.package.counts()[subject.name])


class Heard(logging.Handler):
    """Keeps warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        WARNED.append(record.getMessage())


def double(subject: Subject, inputs: Sequence[Any]) -> list[torch.Tensor] | None:
    """The reference's results in float64; None where it does not run there."""
    try:
        model = copy.deepcopy(subject.layer.model).double()
        return listed(model(*(i.double() if floating(i) else i for i in inputs)))
    except Exception:  # noqa: BLE001  whatever a reference raises in another dtype
        return None


def floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def fallback(subject: Subject) -> str:
    """Strides that were not measured go to the reference, which is right."""
    inputs = subject.inputs(1)
    place = next((i for i, v in enumerate(inputs) if floating(v) and v.numel() > 1), None)
    if place is None:
        raise Skip("no floating tensor with several elements")
    given = inputs[place]
    inputs[place] = torch.stack([given, given], -1)[..., 0]
    with torch.no_grad():
        before, found = subject.count(), subject.call(inputs)
        assert subject.count() == before, "a kernel ran on strides that were not measured"
        return subject.same(found, subject.reference(inputs))


def opcheck(subject: Subject) -> str:
    """Torch compares gradients of a sum over all results with 1.3e-6 and 1e-5, traced and not: sums
    of so many terms differ by more from one order to another. They are compared by their size;
    results, without gradients, as torch does.
    """
    claimed = subject.op.operator.autograd != "none"
    given = [
        v.detach().requires_grad_() if claimed and floating(v) else v
        for v in (*subject.inputs(0), *subject.state)
    ]
    op, init = subject.op.op, subject.op.operator.init
    plain = [v.detach() if isinstance(v, torch.Tensor) else v for v in given]
    torch.library.opcheck(op, (*plain, init))
    wanted = [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad]
    if not wanted:
        return ""
    sums = [f.sum() for f in subject.call_of(given) if f.requires_grad]
    if not sums:
        return "no result has a gradient"
    found = torch.autograd.grad(torch.stack(sums).sum(), wanted, allow_unused=True)
    sizes = [float(g.abs().max()) for g in found if g is not None and g.numel()]
    largest = max(sizes, default=0.0)
    assert math.isfinite(largest), "a gradient is not finite"
    # The same algorithm each time, and no product in TF32.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        near = {"rtol": CLOSE, "atol": max(1e-5, CLOSE * largest)}
        torch.library.opcheck(op, (*given, init), test_utils=WITH_GRADIENTS, **near)
    return f"gradients up to {largest:.1e}"


def fullgraph(subject: Subject) -> str:
    inputs = subject.inputs(0)
    with torch.no_grad():
        wanted = subject.call(inputs)
        compiled = torch.compile(subject.layer, fullgraph=True)
        before, found = subject.count(), listed(compiled(*inputs))
        assert subject.count() > before, "the compiled graph did not run the kernel"
        return subject.same(found, wanted)


def cuda_graph(subject: Subject) -> str:
    if subject.device.type != "cuda":
        raise Skip("CUDA graphs need a GPU")
    inputs, others = subject.inputs(0), subject.inputs(1)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            wanted = subject.call(others)
        torch.cuda.current_stream().wait_stream(side)
        graph, before = torch.cuda.CUDAGraph(), subject.count()
        with torch.cuda.graph(graph):
            found = subject.call(inputs)
        assert subject.count() == before + 1, "the capture did not run the kernel"
        for held, other in zip(inputs, others, strict=True):
            if isinstance(held, torch.Tensor):
                held.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        return subject.same(found, wanted)


def threads(subject: Subject) -> str:
    return together(subject, lambda: None)


def streams(subject: Subject) -> str:
    if subject.device.type != "cuda":
        raise Skip("streams need a GPU")
    return together(subject, torch.cuda.Stream)


def together(subject: Subject, make_stream: Callable[[], Any]) -> str:
    """Threads that call at once, each with inputs of its own, every result compared."""
    sets = [subject.inputs(2 + i) for i in range(THREADS)]
    with torch.no_grad():
        wanted = [subject.call(inputs) for inputs in sets]
    synchronise(subject)
    failures: list[str] = []
    calls = [0] * THREADS
    barrier = threading.Barrier(THREADS)

    def work(place: int) -> None:
        try:
            stream = make_stream()
            barrier.wait(60)
            end = time.monotonic() + SECONDS
            with torch.no_grad(), torch.cuda.stream(stream):
                while calls[place] < 3 or time.monotonic() < end:
                    subject.same(subject.call(sets[place]), wanted[place])
                    calls[place] += 1
        except Exception as failure:  # noqa: BLE001  told with the check
            failures.append(told(failure))

    begun, workers = subject.count(), [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]
    assert subject.count() - begun == sum(calls), "not every call ran the kernel"
    return f"{sum(calls)} calls of {THREADS} threads"


def autograd(subject: Subject) -> str:
    """Gradients of inputs and parameters where they are claimed; else the promised error."""
    inputs = [v.requires_grad_() if floating(v) else v for v in subject.inputs(0)]
    leaves = [v for v in inputs if floating(v)]
    if subject.op.operator.autograd == "none":
        found = subject.call(inputs)
        if not any(f.requires_grad for f in found):
            raise Skip("no gradient is claimed, and no result asks for one")
        return refused(found)
    parameters = [p for p in subject.layer.parameters() if p.requires_grad]
    before = subject.count()
    mine = gradients(listed(subject.layer(*inputs)), [*leaves, *parameters])
    assert subject.count() == before + 1, "no kernel ran"
    wanted = gradients(subject.reference(inputs), [*leaves, *parameters])
    pairs = [(f, w) for f, w in zip(mine, wanted, strict=True) if w is not None]
    assert pairs, "the reference has no gradient"
    assert all(f is not None for f, _ in pairs), "a gradient is missing"
    return f"{len(pairs)} gradients, {subject.same(*map(list, zip(*pairs, strict=True)))}"


def refused(found: Sequence[torch.Tensor]) -> str:
    """Raises AssertionError unless a backward pass says that none is claimed."""
    said = ""
    try:
        torch.stack([f.sum() for f in found if f.requires_grad]).sum().backward()
    except RuntimeError as error:
        said = str(error)
    assert "inference only" in said, f"a backward pass that was not claimed: {said or 'it ran'}"
    return "for inference only, and says so"


def gradients(outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> Sequence[Any]:
    """Of one random direction of the outputs, the same in every call."""
    total = torch.zeros((), device=outputs[0].device)
    for output in (o for o in outputs if o.requires_grad):
        made = torch.Generator().manual_seed(output.numel())
        weights = torch.randn(output.shape, generator=made, dtype=torch.float32)
        total = total + (output * weights.to(output)).sum().float()
    found: Sequence[Any] = torch.autograd.grad(total, list(leaves), allow_unused=True)
    return found


CHECKS: tuple[Callable[[Subject], str], ...] = (
    clean, kernel, fallback, opcheck, fullgraph, cuda_graph, threads, streams, autograd,
)  # fmt: skip


# --- time -----------------------------------------------------------------------------------------


def timed(subject: Subject) -> dict[str, Any]:
    """Batches of calls over many sets of inputs, in random order: the reference twice, so that it
    is its own null experiment, and the operator. In milliseconds a call, by round; `launch` is the
    launching thread's part of them.
    """
    first = subject.inputs(0)
    given_bytes = sum(v.nbytes for v in first if isinstance(v, torch.Tensor))
    with torch.no_grad():
        result_bytes = sum(f.nbytes for f in subject.call(first))
        once, _ = batch(subject, subject.reference, [first], WARM_S)
        most = int(MEMORY_SHARE * memory(subject) / max(1, given_bytes + result_bytes))
        count = max(1, min(MOST_SETS, most, math.ceil(BATCH_S / once)))
        sets = [subject.inputs(i) for i in range(count)]
        repeats = max(1, math.ceil(BATCH_S / once / count))
        runs = {
            "reference": subject.reference,
            "again": subject.reference,
            "operator": subject.call,
        }
        if subject.core is not None:
            os.sched_setaffinity(0, {subject.core})  # this thread's: the one that launches
        chance, before = random.Random(subject.seed), subject.count()
        rounds = []
        for _ in range(ROUNDS):
            taken = {"pace_us": 0.0 if subject.core is None else pace_us()}
            for name in chance.sample(list(runs), len(runs)):
                whole_s, launching_s = batch(subject, runs[name], sets, WARM_S, repeats)
                taken[f"{name}_ms"] = whole_s * 1e3
                taken[f"{name}_launch_ms"] = launching_s * 1e3
            rounds.append(taken)
        hits = subject.count() - before
    assert hits >= ROUNDS * count * repeats, "not every timed call ran the kernel"
    return {"rounds": rounds, "calls": count * repeats, "sets": count}


def pace_us() -> float:
    """That some calls of a tiny operator of the CPU take: the same code that launches run through.

    Neighbours that nobody here sees slow a core down for seconds; sixty microseconds of a kernel
    no longer hide the launching of the next one then.
    """
    spent, tiny = [], torch.zeros(8)
    for _ in range(LOOKS):
        start = time.perf_counter()
        for _ in range(CALLS):
            torch.relu(tiny)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e6


def batch(
    subject: Subject,
    run: Callable[[Any], Any],
    sets: Sequence[Any],
    warm_s: float,
    repeats: int = 1,
) -> tuple[float, float]:
    """Seconds a call, after a warm-up on the last set, and those of it that the launching thread
    took. Results stay until their set is called again, as in a campaign: memory that was let go of
    just now is written faster.
    """
    end = time.perf_counter() + warm_s
    while True:
        run(sets[-1])
        synchronise(subject)  # else so many calls wait in the queue as can be launched meanwhile
        if time.perf_counter() > end:
            break
    held: list[Any] = [None] * len(sets)
    start = time.perf_counter()
    for _ in range(repeats):
        for number, inputs in enumerate(sets):
            held[number] = run(inputs)
    launched, calls = time.perf_counter(), repeats * len(sets)
    synchronise(subject)
    return (time.perf_counter() - start) / calls, (launched - start) / calls


def synchronise(subject: Subject) -> None:
    if subject.device.type == "cuda":
        torch.cuda.synchronize()


def memory(subject: Subject) -> int:
    """Bytes that are free, on a GPU; 2 GiB on the CPU."""
    return int(torch.cuda.mem_get_info()[0]) if subject.device.type == "cuda" else 2 << 30


# --- the exchange ---------------------------------------------------------------------------------


def told(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines() or [""]
    return f"{type(failure).__name__}: {lines[0][:300]}"


def say(**fields: Any) -> None:
    print(f"\n{MARK}{json.dumps(fields)}", flush=True)


def main() -> None:
    logging.getLogger().addHandler(Heard(logging.WARNING))
    request = json.load(sys.stdin)
    if request["what"] == "check":
        check(Subject(request))
        return
    for one in request["operators"]:  # in one process: the library as a program uses it
        try:
            say(operator=one["operator"], **timed(Subject({**request, **one})))
        except Exception as failure:  # noqa: BLE001  one operator says nothing of the next
            say(operator=one["operator"], failed=told(failure))
        if request["device"] == "cuda":
            torch.cuda.empty_cache()


def check(subject: Subject) -> None:
    for one in CHECKS:
        start, state, detail = time.perf_counter(), "passed", ""
        try:
            detail = one(subject)
        except Skip as reason:
            state, detail = "skipped", str(reason)
        except Exception as failure:  # noqa: BLE001  one check says nothing of the next
            state, detail = "failed", told(failure)
        seconds = round(time.perf_counter() - start, 2)
        say(check=one.__name__, state=state, detail=detail, s=seconds)


if __name__ == "__main__":
    main()
