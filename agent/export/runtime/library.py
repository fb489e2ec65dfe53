"""The library as its package offers it: operators by name, layers, table, counts and switches.

Nothing is compiled, and no kernel's code runs, before its operator is called with a signature that
it won.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agent.export.runtime import locks, records, switches, tables
from agent.export.runtime.layers import Layer
from agent.export.runtime.operators import Custom
from agent.export.runtime.structure import forwards
from agent.export.runtime.substitution import Patch, Site

DEFINED: dict[tuple[str, str], Custom] = {}
"""By namespace and name: a reloaded package finds its operators again."""
DEFINING = locks.rlock()
MANIFEST = "manifest.json"
TREES = ("source", "build")
"""What an exported folder calls the one that the package's folder is in."""


def opened(folder: Path, package: str) -> KernelLibrary:
    """The package's library. `python -m PACKAGE` ends with one clear line where it cannot be
    trusted; whoever imports it gets the LibraryError.
    """
    try:
        return KernelLibrary(folder)
    except records.LibraryError as error:
        if package in sys.orig_argv and sys.orig_argv[sys.orig_argv.index(package) - 1] == "-m":
            print(f"{package}: {error}", file=sys.stderr)
            sys.exit(2)
        raise


class KernelLibrary:
    """Raises LibraryError where `library.json` cannot be trusted."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.library = folder, records.read_library(folder)
        self._known = {operator.name: operator for operator in self.library.operators}
        self._warned = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    def operator(self, name: str) -> Custom:
        """Call it with the arguments of forward, then parameters and buffers in their order."""
        if name not in self._known:
            raise AttributeError(f"{self.library.package} has no {name!r}; it has {self.names}")
        record = self._known[name]
        with DEFINING:
            key = record.namespace, name
            if key not in DEFINED:
                if not self._warned:
                    self._warned = True
                    switches.warn_of_strangers(self.library.prefix, self.names)
                chosen = switches.from_environment(self.library.prefix, name)
                DEFINED[key] = Custom(self.library.package, self.folder, record, chosen)
            return DEFINED[key]

    def layer(self, name: str, *init: Any) -> Layer:
        """A module with the reference's parameters, constructed like it; by default as measured."""
        return Layer(self.operator(name), *init)

    def patch(
        self, model: torch.nn.Module, *inputs: Any, only: Sequence[str] | None = None, **named: Any
    ) -> Patch:
        """Put the operators where they fit in the model; with inputs at once, else when it is
        called.

        `only` names the operators to use. Raises LibraryError for a model that is patched already.
        """
        if self._site(model) is not None:
            raise records.LibraryError("the model is patched already: unpatch it first")
        names = self.names if only is None else tuple(only)
        made = Patch(model, {name: self.operator(name) for name in names})
        if inputs or named:
            try:
                with torch.no_grad():
                    model(*inputs, **named)
            except BaseException:  # Ctrl-C too: a model that did not run must be as it was.
                made.unpatch()
                raise
        return made

    def unpatch(self, model: torch.nn.Module) -> None:
        """Give a model its own forward back; nothing happens to one that is not patched.

        Raises LibraryError where another library was put into it after this one.
        """
        site = self._site(model)
        if site is not None:
            site.patch.unpatch()

    def _site(self, model: torch.nn.Module) -> Site | None:
        """This library's, also where another's stands before it."""
        return next((f for f in forwards(model) if isinstance(f, Site)), None)

    def switch(self, name: str, on: bool | None = None, against: str | None = None) -> None:
        """Let an operator's kernels be used, or leave all its calls to the reference.

        `against` is what a kernel must be faster than: `best`, every baseline that was measured, or
        `eager` alone. What is not given stays as it is. Raises LibraryError for other words.
        """
        dispatch = self.operator(name).dispatch
        if against is not None:
            dispatch.against = switches.against(against, "against")
        if on is not None:
            dispatch.on = on

    def counts(self) -> dict[str, dict[str, int]]:
        """By operator: calls that a kernel did, and calls of the reference by reason."""
        return {name: self.operator(name).dispatch.counts.read() for name in self.names}

    def table(self) -> str:
        """Every measured signature and what happens with it on this machine."""
        return tables.table(self.library, [self.operator(n).dispatch for n in self.names])

    def verify(self) -> list[str]:
        """Files that are missing or not as they were built; of an exported folder's own tree its
        manifest too, which an installed package has not.
        """
        found = []
        manifest = self.folder.parents[1] / MANIFEST
        if self.folder.parent.name in TREES and manifest.is_file():
            try:
                records.check_manifest(manifest)
            except records.LibraryError as error:
                found.append(str(error))
        for file, sha256 in self.library.files.items():
            try:
                records.checked_bytes(self.folder, file, sha256)
            except records.LibraryError as error:
                found.append(str(error))
        return found

    def main(self, arguments: list[str]) -> int:
        """`python -m PACKAGE table | verify`."""
        if arguments == ["table"]:
            try:
                print(self.table())
            except records.LibraryError as error:
                print(f"{self.library.package}: {error}", file=sys.stderr)
                return 2
            return 0
        if arguments == ["verify"]:
            broken = self.verify()
            print("\n".join(broken) or f"{len(self.library.files)} files are as they were built")
            return 1 if broken else 0
        print(f"usage: python -m {self.library.package} table | verify")
        return 2
