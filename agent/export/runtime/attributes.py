"""What modules hold beside parameters, buffers and modules, whose values a traced graph keeps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

PLAIN = (bool, int, float, str, type(None))
PASSING = (
    "forward",
    "_compiled_call_impl",
    "_replicate_for_data_parallel",
    "__prepare_scriptable__",
)
"""What comes with a patch or with torch.compile, and goes."""
OWN = frozenset(vars(torch.nn.Module())) | set(PASSING)
"""What every module has, told apart by itself or read at every call."""


def _count(kept: dict[str, Any]) -> int:
    return len(kept) - sum([name in kept for name in PASSING])


def _same(now: Any, value: Any) -> bool:
    return now is value if torch.is_tensor(value) else bool(now == value)


def _of_class(kind: type, hidden: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Numbers and words that the class has for its instances, but for those of nn.Module."""
    known = {*hidden, *dir(torch.nn.Module)}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if name not in known and not name.startswith("__") and isinstance(value, PLAIN):
                known.add(name)
                yield name, value


class Attributes:
    """What modules keep beside parameters, buffers and modules: a scale, an epsilon, a flag.

    What they are is compared, not what is inside of a list or an object.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._found: list[tuple[dict[str, Any], Callable[..., Any], Any]] = []
        self._shown: list[tuple[torch.nn.Module, str, Any]] = []
        self._of_classes: list[tuple[torch.nn.Module, str, Any]] = []
        self._counts: list[tuple[dict[str, Any], int]] = []
        for module in modules:
            kept = vars(module)
            names = [n for n in kept if n not in OWN]
            self._counts.append((kept, _count(kept)))
            if names:
                get = operator.itemgetter(*names, names[0])  # always a tuple
                self._found.append((kept, get, get(kept)))
            self._shown += [
                (module, n, kept[n]) for n in names if isinstance(kept[n], (*PLAIN, torch.Tensor))
            ]
            self._of_classes += [(module, n, v) for n, v in _of_class(type(module), names)]

    def hold(self) -> bool:
        """Whether they are still the same; Dynamo, which guards what it is shown, is shown numbers,
        words and tensors.
        """
        if any(getattr(module, name, None) != value for module, name, value in self._of_classes):
            return False
        if torch.compiler.is_compiling():
            return all(_same(getattr(module, name), value) for module, name, value in self._shown)
        for kept, count in self._counts:
            if _count(kept) != count:
                return False
        try:
            return all(bool(get(kept) == found) for kept, get, found in self._found)
        except Exception:  # noqa: BLE001  tensors and the user's objects, where they were exchanged
            return False
