"""`torch.utils.cpp_extension.load_inline` and `load`, intercepted inside a walled process.

The build process compiles every call into a numbered folder; the run process finds the library of
a call with equal arguments in its private copy of those folders, and else compiles, into another
such folder, which the candidate's later processes are given. Both build with the ways of `faster`.
"""

from __future__ import annotations

import copy
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from sandbox.building.light import Ways
from sandbox.machine.killed import was_killed
from sandbox.walls.folders import ARTIFACTS
from sandbox.worker.extension_keys import Keys
from sandbox.worker.faster import Hurry

KEY, FAILED = "key", "failed"
"""In a call's folder: its key, and what a compiler said that refused it."""
SAID = 4000
"""Characters of that."""

STEP = re.compile(r"(^|(?<=: ))\[\d+/\d+\] .*")
"""A command that ninja ran; of the first one torch says that it failed, on the same line."""


class BuildFailed(RuntimeError):
    """The compiler or linker refused the candidate's source; a RuntimeError is what torch raises,
    and what a candidate that has another way is ready for.
    """


class Rehearsed(Exception):
    """An extension was called that is there to be compiled alone."""


class Unloaded:
    """What a rehearsal has for an extension: anything of it may be named, nothing called."""

    def __getattr__(self, name: str) -> Unloaded:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise Rehearsed


@dataclass
class Recorded:
    """What a build process made, and what would have made it faster."""

    artifacts: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Precompiled preludes that were not there."""
    rehearsing: bool = False
    """What is compiled now is not to be called."""


def record(folder: Path, ways: Ways, precompiled: Path | None) -> Recorded:
    """In a build process: compile each call into `artifacts/N` and list what was made."""
    hurry = Hurry(folder, ways, precompiled)
    hurry.install()
    recorded = Recorded(missing=hurry.missing)
    keys = Keys(folder)
    modules: dict[str, Any] = {}

    def make(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def build(*arguments: Any, **options: Any) -> Any:
            key = keys.key(kind, arguments, options)
            if key not in modules:
                modules[key] = compiled(key, original, arguments, options)
            return Unloaded() if recorded.rehearsing else modules[key]

        return build

    def compiled(
        key: str, original: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        target = folder / ARTIFACTS / str(len(recorded.artifacts))
        item = {"key": key, "libraries": [], "includes": included_by(options)}
        try:
            module = _compile(original, target, arguments, options, hurry)
        except BuildFailed as error:  # a candidate may have another way
            refused = {} if was_killed(str(error)) else {"failed": str(error)[:SAID]}
            recorded.artifacts.append(item | refused)
            raise
        recorded.artifacts.append(item | {"libraries": [p.name for p in target.glob("*.so")]})
        return module

    _patch(make)
    return recorded


def included_by(options: Mapping[str, Any]) -> list[str]:
    """The folders of headers that a call names, or its flags do."""
    found = list(map(str, options.get("extra_include_paths") or ()))
    for kind in ("extra_cflags", "extra_cuda_cflags"):
        flags = list(map(str, options.get(kind) or ()))
        for flag, following in zip_longest(flags, flags[1:], fillvalue=""):
            for prefix in ("-I", "-isystem"):
                if flag.startswith(prefix):
                    found.append(flag.removeprefix(prefix).strip() or following)
    return found


def intercept(folder: Path) -> None:
    """In a run process: load the library built for an equal call, or compile it here."""
    hurry = Hurry(folder, Ways(), None)
    hurry.install()
    keys = Keys(folder)
    modules: dict[str, Any] = {}

    def make(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def fetch(*arguments: Any, **options: Any) -> Any:
            key = keys.key(kind, arguments, options)
            if key not in modules:
                modules[key] = loaded(key, original, arguments, options)
            return modules[key]

        return fetch

    def loaded(
        key: str, original: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        known = _known(folder / ARTIFACTS, key)
        if known is None:
            return _late(folder / ARTIFACTS, key, original, arguments, options, hurry)
        if (known / FAILED).exists():
            raise BuildFailed((known / FAILED).read_text(errors="replace"))
        # Not always name.so: torch numbers the libraries that share a name.
        library = min(known.glob("*.so"))
        return _load(library.stem, library, options.get("is_python_module", True))

    _patch(make)


def _known(artifacts: Path, key: str) -> Path | None:
    """The folder of a call with this key that was compiled before; rather one that has a library: a
    candidate may try again under another environment.
    """
    found = [
        folder
        for folder in (sorted(artifacts.iterdir()) if artifacts.is_dir() else ())
        if (folder / KEY).exists() and (folder / KEY).read_text() == key
    ]
    whole = [f for f in found if (f / FAILED).exists() or any(f.glob("*.so"))]
    return min(whole, key=lambda f: (f / FAILED).exists(), default=None)


def _late(
    artifacts: Path,
    key: str,
    original: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    hurry: Hurry,
) -> Any:
    """Compiled now; the folder is whole once it has its key."""
    number = sum(1 for _ in artifacts.glob("late-*")) if artifacts.is_dir() else 0
    target = artifacts / f"late-{number}"
    try:
        module = _compile(original, target, arguments, options, hurry)
    except BuildFailed as error:
        if not was_killed(str(error)):
            (target / FAILED).write_text(str(error)[:SAID])
        (target / KEY).write_text(key)
        raise
    (target / KEY).write_text(key)
    return module


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
