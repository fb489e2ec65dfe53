"""Tasks that are prepared, kept for their next candidates as far as there is room."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from sandbox.errors import InvalidReference, SandboxFault, Shortage
from sandbox.judging.invalid import NoRoom
from sandbox.prepare import Preparation

KEPT_SHARE = {"cpu": 0.15, "cuda": 0.3}
"""Of the device's memory that the secret cases of prepared tasks may hold: on a GPU one task's are
up to 4 GiB, and the ten of a learning campaign are needed again in every generation."""


@dataclass(frozen=True)
class Refused:
    """Why a task cannot be scored; its exception's frames would hold gigabytes of cases."""

    reason: str
    no_room: bool = False
    """For want of memory alone."""

    @property
    def ours(self) -> SandboxFault:
        """The fault that it is where the task was valid before."""
        return (Shortage if self.no_room else SandboxFault)(f"it was valid before: {self.reason}")


def valid(found: Preparation | Refused) -> Preparation:
    """Raises InvalidReference, or NoRoom, with the reason where that was kept instead."""
    if isinstance(found, Refused):
        raise (NoRoom if found.no_room else InvalidReference)(found.reason)
    return found


class Prepared:
    """By task and configuration: what evaluations share, or why there are none."""

    def __init__(self, device: str, memory_bytes: int) -> None:
        self._cuda, self._room = device == "cuda", KEPT_SHARE[device] * memory_bytes
        self._known: OrderedDict[str, Preparation | Refused] = OrderedDict()

    def get(self, key: str) -> Preparation | Refused | None:
        """Leaves what was used longest ago as it is, so that any thread may look."""
        return self._known.get(key)

    def use(self, key: str) -> Preparation | Refused | None:
        """As `get`, while the device is held."""
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def keep(self, key: str, found: Preparation | Refused) -> None:
        """Drops the tasks used longest ago, as far as there is no room beside it."""
        self._known[key] = found
        before = len(self._known)
        while len(self._known) > 1 and self._held_bytes() > self._room:
            self._known.popitem(last=False)
        if self._cuda and len(self._known) < before:
            torch.cuda.empty_cache()

    def forget_cases(self) -> None:
        """Drop every task's; what is known of those that cannot be scored stays."""
        for key in [k for k, found in self._known.items() if isinstance(found, Preparation)]:
            del self._known[key]

    def clear(self) -> None:
        self._known.clear()

    def values(self) -> list[Preparation | Refused]:
        """From what was used longest ago."""
        return list(self._known.values())

    def _held_bytes(self) -> int:
        return sum(p.bytes for p in self._known.values() if isinstance(p, Preparation))
