"""What modules hold beside parameters, buffers and modules, whose values a traced graph keeps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

PLAIN = (bool, int, float, str, type(None))
OWN = frozenset(vars(torch.nn.Module())) | {"forward", "_compiled_call_impl"}
"""What every module has, told apart by itself or read at every call."""


def _same(now: Any, value: Any) -> bool:
    return now is value if torch.is_tensor(value) else bool(now == value)


class Attributes:
    """What modules keep beside parameters, buffers and modules: a scale, an epsilon, a flag.

    What they are is compared, not what is inside of a list or an object.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._found: list[tuple[dict[str, Any], Callable[..., Any], Any]] = []
        self._shown: list[tuple[torch.nn.Module, str, Any]] = []
        for module in modules:
            kept = vars(module)
            names = [n for n in kept if n not in OWN]
            if names:
                get = operator.itemgetter(*names, names[0])  # always a tuple
                self._found.append((kept, get, get(kept)))
            self._shown += [
                (module, n, kept[n]) for n in names if isinstance(kept[n], (*PLAIN, torch.Tensor))
            ]

    def hold(self) -> bool:
        """Whether they are still the same; Dynamo, which guards what it is shown, is shown numbers,
        words and tensors.
        """
        if torch.compiler.is_compiling():
            return all(_same(getattr(module, name), value) for module, name, value in self._shown)
        try:
            return all(bool(get(kept) == found) for kept, get, found in self._found)
        except Exception:  # noqa: BLE001  tensors and the user's objects, where they were exchanged
            return False
