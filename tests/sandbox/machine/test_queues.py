"""Which workers have few of a GPU's queues for kernels."""

import time
from typing import Any

import pytest

from agent.features.proposer import FeatureProposer
from agent.prompts.render import example
from kernelbench.suite import load_tasks
from sandbox.machine.handle import Worker
from sandbox.machine.queues import SEARCHED, VARIABLE, role_of
from sandbox.machine.quiet import Quiet
from sandbox.machine.ready import side_of
from sandbox.machine.spawn import Zygote
from sandbox.subjects.stand import Stand
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

LAUNCH = "kernel<<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x, cudaStream_t stream);"


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.current_stream().synchronize()",
        LAUNCH,
        "#include <c10/cuda/CUDAStream.h>\n#include <ATen/cuda/CUDAContext.h>",
        "// Stream the rows, four elements per thread, congruent to items_per_thread",
        "with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):\n    kernel()",
    ],
)
def test_a_kernel_on_the_current_stream_needs_few_queues(source: str) -> None:
    assert role_of(source, "cuda") == SEARCHED
    assert side_of(SEARCHED) == "candidate"


@pytest.mark.parametrize(
    "source",
    [
        "side = torch.cuda.Stream()",
        "from torch.cuda import Stream",
        "getattr(torch.cuda, 'Stream')",
        "side = cupy.cuda.Stream(non_blocking=True)",
        "pointer = cupy.cuda.runtime.streamCreateWithFlags(1)",
        "side = numba.cuda.stream()",
        "#define CUDA_API_PER_THREAD_DEFAULT_STREAM",
        "torch.compile(model, mode='max-autotune')",
        "cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);",
        "auto side = at::cuda::getStreamFromPool();",
        "kernel<<<1, 1, 0, cudaStreamPerThread>>>();",
        "extra_cuda_cflags=['--default-stream=per-thread']",
        "graph = torch.cuda.CUDAGraph()",
        "cudaGraphLaunch(made, 0);",
        "torch.compile(model, mode='reduce-overhead')",
        "self.rnn = torch.nn.LSTM(8, 8)",
        "torch.nn.GRUCell(8, 8)",
    ],
)
def test_what_may_make_streams_or_graphs_has_all_queues(source: str) -> None:
    assert role_of(source, "cuda") == "candidate"


def test_on_the_cpu_there_are_no_queues() -> None:
    assert role_of(LAUNCH, "cpu") == "candidate"


@pytest.mark.parametrize("language", [Language.CUDA, Language.CUDA_INLINE, Language.TRITON])
def test_what_prompts_show_and_what_the_feature_proposer_writes_needs_few(
    language: Language,
) -> None:
    assert role_of(example(language), "cuda") == SEARCHED


@pytest.mark.slow
def test_a_kernel_of_the_feature_proposers_needs_few() -> None:
    [task] = load_tasks("builtin/softmax", "cuda")
    found = FeatureProposer(order="random").propose(task, [], 4)
    assert {role_of(each.candidate.source, "cuda") for each in found} == {SEARCHED}


@pytest.mark.slow
def test_its_role_tells_a_worker_how_many_it_has(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One started anew and those made to be kept ready alike; a plain candidate's are CUDA's."""
    told = []
    spawn = Zygote.spawn

    def noted(self: Zygote, role: str, **options: Any) -> Worker:
        told.append(options["environment"])
        return spawn(self, role, **options)

    monkeypatch.setattr(Zygote, "spawn", noted)
    stand, task = Stand(zygote, Quiet(same_cores=False), ready=1), task_of(SCALE)
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    for role, environment in ((SEARCHED, {VARIABLE: "2"}), ("candidate", {})):
        stand.retire(stand.candidate(task, candidate, FAST, role=role)).result()
        deadline = time.monotonic() + 30
        while not stand.ready._waiting[role] and time.monotonic() < deadline:
            time.sleep(0.02)
        assert told == [environment] * 2
        told.clear()
    stand.ready.close()


def test_a_worker_has_what_it_is_told_in_its_environment(zygote: Zygote) -> None:
    worker = zygote.spawn("candidate", memory_limit_bytes=1 << 30, environment={VARIABLE: "2"})
    source = f"print(__import__('os').environ['{VARIABLE}'], flush=True)\nclass ModelNew: pass\n"
    worker.request("load", stage="load", timeout_s=20, source=source)
    worker.close()
    assert worker.stdout().strip() == "2"
