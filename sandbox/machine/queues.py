"""How many of a GPU's queues a search's worker has for its kernels: fewer make its context sooner.

Every candidate has a process of its own, and so a CUDA context, which the driver makes for one
process of the host at a time. With two queues (CUDA_DEVICE_MAX_CONNECTIONS) instead of CUDA's eight
two H200s had 11.7 of them a second, not 7.8, and whoever asked the driver for memory meanwhile
waited for 6 ms, not 9 (benchmarks/contexts.py). Kernels on more streams than there are queues
wait for each other. So what may make streams, or graphs, whose branches run on them, has all eight,
and so has every worker of a whole measurement. Figures of a search come from the worker that has
two; rewards are such figures, and those of `train judge`.
"""

from __future__ import annotations

import re

FEW = 2
"""Two streams still run side by side."""
SEARCHED = "searched"
"""The role of a candidate whose worker is verified, and timed in a search alone."""
VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
MANY = re.compile(
    r"(?<![A-Za-z])Stream\(|\.Stream\b|import Stream\b|['\"]Stream['\"]"
    r"|[sS]treamCreate|StreamFromPool|cuda\.stream\(\)"
    r"|StreamPerThread|STREAM_PER_THREAD|PER_THREAD_DEFAULT|default-stream"
    r"|reduce-overhead|max-autotune(?!-no)|(?i:graph|lstm|\bgru|\brnn)"
)
"""What a source says that makes streams itself, or has a library make them: cuDNN's recurrent
layers do. To wrap a stream that there is (`cupy.cuda.ExternalStream`) makes none."""


def role_of(source: str, device: str) -> str:
    """Of the worker in which a candidate is loaded first. Who makes streams and hides it slows down
    itself alone.
    """
    return "candidate" if device == "cpu" or MANY.search(source) else SEARCHED


def environment(role: str) -> dict[str, str]:
    """What the worker of a role is told beside what all are, until its context is made."""
    return {VARIABLE: str(FEW)} if role == SEARCHED else {}
