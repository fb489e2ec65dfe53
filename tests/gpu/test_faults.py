"""What breaks on a GPU: the right status, an honest one passes next, another lane goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Status, Task
from tests.gpu.test_languages import CUDA_FAULTS, HACKS, TASK, source
from tests.sandbox.neighbour import Neighbour

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

HOARD = "[torch.empty(1 << 34, device='cuda') for _ in range(16)]"
KERNELS = {
    name: (source("cuda").replace(old, new), Language.CUDA, status)
    for name, (old, new, status) in CUDA_FAULTS.items()
    if status in (Status.RUNTIME_ERROR, Status.TIMEOUT)
} | {
    "an assertion in a kernel": (
        source("cuda").replace("const float y =", 'asm("trap;");\n    const float y ='),
        Language.CUDA,
        Status.RUNTIME_ERROR,
    ),
    "all of the GPU's memory": (
        HACKS["a result cached by address"].replace("CACHE = {}", f"CACHE = {{}}\nHOG = {HOARD}"),
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
    torch_source = HACKS["a result cached by address"]
    honest = torch_source.replace(
        torch_source[torch_source.index("        if x.data_ptr()") :],
        "        return torch.relu(x + self.bias)\n",
    )
    task = Task(f"test/neighbour_{device}", source("reference"), device)
    config = EvalConfig(rounds=6, single_share=0.1, min_pairs=2, max_pairs=2, baselines=())
    found = Neighbour(
        lambda: LocalEvaluator(device, index, cache_dir=cache),
        task,
        Candidate(task.id, Language.TORCH, honest),
        config,
    )
    yield found
    found.close()


@pytest.mark.parametrize("fault", KERNELS)
def test_a_fault_on_the_gpu_harms_nobody_else(
    evaluator: LocalEvaluator, config: EvalConfig, neighbour: Neighbour, fault: str
) -> None:
    text, language, status = KERNELS[fault]
    assert text != source("cuda")
    short = replace(config, run_timeout_s=8.0)
    broken = Candidate(TASK.id, language, text)
    found, others = neighbour.during(lambda: evaluator.evaluate(TASK, broken, short))
    assert found.status is status, found.detail
    assert {other.status for other in others} == {Status.PASSED}, [o.detail for o in others]
    good = Candidate(TASK.id, Language.CUDA, source("cuda"))
    after = evaluator.evaluate(TASK, good, short)
    assert after.status is Status.PASSED, after.detail
