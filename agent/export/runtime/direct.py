"""Whether an operator may compute a call itself, past torch's dispatcher.

The dispatcher costs more than most short kernels take. It is needed where somebody watches or
changes the call: modes, transforms, tracing, autocast, a profile, tensors that are more than
storage.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

DEVICES = ("cpu", "cuda")
TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Subclasses have their own idea of a call."""
KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": TENSORS,
    "int": (int,),
    "float": (float,),
    "bool": (bool,),
}
"""By the schema's word; the dispatcher converts others, an int to a float say."""
ASKED = (
    "_len_torch_function_stack",
    "_len_torch_dispatch_stack",
    "_get_tracing_state",
    "_is_any_autocast_enabled",
)
KNOWN = all(hasattr(torch._C, name) for name in ASKED) and hasattr(torch._C, "_functorch")
"""These are torch's own: without them every call is the dispatcher's."""
if KNOWN:
    # Looked up once: every call asks.
    _functions, _dispatches, _tracing, _autocast = (getattr(torch._C, name) for name in ASKED)
    _transforms, _profiled = (
        torch._C._functorch.peek_interpreter_stack,
        torch.autograd._profiler_enabled,
    )


def watched() -> bool:
    """Whether anything stands between this thread's calls and their kernels."""
    return not KNOWN or bool(
        forward_ad._current_level >= 0
        or _functions()
        or _dispatches()
        or _transforms() is not None
        or _tracing() is not None
        or _autocast()
        or _profiled()
    )


def transformed() -> bool:
    """Whether this thread's calls are differentiated or batched as they are made, by a transform of
    torch.func or in forward mode, which reach no further than what torch itself computes.
    """
    return forward_ad._current_level >= 0 or (KNOWN and _transforms() is not None)


def plain(kinds: Sequence[tuple[type, ...]], types: Sequence[type]) -> bool:
    """Whether arguments of these types are what the schema says, and tensors no more than that."""
    if len(kinds) != len(types):
        return False
    return all(one in kind for kind, one in zip(kinds, types, strict=True))


def cast(arguments: Sequence[object], device: str, dtype: torch.dtype) -> list[object]:
    """As torch casts what an operator is given under autocast."""
    return [
        a.to(dtype)
        if isinstance(a, torch.Tensor)
        and a.is_floating_point()
        and a.device.type == device
        and a.dtype is not torch.float64
        else a
        for a in arguments
    ]
