"""Which kernel, if any, a call may use: only one that was measured on this machine, with this
dtype, these shapes and strides, and won there. Everything else is the reference's.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from agent.export.runtime import compiled, driver, locks, models, raw, records, signature
from agent.export.runtime.counts import HIT, Counts
from agent.export.runtime.machine import machine
from agent.export.runtime.order import Order
from agent.export.runtime.switches import Against, Switches

logger = logging.getLogger(__name__)

Arguments = Sequence[signature.Argument]


class Loaded:
    """A kernel whose source was checked and imported."""

    def __init__(self, kernel: records.Kernel, kind: type[torch.nn.Module]) -> None:
        self.kernel, self.kind = kernel, kind


class Chosen:
    """A row of the table on one device, with the kernel's instances there."""

    def __init__(self, row: records.Row, repeats: bool) -> None:
        self.row, self.active, self.repeats = row, row.active, repeats
        self.loaded: Loaded | None = None
        """None before the first call, and for a kernel that is broken here."""
        self.order: Order | None = None
        """Shared by all signatures of a kernel that keeps something between calls."""
        self.instances: models.Instances[models.Instance] = models.Instances()


class Dispatch:
    """The table of one operator, its counts and its switches."""

    def __init__(
        self, package: str, folder: Path, operator: records.Operator, switches: Switches
    ) -> None:
        self.operator, self.counts = operator, Counts()
        self.on, self.against = switches.on, switches.against
        self.variable = switches.variable
        self._package, self._folder = package, folder
        self._rows: dict[str, dict[signature.Key, records.Row]] = defaultdict(dict)
        """By machine."""
        for row in sorted((r for r in operator.rows if r.active or r.beats_eager), key=_bound):
            self._rows[row.machine][signature.parse(row.signature)] = row
        self._here: dict[torch.device, dict[signature.Key, Chosen]] = {}
        """The same, of the machine that each device is."""
        self._kernels: dict[str, Loaded | None] = {}
        """By id; None for one that is broken here, and stays the reference's."""
        self._locks = {k.id: locks.lock() for k in operator.kernels if k.ordered}
        self._orders: dict[tuple[str, torch.device], Order] = {}
        """By id of a kernel that needs one."""

    def find(self, arguments: Arguments, init: str, device: torch.device) -> Chosen | None:
        """The kernel for this call, or None; counts which."""
        rows = self._here.get(device)
        if rows is None:
            rows = self._on(device)
        chosen: Chosen | None = None
        if not self.on:
            reason: str | None = "switched off"
        else:
            if rows:
                try:
                    chosen = rows.get(signature.key_of(device.type, arguments, init))
                except RuntimeError:  # a nested or sparse tensor has no sizes or strides
                    chosen = None
            if chosen is None:
                reason = "not measured here"
            elif torch.get_default_dtype() is not torch.float32:  # it was judged with this one
                reason = "another default dtype"
            elif not chosen.active and self.against is not Against.EAGER:
                reason = "faster than eager alone"
            elif not chosen.repeats and torch.are_deterministic_algorithms_enabled():
                reason = "not certain to repeat"
            else:
                reason = signature.misplaced(arguments, device)
                if reason is None and chosen.loaded is None and not self._loads(chosen):
                    reason = "kernel broken"
        self.counts.add(reason or HIT)
        return None if reason else chosen

    def uses(self, row: records.Row) -> bool:
        """Whether the row's kernel may do the calls of its signature on its machine."""
        return row.active or (row.beats_eager and self.against is Against.EAGER)

    def _on(self, device: torch.device) -> dict[signature.Key, Chosen]:
        rows = self._rows.get(machine(device.type, device.index or 0), {})
        repeating = {k.id for k in self.operator.kernels if k.repeats}
        chosen = {key: Chosen(row, row.kernel in repeating) for key, row in rows.items()}
        for one in chosen.values():
            lock = self._locks.get(one.row.kernel)
            if lock is not None:
                one.order = self._orders.setdefault((one.row.kernel, device), Order(lock))
        return self._here.setdefault(device, chosen)

    def give_up(self, kernel: str, error: BaseException) -> None:
        """From now on the reference does the work of this kernel, named by its id."""
        with models.LOADING:
            told = kernel in self._kernels and self._kernels[kernel] is None
            self._kernels[kernel] = None
            for chosen in [c for rows in list(self._here.values()) for c in rows.values()]:
                if chosen.row.kernel == kernel:
                    chosen.loaded = None
        if told:  # by another thread, whose call was under way too
            return
        logger.warning(
            "%s.%s: kernel %s is not used: %s: %s; the reference does its work",
            *(self._package, self.operator.name, kernel, type(error).__name__, error),
        )

    def _loads(self, chosen: Chosen) -> bool:
        """Loads the kernel at its first call; False where it is broken."""
        kernel = next(k for k in self.operator.kernels if k.id == chosen.row.kernel)
        with models.LOADING:
            if kernel.id not in self._kernels:
                try:
                    self._kernels[kernel.id] = self._import(kernel)
                except Exception as error:  # noqa: BLE001  whatever a kernel's module raises
                    self.give_up(kernel.id, error)
            chosen.loaded = self._kernels[kernel.id]
            return chosen.loaded is not None

    def _import(self, kernel: records.Kernel) -> Loaded:
        text = records.checked_source(self._folder, kernel.file, kernel.sha256)
        name = f"{self._package}._kernel_{kernel.id}"
        build = compiled.build_folder(self._package, kernel)
        path = self._folder / kernel.file
        kept = nullcontext() if build is None else compiled.sealed(build)
        with kept, torch.inference_mode(False):  # it may make tensors
            module = models.import_source(text, path, name, build, self._builtins(kernel))
        return Loaded(kernel, module.ModelNew)

    def _builtins(self, kernel: records.Kernel) -> dict[str, Any] | None:
        if kernel.binding != "driver" or kernel.language != "cuda":
            return None
        return raw.Cupy(self._folder, kernel.binaries, driver.Driver()).importing()


def _bound(row: records.Row) -> tuple[bool, float]:
    """A kernel that beats every baseline comes before one that beats eager alone."""
    figure = row.against_best if row.active else row.speedup
    return row.active, 0.0 if figure is None else figure[1]
