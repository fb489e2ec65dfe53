"""Which workers have few of a GPU's queues for kernels."""

import pytest

from sandbox.queues import SEARCHED, role_of
from sandbox.quiet import Quiet
from sandbox.ready import side_of
from sandbox.spawn import Zygote
from sandbox.stand import Stand
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

LAUNCH = "kernel<<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(x, cudaStream_t stream);"
TELLS = "print(__import__('os').environ.get('CUDA_DEVICE_MAX_CONNECTIONS'), flush=True)"


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.current_stream().synchronize()",
        LAUNCH,
        "#include <c10/cuda/CUDAStream.h>\n#include <ATen/cuda/CUDAContext.h>",
        "// grid-stride loop over a stream of rows",
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
        "cupy.cuda.ExternalStream(pointer)",
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


@pytest.mark.parametrize("ready", [0, 1], ids=["started anew", "kept ready"])
def test_a_workers_role_tells_how_many_it_has(zygote: Zygote, ready: int) -> None:
    stand, task = Stand(zygote, Quiet(same_cores=False), ready=ready), task_of(SCALE)
    said = {}
    for role in (SEARCHED, "candidate"):
        # The second is one of those made since the first was asked for.
        for _ in range(1 + ready):
            candidate = Candidate(task.id, Language.TORCH, forward("return y", top=TELLS))
            subject = stand.candidate(task, candidate, FAST, role=role)
            stand.retire(subject).result()
            said.setdefault(role, set()).add(subject.worker.stdout().strip())
    stand.ready.close()
    assert said == {SEARCHED: {"2"}, "candidate": {"None"}}
