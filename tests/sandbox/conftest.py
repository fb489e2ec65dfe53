"""One evaluator, zygote and reference task for the whole session; figures are never asserted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.machine.handle import Worker
from sandbox.machine.spawn import Zygote
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Task

FAST = EvalConfig(
    preset="test",
    baselines=(),
    rounds=3,
    batch_ms=0.5,
    max_sets=8,
    min_pairs=2,
    max_pairs=2,
    build_timeout_s=60,
    load_timeout_s=20,
    run_timeout_s=20,
    memory_limit_bytes=2 << 30,
)

SCALE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return torch.relu(x) * self.factor + 1.0


def get_inputs():
    return [torch.randn(7, 129)]


def get_init_inputs():
    return [3.0]
"""
"""Output (7, 129) float32, contiguous."""

LINEAR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n) / n**0.5)
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        return x @ self.weight.T + self.bias


def get_inputs():
    return [torch.randn(5, 33)]


def get_init_inputs():
    return [33]
"""

MODEL_NEW = """
import torch
import torch.nn as nn
{top}

class ModelNew(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
{body}
"""
"""A candidate for SCALE; `y` is the right answer."""

Evaluate = Callable[..., Evaluation]


def forward(*lines: str, top: str = "") -> str:
    """A candidate for SCALE whose forward runs `lines` after computing the right answer `y`."""
    body = ["y = torch.relu(x) * self.factor + 1.0", *lines]
    return MODEL_NEW.format(top=top, body="\n".join(" " * 8 + line for line in body))


def renamed(reference: str) -> str:
    """The reference itself as a candidate."""
    return reference.replace("class Model(", "class ModelNew(")


def task_of(source: str, name: str = "test/task", **options: object) -> Task:
    return Task(name, source, "cpu", **options)  # type: ignore[arg-type]


def commands_of(session_of: int) -> list[int]:
    """Pids of the processes that `session_of` started, walled workers included."""
    parents = dict(living())
    return [pid for pid in parents if session_of in ancestors(pid, parents)]


def living() -> Iterator[tuple[int, int]]:
    """Every process with its parent, but for those that ended or are zombies."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text()
            state, parent = text.rpartition(")")[2].split(maxsplit=2)[:2]
            if state not in "ZX":
                yield int(name), int(parent)


def ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    """Parents of a process, nearest first, up to one that is not among the living."""
    line: list[int] = []
    while pid in parents and pid > 1:
        pid = parents[pid]
        line.append(pid)
    return line


def workers_alive(evaluator: LocalEvaluator) -> list[int]:
    """Processes beneath this evaluator's zygotes."""
    zygotes = {evaluator._zygote.pid, evaluator._builder._zygote.pid} - {None}
    return [pid for zygote in zygotes for pid in commands_of(int(zygote or 0))]


_EARLIER: set[Path] = set()
"""Scratch folders at the start of the test: evaluators of other tests keep workers warm."""


def scratch_folders() -> list[Path]:
    """Those that this process has made since the test began."""
    root = Path("/var/tmp") / f"warpsmith-{os.geteuid()}"
    found = root.glob(f"{os.getpid()}-*") if root.is_dir() else ()
    return [folder for folder in found if folder.is_dir() and folder not in _EARLIER]


@pytest.fixture(autouse=True)
def _earlier_scratch() -> None:
    _EARLIER.clear()
    _EARLIER.update(scratch_folders())


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    """What Inductor finds of this machine's vector instructions by compiling for ten seconds and
    more is one for all processes of a parallel run.
    """
    found = tmp_path_factory.mktemp("cache")
    (shared / "probes").mkdir(exist_ok=True)
    (found / "inductor").mkdir()
    (found / "inductor" / "probes").symlink_to(shared / "probes")
    return found


@pytest.fixture(scope="session")
def evaluator(one_core: None, cache: Path) -> Iterator[LocalEvaluator]:
    found = LocalEvaluator("cpu", cache_dir=cache)
    yield found
    found.close()


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No baseline is taken for a disturbed one, of two pairs on a busy machine."""
    monkeypatch.setattr("sandbox.baselines.rival.DISTURBED", math.inf)


@pytest.fixture
def evaluate(evaluator: LocalEvaluator) -> Evaluate:
    """Judge a source against SCALE, or another reference, and see that nothing is left behind."""

    def run(
        source: str,
        reference: str = SCALE,
        language: Language = Language.TORCH,
        config: EvalConfig = FAST,
        **options: object,
    ) -> Evaluation:
        task = task_of(reference, **options)
        found = evaluator.evaluate(task, Candidate(task.id, language, source), config)
        evaluator.cool()
        assert workers_alive(evaluator) == []
        assert scratch_folders() == []
        assert "\n" not in found.detail
        return found

    return run


@pytest.fixture(scope="session")
def zygote(one_core: None) -> Iterator[Zygote]:
    found = Zygote("cpu")
    yield found
    found.close()


@pytest.fixture
def worker(zygote: Zygote) -> Iterator[Worker]:
    """A walled candidate worker, set up and empty."""
    found = zygote.spawn("candidate", memory_limit_bytes=1 << 30)
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "tf32": None}
    found.request("setup", stage="load", timeout_s=20, **options)
    yield found
    found.close()
