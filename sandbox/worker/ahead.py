"""Triton's kernels compiled ahead of the run, in a process without a GPU.

The candidate is called on tensors that have no memory (torch's FakeTensorMode), and what it would
launch is compiled for the GPU of the run, into Triton's own cache, which the run's workers are
given. Nothing rests on it: a kernel that is called otherwise there is compiled there, as every
kernel is of a candidate that cannot be called like this.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sandbox.machine import memory, trees
from sandbox.machine.trees import Leaf
from sandbox.worker import models

logger = logging.getLogger(__name__)

BEGUN_WITHIN_S = 45.0
"""Of the 60 s for which the supervisor waits (sandbox/building/build.py)."""
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


def described(
    reference: str, shapes: Sequence[Sequence[Sequence[Any]]], folder: Path
) -> list[dict[str, Any]]:
    """What calls of a task are made from, per shape, a list of (constant, value): constructor
    arguments and inputs, of which there are no values. In a process of its own: the candidate sees
    no reference.
    """
    task = models.load_module(reference, "reference", folder)
    found = []
    for constants in shapes:
        vars(task).update((name, value) for name, value in constants)
        init = models.cast(list(task.get_init_inputs()), "cpu", torch.float32)
        with without_device(), FakeTensorMode(allow_non_fake_inputs=True):
            tree, tensors = trees.flatten(task.get_inputs(), torch.is_tensor)
            leaves = [memory.describe(tensor).to_json() for tensor in tensors]
        found.append({"init": models.encode(init), "tree": tree, "leaves": leaves})
    return found


def compile_ahead(
    source: str,
    calls: Sequence[dict[str, Any]],
    dtype: torch.dtype,
    capability: int,
    folder: Path,
) -> tuple[int, str]:
    """Make these calls (`described`), beginning no new compilation after `BEGUN_WITHIN_S`.

    `capability`: 90 for sm_90. Returns how many kernels were compiled, and why no more were where
    the candidate could not be called to its end.
    """
    compiled: list[Any] = []
    problem = ""
    with elsewhere(capability, compiled, time.monotonic() + BEGUN_WITHIN_S):
        try:
            module = models.load_module(source, "candidate", folder)
            for asked in calls:
                call(module.ModelNew, asked, dtype)
        except Exception as error:  # noqa: BLE001  candidates raise anything; the run says what
            problem = f"{type(error).__name__}: {error}"
    link(compiled)
    return len(compiled), problem[:500]


def rehearse(
    source: str,
    calls: Sequence[dict[str, Any]],
    dtype: torch.dtype,
    capability: int | None,
    folder: Path,
) -> str:
    """Make these calls (`described`), each as far as it goes; `capability` is None for calls on the
    CPU. Returns why the last that did not come to its end did not.
    """
    problem, device = "", "cpu" if capability is None else "cuda"
    with without_device() if capability is None else elsewhere(capability, [], time.monotonic()):
        module: Any = None
        for asked in calls:
            try:
                module = module or models.load_module(source, "candidate", folder)
                call(module.ModelNew, asked, dtype, device)
            except Exception as error:  # noqa: BLE001  candidates raise anything; the run says what
                problem = f"{type(error).__name__}: {error}"
    return problem[:500]


class OutOfTime(Exception):
    """What is left is compiled in the run."""


def call(kind: Any, asked: dict[str, Any], dtype: torch.dtype, device: str = "cuda") -> None:
    """One call as the run makes it, on tensors without memory."""
    init = models.decode(asked["init"])
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = models.construct(kind, init, 0)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            # A build of torch without CUDA cannot move one there, and can make one there.
            return absent(tensor.shape, tensor.stride(), tensor.dtype)

        def absent(shape: Any, stride: Any, kind: torch.dtype) -> torch.Tensor:
            kept = dtype if kind.is_floating_point else kind
            return torch.empty_strided(shape, stride, dtype=kept, device=device)

        for module in model.modules():
            for name, tensor in module._parameters.items():
                if tensor is not None:
                    module._parameters[name] = torch.nn.Parameter(moved(tensor), False)
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    module._buffers[name] = moved(tensor)
        leaves = [Leaf.from_json(leaf) for leaf in asked["leaves"]]
        inputs = [absent(leaf.shape, leaf.stride, memory.dtype_of(leaf)) for leaf in leaves]
        model(*trees.unflatten(asked["tree"], inputs))


@contextlib.contextmanager
def without_device() -> Iterator[None]:
    """torch's fake tensors leave the device alone, whoever says that there is one."""
    from torch._subclasses import fake_tensor

    with contextlib.ExitStack() as stack:
        for name in ("init_gpu_context", "init_cuda_context"):  # by version
            stack.enter_context(mock.patch.object(fake_tensor, name, create=True))
        always = property(lambda self: True, lambda self, value: None)
        stack.enter_context(
            mock.patch.object(FakeTensorMode, "avoid_device_init", always, create=True)
        )
        yield


@contextlib.contextmanager
def elsewhere(capability: int, compiled: list[Any], until: float) -> Iterator[None]:
    """As on a machine with that GPU, as far as a candidate asks; every kernel that is launched is
    compiled, and listed once, until that time (time.monotonic).
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
        if time.monotonic() > until:
            raise OutOfTime
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        if kernel is not None and all(kernel is not known for known in compiled):
            compiled.append(kernel)
        return kernel

    def every_configuration(self: Any, *arguments: Any, **options: Any) -> None:
        self.nargs = dict(zip(self.arg_names, arguments, strict=False))
        for configuration in self.prune_configs(options):
            chosen = {**options, **configuration.all_kwargs()}
            try:
                if configuration.pre_hook is not None:
                    configuration.pre_hook({**self.nargs, **chosen})
                self.fn.run(*arguments, **chosen)
            except OutOfTime:
                raise
            except Exception as error:  # noqa: BLE001  the run leaves it out as well
                logger.debug("%s: %s", configuration, error)
        self.nargs = None

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
        without_device(),
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
        folder = Path(self.cache_dir)
        if not (folder / f"__grp__{filename}").is_file():
            return known(self, filename)
        own = [path for path in folder.iterdir() if not path.name.startswith("__grp__")]
        return {path.name: str(path) for path in own if path.is_file()}

    FileCacheManager.get_group = get_group
