"""What calling an exported operator costs beside its kernel, on this machine.

Measured on a probe: an operator as the package makes them, with so many tensors, whose kernel and
reference are one short operation. Time is the calling thread's own (CPU seconds, the least of many
batches), so that other processes change little. On a GPU it is the launching thread's time, which
the queue hides while there is work in it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from agent.export.runtime.machine import machine
from agent.export.runtime.models import state_names
from agent.export.runtime.operators import Custom
from agent.export.runtime.records import Kernel, Operator, Row
from agent.export.runtime.signature import signature_of

ROWS, FEATURES = 64, 32
CALLS, BATCHES, WARM = 50, 60, 50
SOURCE = """
import torch
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i in range({state}):
            setattr(self, f"state{{i}}", torch.nn.Parameter(torch.ones({features})))
    def forward(self, x, *rest):
        return torch.relu(x)
"""
NUMBERS = count()


@dataclass(frozen=True)
class Probe:
    """An operator, what it calls, and arguments that the kernel was and was not measured on."""

    custom: Custom
    kernel: torch.nn.Module
    reference: torch.nn.Module
    hit: tuple[Any, ...]
    miss: tuple[Any, ...]
    inputs: int
    """Of the arguments, those of forward; the rest are parameters."""


@contextmanager
def probe(device: str, inputs: int = 1, state: int = 1, ordered: bool = False) -> Iterator[Probe]:
    """An operator of so many tensors and parameters, whose kernel's calls follow each other where
    they are `ordered`.
    """
    with TemporaryDirectory(prefix="probe") as name:
        folder = Path(name)
        texts = {
            kind: SOURCE.format(name=kind, state=state, features=FEATURES)
            for kind in ("Model", "ModelNew")
        }
        for kind, text in texts.items():
            (folder / f"{kind}.py").write_text(text)
        given = [torch.randn(ROWS, FEATURES, device=device) for _ in range(inputs)]
        held = [torch.ones(FEATURES, device=device) for _ in range(state)]
        arguments = (*given, *held)
        operator = _operator(texts, device, arguments, inputs, ordered)
        custom = Custom("warpsmith_probe", folder, operator)
        modules = []
        for kind in texts:
            space: dict[str, Any] = {}
            exec(texts[kind], space)
            module = space[kind]().to(device)
            module.requires_grad_(False)
            modules.append(module)
        half = tuple(g[: ROWS // 2] for g in given)
        yield Probe(custom, modules[1], modules[0], arguments, (*half, *held), inputs)


@cache
def operator_ms(device: str, inputs: int = 1, state: int = 1, ordered: bool = False) -> float:
    """Of one call that its kernel does, beyond the kernel."""
    with probe(device, inputs, state, ordered) as made, torch.no_grad():
        given = made.hit[:inputs]
        called = cpu_s(lambda: made.custom(*made.hit))
        alone = cpu_s(lambda: made.kernel(*given))
    return max(0.0, called - alone) * 1e3


def cpu_s(call: Callable[[], Any]) -> float:
    """CPU seconds of this thread per call, the least of many batches."""
    for _ in range(WARM):
        call()
    taken = []
    for _ in range(BATCHES):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        taken.append((time.thread_time() - start) / CALLS)
    return min(taken)


def _operator(
    texts: dict[str, str],
    device: str,
    arguments: tuple[torch.Tensor, ...],
    inputs: int,
    ordered: bool,
) -> Operator:
    hashes = {kind: hashlib.sha256(text.encode()).hexdigest() for kind, text in texts.items()}
    signature = signature_of(device, arguments, "[]")
    row = Row("probe", machine(device), signature, "", "active", None, "eager", None, "-", "probe")
    kernel = Kernel("probe", "ModelNew.py", hashes["ModelNew"], "triton", "name", ordered=ordered)
    space: dict[str, Any] = {}
    exec(texts["Model"], space)
    return Operator(
        name="probe",
        namespace=f"warpsmith_probe_{next(NUMBERS)}",
        task_id="probe",
        dtype="float32",
        inputs=tuple((f"x{i}", "Tensor") for i in range(inputs)),
        state=tuple(state_names(space["Model"]())),
        init="[]",
        outputs=None,
        autograd="recompute",
        reference="Model.py",
        reference_sha256=hashes["Model"],
        kernels=(kernel,),
        rows=(row,),
    )
