"""Triton's kernels compiled ahead of the run, in a process without a GPU.

The candidate is called on tensors that have no memory (torch's FakeTensorMode), and what it would
launch is compiled for the GPU of the run, into Triton's own cache, which the run's workers are
given. Nothing rests on it: a kernel that is called otherwise there is compiled there, as every
kernel is of a candidate that cannot be called like this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sandbox import trees
from sandbox.worker import models

LIKELY_GPU = {
    "name": "NVIDIA GPU",
    "multi_processor_count": 132,
    "total_memory": 80 << 30,
    "L2_cache_size": 50 << 20,
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
}
"""What a candidate is told of a GPU that is not here (an H100's figures). Grids are made from it,
which compile alike for any; a kernel that has one as a constant is compiled in the run."""


class AbsentDriver:
    """Triton's driver of a GPU that is elsewhere (triton.backends.driver.DriverBase)."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)
        self.utils = SimpleNamespace(get_device_properties=lambda device: shared(capability))

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda


def shared(capability: int) -> dict[str, int]:
    """What Triton's own driver tells of a GPU."""
    return {
        "max_shared_mem": LIKELY_GPU["shared_memory_per_block_optin"],  # type: ignore[dict-item]
        "max_num_regs": 65536,
        "multiprocessor_count": LIKELY_GPU["multi_processor_count"],  # type: ignore[dict-item]
        "warpSize": 32,
        "sm_clock_rate": 1_980_000,
        "mem_clock_rate": 2_619_000,
        "mem_bus_width": 5120,
    }


def compile_ahead(
    source: str,
    reference: str,
    shapes: Sequence[Sequence[Sequence[Any]]],
    dtype: torch.dtype,
    capability: int,
    folder: Path,
) -> tuple[int, str]:
    """Call the candidate once per shape of its task, a list of (constant, value).

    `capability`: 90 for sm_90. Returns how many kernels were compiled, and why no more were where
    the candidate could not be called to its end.
    """
    compiled: list[Any] = []
    problem = ""
    with elsewhere(capability, compiled):
        try:
            module = models.load_module(source, "candidate", folder)
            task = models.load_module(reference, "reference", folder)
            for constants in shapes:
                vars(task).update((name, value) for name, value in constants)
                call(module.ModelNew, task, dtype)
        except Exception as error:  # noqa: BLE001  candidates raise anything; the run says what
            problem = f"{type(error).__name__}: {error}"
    link(compiled)
    return len(compiled), problem[:500]


def call(kind: Any, task: Any, dtype: torch.dtype) -> None:
    """One call as the run makes it, on tensors without memory."""
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
        init = models.cast(list(task.get_init_inputs()), "cpu", torch.float32)
        model = models.construct(kind, init, 0)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            # A build of torch without CUDA cannot move one there, and can make one there.
            kept = tensor.dtype if not tensor.is_floating_point() else dtype
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kept, device="cuda")

        for module in model.modules():
            for name, tensor in module._parameters.items():
                if tensor is not None:
                    module._parameters[name] = torch.nn.Parameter(moved(tensor), False)
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    module._buffers[name] = moved(tensor)
        tree, tensors = trees.flatten(task.get_inputs(), torch.is_tensor)
        model(*trees.unflatten(tree, [moved(tensor) for tensor in tensors]))
        del fake


@contextlib.contextmanager
def elsewhere(capability: int, compiled: list[Any]) -> Iterator[None]:
    """As on a machine with that GPU, as far as a candidate asks; every kernel that is launched is
    compiled, and listed once.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    driver.set_active(AbsentDriver(capability))
    run = JITFunction.run

    def compiling(
        self: Any, *arguments: Any, grid: Any, warmup: bool = False, **options: Any
    ) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        if kernel is not None and all(kernel is not known for known in compiled):
            compiled.append(kernel)
        return kernel

    def every_configuration(
        self: Any, *arguments: Any, warmup: bool = False, **options: Any
    ) -> Any:
        return self.warmup(*arguments, **options)

    major, minor = divmod(capability, 10)
    gpu = SimpleNamespace(**LIKELY_GPU, major=major, minor=minor)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "device": lambda device: contextlib.nullcontext(),
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_properties": lambda device=None: gpu,
    }
    with (
        mock.patch.object(JITFunction, "run", compiling),
        mock.patch.object(Autotuner, "run", every_configuration),
        # Fresh memory is aligned, and so are tensors that begin where it does.
        mock.patch.object(FakeTensor, "data_ptr", return_value=0, create=True),
        mock.patch.multiple(torch.cuda, **answers),
    ):
        yield


def link(compiled: Sequence[Any]) -> None:
    """Compile what launches the kernels too: Triton makes C code for it, by signature, and loads
    what it has made, which may fail where no driver is.
    """
    from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

    with contextlib.suppress(Exception):
        CudaUtils()
    for kernel in compiled:
        with contextlib.suppress(Exception):
            CudaLauncher(kernel.src, kernel.metadata)


def movable_cache() -> None:
    """Let this process find what Triton cached in another folder: its index names whole paths."""
    from triton.runtime.cache import FileCacheManager

    known = FileCacheManager.get_group

    def get_group(self: Any, filename: str) -> Any:
        found = known(self, filename)
        path = Path(self.cache_dir) / f"__grp__{filename}"
        if found or not path.exists():
            return found
        return {p.name: str(p) for p in path.parent.iterdir() if not p.name.startswith("__grp__")}

    FileCacheManager.get_group = get_group
