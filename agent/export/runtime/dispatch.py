"""Which kernel, if any, a call may use: only one that was measured on this machine, with this
dtype, these shapes and strides, and won there. Everything else is the reference's.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

from agent.export.runtime import compiled, driver, models, raw, records, signature
from agent.export.runtime.counts import Counts
from agent.export.runtime.machine import machine

logger = logging.getLogger(__name__)

Arguments = list[signature.Argument]


class Loaded:
    """A kernel whose source was checked and imported, and its instances."""

    def __init__(self, kernel: records.Kernel, kind: type[torch.nn.Module]) -> None:
        self.kernel, self.kind, self.instances = kernel, kind, models.Instances()


class Dispatch:
    """The table of one operator, its counts and its switch."""

    def __init__(self, package: str, folder: Path, operator: records.Operator) -> None:
        self.operator, self.counts, self.on = (
            operator,
            Counts(),
            not switched_off(package, operator.name),
        )
        self._package, self._folder = package, folder
        self._rows: dict[tuple[str, signature.Key], records.Row] = {}
        for row in sorted((r for r in operator.rows if r.active), key=_bound):
            self._rows[row.machine, signature.parse(row.signature)] = row
        self._kernels: dict[str, Loaded | None] = {}
        """By id; None for one that is broken here, and stays the reference's."""

    def find(self, arguments: Arguments, init: str, device: torch.device) -> Loaded | None:
        """The kernel for this call, or None; counts which."""
        kernel, reason = self._decide(arguments, init, device)
        self.counts.add(reason)
        return kernel

    def _decide(
        self, arguments: Arguments, init: str, device: torch.device
    ) -> tuple[Loaded | None, str]:
        if not self.on:
            return None, "switched off"
        key = signature.key_of(device.type, arguments, init)
        row = self._rows.get((machine(device.type, device.index or 0), key))
        if row is None:
            return None, "not measured here"
        if not signature.aligned(arguments):
            return None, "not aligned"
        kernel = self._kernels[row.kernel] if row.kernel in self._kernels else self._load(row)
        return (None, "kernel broken") if kernel is None else (kernel, "kernel")

    def give_up(self, kernel: records.Kernel, error: BaseException) -> None:
        """From now on the reference does this kernel's work."""
        self._kernels[kernel.id] = None
        logger.warning(
            "%s.%s: kernel %s is not used: %s: %s; the reference does its work",
            *(self._package, self.operator.name, kernel.id, type(error).__name__, error),
        )

    def _load(self, row: records.Row) -> Loaded | None:
        kernel = next(k for k in self.operator.kernels if k.id == row.kernel)
        with models.LOADING:
            if kernel.id not in self._kernels:
                try:
                    self._kernels[kernel.id] = self._import(kernel)
                except Exception as error:  # noqa: BLE001  whatever a kernel's module raises
                    self.give_up(kernel, error)
            return self._kernels[kernel.id]

    def _import(self, kernel: records.Kernel) -> Loaded:
        text = records.checked_source(self._folder, kernel.file, kernel.sha256)
        name = f"{self._package}._kernel_{kernel.id}"
        build = compiled.build_folder(self._package, kernel)
        path = self._folder / kernel.file
        with compiled.sealed(build):
            module = models.import_source(text, path, name, build, self._builtins(kernel))
        return Loaded(kernel, module.ModelNew)

    def _builtins(self, kernel: records.Kernel) -> dict[str, Any] | None:
        if kernel.binding != "driver" or kernel.language != "cuda":
            return None
        return raw.Cupy(self._folder, kernel.binaries, driver.Driver()).importing()


def switched_off(package: str, name: str) -> bool:
    """`PACKAGE_OFF=softmax,matmul` or `=all`, as it is when an operator is first used."""
    off = os.environ.get(f"{package.upper()}_OFF", "")
    return bool({"all", name} & {word.strip() for word in off.split(",")})


def _bound(row: records.Row) -> float:
    return 0.0 if row.against_best is None else row.against_best[1]
