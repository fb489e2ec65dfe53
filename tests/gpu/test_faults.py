"""What breaks on a GPU: the right status, an honest one passes next, another lane goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Status, Task
from tests.gpu.test_languages import HACKS, TASK, source
from tests.sandbox.neighbour import Neighbour

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

CACHED = HACKS["a result cached by address"]
HONEST = CACHED.replace(
    CACHED[CACHED.index("        if x.data_ptr()") :], "        return torch.relu(x + self.bias)\n"
)
HOARD = """
HOARD = []
while torch.cuda.mem_get_info()[0] > {left} << 30:
    HOARD.append(torch.empty(1 << 28, device="cuda"))
"""
KERNELS = {
    "an out-of-bounds write": ("out[i] = y", "out[i + (1LL << 40)] = y", Status.RUNTIME_ERROR),
    "a kernel that never ends": (
        "const float y =",
        "for (;;) __nanosleep(1000);\n    const float y =",
        Status.TIMEOUT,
    ),
    "an assertion in a kernel": (
        "const float y =",
        'asm("trap;");\n    const float y =',
        Status.RUNTIME_ERROR,
    ),
}
FAULTS = {
    name: (source("cuda").replace(old, new), Language.CUDA, status)
    for name, (old, new, status) in KERNELS.items()
} | {
    "more than the GPU's memory": (
        HONEST.replace("class ModelNew", f"{HOARD.format(left=-1)}\nclass ModelNew"),
        Language.TORCH,
        Status.OUT_OF_MEMORY,
    ),
    "nearly all of the GPU's memory, when imported": (
        HONEST.replace("class ModelNew", f"{HOARD.format(left=1)}\nclass ModelNew"),
        Language.TORCH,
        Status.OUT_OF_MEMORY,
    ),
    "nearly all of the GPU's memory, at the first call": (
        HONEST.replace(
            "        return torch.relu",
            "        global HOARD\n        HOARD = globals().get('HOARD') or [\n"
            "            torch.empty(1 << 28, device='cuda')\n"
            "            for _ in range((torch.cuda.mem_get_info()[0] >> 28) - 2)\n        ]\n"
            "        return torch.relu",
        ),
        Language.TORCH,
        Status.OUT_OF_MEMORY,
    ),
    "a death while a kernel runs": (
        source("cuda")
        .replace("const float y =", "for (;;) __nanosleep(1000);\n    const float y =")
        .replace(
            "        return out", "        __import__('os').kill(__import__('os').getpid(), 9)"
        ),
        Language.CUDA,
        Status.RUNTIME_ERROR,
    ),
}


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neighbour]:
    """On the second GPU, or on the CPU where there is one GPU only: a lane has its GPU alone."""
    second = torch.cuda.device_count() > 1
    device, index = ("cuda", 1) if second else ("cpu", 0)
    cache: Path = tmp_path_factory.mktemp("neighbour")
    task = Task(f"test/neighbour_{device}", source("reference"), device)
    config = EvalConfig(rounds=6, single_share=0.1, min_pairs=2, max_pairs=2, baselines=())
    found = Neighbour(
        lambda: LocalEvaluator(device, index, cache_dir=cache),
        task,
        Candidate(task.id, Language.TORCH, HONEST),
        config,
    )
    yield found
    found.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_the_gpu_harms_nobody_else(
    evaluator: LocalEvaluator, config: EvalConfig, neighbour: Neighbour, fault: str
) -> None:
    text, language, status = FAULTS[fault]
    assert text not in (source("cuda"), HONEST)
    short = replace(config, run_timeout_s=8.0)
    broken = Candidate(TASK.id, language, text)
    found, others = neighbour.during(lambda: evaluator.evaluate(TASK, broken, short))
    assert found.status is status, found.detail
    assert {other.status for other in others} == {Status.PASSED}, [o.detail for o in others]
    good = Candidate(TASK.id, Language.CUDA, source("cuda"))
    after = evaluator.evaluate(TASK, good, short)
    assert after.status is Status.PASSED, after.detail
