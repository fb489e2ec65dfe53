"""What an installed operator must be able to do; a check raises where it cannot."""

from __future__ import annotations

import copy
import importlib.util
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import functional_call

from .exchange import told
from .subject import Subject, error, floating, listed, synchronise

FOREIGN = ("warpsmith", "sandbox", "agent", "kernelbench")
THREADS, SECONDS = 4, 1.0
CLOSE = 1e-4
"""Of gradients, to the largest of them."""
WITH_GRADIENTS = ("test_autograd_registration", "test_aot_dispatch_dynamic")
"""What opcheck asks of gradients; the rest it asks once, without."""
WARNED: list[str] = []
ROOM = 4.0
"""Times the reference's own error that a result may be off, as in the campaign."""


class Skip(Exception):
    """A check that does not apply here; the message says why."""


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
        named = {name: widened(tensor.detach()) for name, tensor in subject.named.items()}
        model = copy.deepcopy(subject.model).double()
        return listed(functional_call(model, named, tuple(map(widened, inputs))))
    except Exception:  # noqa: BLE001  whatever a reference raises in another dtype
        return None


def widened(value: Any) -> Any:
    return value.double() if floating(value) else value


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
