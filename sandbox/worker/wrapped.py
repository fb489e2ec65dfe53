"""The reference's model as baselines run it: compiled, or as a CUDA graph."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from sandbox.machine import trees

THREADS = 16
"""At most, that compile what max-autotune chooses from: their Python runs by turns, compilers do
not."""


def wrapped(model: torch.nn.Module, how: str | None) -> Any:
    """The model as a baseline runs it."""
    if how is None:
        return model
    if os.access("/tmp", os.W_OK):  # the walls' own: the same path in every worker
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/torchinductor_worker"
    if how == "compile":
        return torch.compile(model)
    if how == "max_autotune":
        compile_in_threads()
        return torch.compile(model, mode="max-autotune-no-cudagraphs")
    if how == "cuda_graph":
        return GraphReplay(model)
    raise ValueError(f"unknown baseline {how!r}")


def compile_in_threads() -> None:
    """What a search chooses from is compiled side by side: dozens of kernels a product. Inductor is
    imported under another number (sandbox/machine/spawn.py), and starts no pool of processes.
    """
    importlib.import_module("torch._inductor.config")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(min(THREADS, len(os.sched_getaffinity(0))))


@contextlib.contextmanager
def untuned() -> Iterator[None]:
    """Kernels of Inductor's run in the first of their configurations, and are to be tuned yet: it
    times them all when a kernel is called first, whatever else is at work.
    """
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    except ImportError:  # pragma: no cover - a torch without Inductor
        yield
        return
    run = CachingAutotuner.run

    def first(kernel: Any, *arguments: Any, **options: Any) -> Any:
        if not kernel.launchers:
            kernel.precompile()
        several = kernel.launchers
        if len(several) < 2:
            return run(kernel, *arguments, **options)
        kernel.launchers = several[:1]
        try:
            return run(kernel, *arguments, **options)
        finally:
            kernel.launchers = several
            if hasattr(kernel, "_cached_launcher"):
                kernel._cached_launcher = None

    CachingAutotuner.run = first
    try:
        yield
    finally:
        CachingAutotuner.run = run


class GraphReplay:
    """Copy-in, CUDA-graph replay, clone-out: the honest price of a graph on fresh inputs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.graph: torch.cuda.CUDAGraph | None = None
        self.static: list[torch.Tensor] = []
        self.tree: dict[str, Any] = {}
        self.output: Any = None

    def __call__(self, *arguments: Any) -> Any:
        tree, tensors = trees.flatten(list(arguments), torch.is_tensor)
        if self.graph is None:
            self.capture(tree, tensors)
        assert self.graph is not None
        for static, fresh in zip(self.static, tensors, strict=True):
            static.copy_(fresh)
        self.graph.replay()
        tree, outputs = trees.flatten(self.output, torch.is_tensor)
        return trees.unflatten(tree, [t.clone() for t in outputs])

    def capture(self, tree: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        """The graph of one call, with inputs of its own; after three calls, since what a first one
        allocates or tunes cannot be captured (torch.cuda.graph).
        """
        self.static = [t.clone() for t in tensors]
        arguments = trees.unflatten(tree, self.static)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # which still copies the inputs
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.model(*arguments)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = self.model(*arguments)
