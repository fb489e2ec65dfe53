"""Loading a source file as a module and building its model: the same steps for reference and
candidate.
"""

from __future__ import annotations

import base64
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from sandbox.machine import trees


class ContractError(Exception):
    """The source does not define what KernelBench's contract asks for."""


def load_module(source: str, name: str, folder: Path) -> ModuleType:
    """Execute `source` as module `name` from a real file, which Triton and inspect need."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def require(module: ModuleType, *names: str) -> None:
    """Raise ContractError unless the module defines every name."""
    for name in names:
        if not callable(getattr(module, name, None)):
            raise ContractError(f"the source defines no {name}")


def seed_all(seed: int) -> None:
    """Seed torch's CPU and device generators."""
    torch.manual_seed(seed)


def precision() -> tuple[bool, bool]:
    """Whether matmul and convolution may use TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def apply_precision(matmul: bool, convolution: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = convolution


def construct(kind: Any, arguments: Sequence[Any], seed: int) -> torch.nn.Module:
    """The model as its constructor leaves it under `seed`, in mode `train`; KernelBench moves and
    casts it afterwards.
    """
    seed_all(seed)
    model = kind(*arguments)
    if not isinstance(model, torch.nn.Module):
        raise ContractError(f"{kind.__name__} is no torch.nn.Module")
    return model


def state_of(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters, then buffers, in registration order."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor.detach()) for name, tensor in named]


def cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    """Move tensors to `device`; floating ones become `dtype`, integer and bool ones keep their
    type.
    """
    tree, tensors = trees.flatten(value, torch.is_tensor)
    moved = [
        t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype) for t in tensors
    ]
    return trees.unflatten(tree, moved)


def encode(value: Any) -> dict[str, Any]:
    """Constructor arguments as JSON; tensors (rare, small) as base64."""
    tree, tensors = trees.flatten(value, torch.is_tensor)
    packed = []
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = base64.b64encode(flat.numpy().tobytes()).decode()
        packed.append([list(tensor.shape), str(tensor.dtype).removeprefix("torch."), data])
    return {"tree": tree, "tensors": packed}


def decode(record: Mapping[str, Any]) -> Any:
    """The inverse of `encode`."""
    tensors = []
    for shape, dtype, data in record["tensors"]:
        raw = bytearray(base64.b64decode(data))
        flat = torch.frombuffer(raw, dtype=getattr(torch, dtype)) if raw else torch.empty(0)
        tensors.append(flat.reshape(shape))
    return trees.unflatten(record["tree"], tensors)
