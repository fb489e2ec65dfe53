"""`torch.utils.cpp_extension.load_inline` and `load`, intercepted inside a walled process.

The build process compiles every call into a numbered folder; the run process finds the n-th call's
library in its private copy of those folders when the arguments are the same, and compiles
otherwise. Both build with the ways of `faster`.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from sandbox.light import Ways
from sandbox.worker.faster import Hurry

ARTIFACTS = "artifacts"
"""Folder under a worker's scratch folder; one numbered folder per call."""


STEP = re.compile(r"(^|(?<=: ))\[\d+/\d+\] .*")
"""A command that ninja ran; of the first one torch says that it failed, on the same line."""


class BuildFailed(Exception):
    """The compiler or linker refused the candidate's source."""


def arguments_hash(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Names one call: equal hashes compile to equal libraries on one toolchain."""
    text = json.dumps([name, arguments, options], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Recorded:
    """What a build process made, and what would have made it faster."""

    artifacts: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    """Precompiled preludes that were not there."""


def record(folder: Path, ways: Ways, precompiled: Path | None) -> Recorded:
    """In a build process: compile each call into `artifacts/N` and list what was made."""
    built: list[dict[str, Any]] = []
    hurry = Hurry(folder, ways, precompiled)
    hurry.install()

    def make(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def build(*arguments: Any, **options: Any) -> Any:
            key = arguments_hash(kind, arguments, options)
            target = folder / ARTIFACTS / str(len(built))
            module = _compile(original, target, arguments, options, hurry)
            libraries = [p.name for p in target.glob("*.so")]
            built.append({"index": len(built), "key": key, "libraries": libraries})
            return module

        return build

    _patch(make)
    return Recorded(built, hurry.missing)


def intercept(folder: Path) -> None:
    """In a run process: load the library built for the same call, or compile it here."""
    calls = 0
    hurry = Hurry(folder, Ways(), None)
    hurry.install()

    def make(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def fetch(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            key = arguments_hash(kind, arguments, options)
            target = folder / ARTIFACTS / str(calls)
            calls += 1
            # Not always name.so: torch numbers the libraries that share a name.
            library = next(iter(sorted(target.glob("*.so"))), None)
            recorded = target / "key"
            if library and recorded.exists() and recorded.read_text() == key:
                return _load(library.stem, library, options.get("is_python_module", True))
            return _compile(original, folder / "late" / str(calls), arguments, options, hurry)

        return fetch

    _patch(make)


def _patch(make: Callable[[Callable[..., Any], str], Callable[..., Any]]) -> None:
    cpp_extension.load_inline = make(cpp_extension.load_inline, "load_inline")
    cpp_extension.load = make(cpp_extension.load, "load")


def _compile(
    original: Callable[..., Any],
    target: Path,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    hurry: Hurry,
) -> Any:
    again = copy.deepcopy((arguments, options))  # torch adds its headers to the caller's lists
    versions = dict(cpp_extension.JIT_EXTENSION_VERSIONER.entries)
    hurry.used = False
    try:
        return _call(original, target, arguments, options)
    except (ImportError, OSError):
        if not hurry.used:
            raise
    # It compiled with light headers and cannot be loaded: once more with torch's own steps alone.
    shutil.rmtree(target)
    cpp_extension.JIT_EXTENSION_VERSIONER.entries = versions
    with hurry.off():
        return _call(original, target, *again)


def _call(
    original: Callable[..., Any], target: Path, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    target.mkdir(parents=True, exist_ok=True)
    try:
        return original(*arguments, **{**options, "build_directory": str(target)})
    except RuntimeError as error:
        raise BuildFailed(without_commands(str(error))) from error


def without_commands(printed: str) -> str:
    """What ninja printed, without its own lines and the compilers' command lines: one of these can
    be longer than what a worker may say.
    """
    kept, failed = [], False
    for line in printed.splitlines():
        words = STEP.sub("", line)
        ninjas = not words or words.startswith(("FAILED: ", "ninja: "))
        if not ninjas and not failed:  # the line after FAILED is the command once more
            kept.append(words)
        failed = line.startswith("FAILED: ")
    return "\n".join(kept)


def _load(name: str, library: Path, python_module: bool) -> Any:
    if not python_module:
        torch.ops.load_library(str(library))
        return str(library)
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module
