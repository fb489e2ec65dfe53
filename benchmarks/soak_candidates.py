"""What a soak evaluates: right, wrong, crashing and hanging candidates of one task, never twice the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import count

from sandbox.types import Candidate, Language, Status, Task

EXAMPLES = files("agent.prompts") / "examples"
REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(x + self.bias)


def get_inputs():
    return [torch.randn({rows}, 1024)]


def get_init_inputs():
    return [1024]
"""
ROWS = {"cpu": 64, "cuda": 4096}
REWRITE = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return {result}
"""
RIGHT = "(x + self.bias).clamp_min(0)"


@dataclass(frozen=True)
class Kind:
    name: str
    language: Language
    source: str
    expected: Status


def kinds(device: str) -> tuple[Kind, ...]:
    """One round of ten: half of them right, one that hangs until its time is up."""
    kernel = (EXAMPLES / ("cuda.py.j2" if device == "cuda" else "cpp.py.j2")).read_text()
    language = Language.CUDA if device == "cuda" else Language.CPP
    torch_right = Kind("rewrite", Language.TORCH, rewrite(RIGHT), Status.PASSED)
    shared = (
        torch_right,
        Kind("kernel", language, kernel, Status.PASSED),
        Kind("wrong", Language.TORCH, rewrite(f"{RIGHT} * 1.001"), Status.WRONG_VALUE),
        torch_right,
        Kind("raises", Language.TORCH, rewrite("x.no_such_method()"), Status.RUNTIME_ERROR),
        torch_right,
        Kind("no Python", Language.TORCH, rewrite("return"), Status.COMPILE_ERROR),
    )
    if device == "cuda":
        return (
            *shared,
            Kind("kernel", language, kernel, Status.PASSED),
            Kind("illegal address", language, outside(kernel), Status.RUNTIME_ERROR),
            Kind("kernel hangs", language, endless(kernel), Status.TIMEOUT),
        )
    segfault = rewrite("__import__('ctypes').string_at(0)")
    return (
        *shared,
        torch_right,
        Kind("segfault", Language.TORCH, segfault, Status.RUNTIME_ERROR),
        Kind("hangs", Language.TORCH, rewrite("[0 for _ in iter(int, 1)]"), Status.TIMEOUT),
    )


def rewrite(result: str) -> str:
    return REWRITE.format(result=result)


def outside(kernel: str) -> str:
    """Writes far beyond its output."""
    return replaced(kernel, "out[i] = y", "out[i + (1LL << 40)] = y")


def endless(kernel: str) -> str:
    return replaced(kernel, "const float y =", "for (;;) __nanosleep(1000);\n    const float y =")


def replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise ValueError(f"the worked example no longer holds {old!r}")
    return text.replace(old, new, 1)


def task(device: str) -> Task:
    return Task("soak/bias_relu", REFERENCE.replace("{rows}", str(ROWS[device])), device)


def candidates(device: str, first: int, run: str) -> Iterator[tuple[Kind, Candidate]]:
    """Endlessly, from number `first` on; `run` keeps another run's builds from answering."""
    round_of = kinds(device)
    for number in count(first):
        kind = round_of[number % len(round_of)]
        unlike = f"RUN, NUMBER = {run!r}, {number}\n{kind.source}"
        yield kind, Candidate(task(device).id, kind.language, unlike)
