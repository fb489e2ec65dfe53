"""The Python package: a source tree, a wheel and a source distribution that need torch alone.

DIR/manifest.json      evidence and hashes of everything below
DIR/artefacts/*.json   what every format is made from, and what `revalidate` judges again
DIR/pages/*.md         a page per kernel
DIR/source/            the tree; PACKAGE/library.json is its dispatch table
DIR/dist/              wheel and sdist, made from the tree by setuptools without a network
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from itertools import groupby
from pathlib import Path
from typing import Any

from agent.export.artefact import (
    Artefact,
    Finding,
    Gathered,
    Nothing,
    against_best,
    beats_eager,
    state_of,
    write_artefact,
)
from agent.export.binaries import Compiled, architectures, binding_of, compile_ahead
from agent.export.capture import Measured
from agent.export.folder import check_folder, staged
from agent.export.manifest import write_manifest
from agent.export.pages import page
from agent.export.runtime.machine import machine_of
from agent.export.runtime.records import LIBRARY, SCHEMA_VERSION, seal
from sandbox.errors import ConfigError
from sandbox.figures import Interval
from sandbox.judging.best import best_baseline
from sandbox.types import Language, digest

TORCH = "torch>=2.11,<2.14"
RUNTIME = "agent.export.runtime"
BUILD_TIMEOUT_S = 300
SETUPTOOLS = 77
"""The first to read the licence as PROJECT says it."""
OWNED = ("artefacts", "pages", "source", "dist")
"""Folders that an export replaces as a whole."""
TAKEN = frozenset(
    ("torch", "numpy", "cupy", "cupyx", "triton", "ninja", "cuda", "kernels", "setuptools", "pip")
) | {"warpsmith", "agent", "kernelbench", "rewards", "rl", "sandbox"}
"""What a library or its tools import: installed under such a name it would replace that."""
BUILD = """
import os, sys
from setuptools import build_meta
for hook in build_meta.build_sdist, build_meta.build_wheel:
    if os.fork() == 0:
        hook(sys.argv[1])
        break
    if os.wait()[1]:
        sys.exit(1)
"""
"""Each hook in a process of its own, as the standard for build back ends asks, forked from one."""
INIT = '''"""{about}

    import {package}
    {package}.names                     # {names}
    {package}.layer(NAME)               # a module with the reference's parameters
    {package}.operator(NAME)(x, ...)    # the operator: forward's arguments, parameters, buffers
    {package}.patch(model, *inputs)     # the operators where they fit in a model; unpatch(model)
    print({package}.table())            # where which kernel is used
"""

from pathlib import Path as _Path

from .runtime.library import opened as _opened
from .runtime.records import LibraryError

library = _opened(_Path(__file__).parent, __name__)
names, operator, layer = library.names, library.operator, library.layer
patch, unpatch = library.patch, library.unpatch
switch, counts, table = library.switch, library.counts, library.table
__version__ = library.library.version
__all__ = [
    "LibraryError", "counts", "layer", "library", "names", "operator", "patch", "switch", "table",
    "unpatch",
]  # fmt: skip
'''
MAIN = '''"""`python -m {package} table | verify`."""

import sys

from . import library

sys.exit(library.main(sys.argv[1:]))
'''
PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "{version}"
description = "{about}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = {dependencies}
{licence}
[project.optional-dependencies]
cuda12 = ["cupy-cuda12x>=14", "nvidia-cuda-nvrtc-cu12>=12.4"]
cuda13 = ["cupy-cuda13x>=14", "nvidia-cuda-nvrtc>=13.0,<13.1", "nvidia-cuda-crt>=13.0,<13.1"]

[tool.setuptools.packages.find]
include = ["{package}*"]

[tool.setuptools.package-data]
"{package}" = ["library.json", "kernels/*.py", "kernels/*.cubin", "pages/*.md"]
"""


def export_package(
    gathered: Gathered, folder: Path, package: str, archs: Sequence[str] = ()
) -> list[Path]:
    """Write the library; returns the distributions, then the manifest.

    `cuda` kernels get binaries for the GPUs they were measured on, and for `archs`.

    Raises ConfigError where the name or the folder cannot be used, or nothing can be exported.
    """
    check_name(package)
    check_folder(folder, "package")
    if not gathered.artefacts:
        why = "; ".join(f"{task}: {reason}" for task, reason in gathered.left_out)
        raise Nothing(f"nothing to put in a package: {why or 'the runs have no wins'}")
    try:
        ordered = sorted(gathered.artefacts, key=lambda a: (a.operator, a.candidate.id))
        with staged(folder, OWNED) as stage:
            paths = _write(ordered, dict(gathered.left_out), stage, package, archs)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return [folder / path.relative_to(stage) for path in paths]


def check_name(package: str) -> None:
    """Raises ConfigError where Python or an index could not use it, or an installation of it would
    take the place of what it needs.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", package) or keyword.iskeyword(package):
        raise ConfigError(f"package {package!r}: expected a name such as tuned_kernels")
    if package in sys.stdlib_module_names or package in TAKEN:
        raise ConfigError(
            f"package {package!r}: other code imports this name; expected one of your own, such as "
            "tuned_kernels"
        )


def renewed(
    folder: Path, owned: Sequence[str], artefacts: Sequence[Artefact], package: str | None
) -> str:
    """Make an export's own folders, write its artefacts and pages, and name its version.

    `package` is the one that the pages say how to import, None where there is none.
    """
    for name in owned:
        (folder / name).mkdir(parents=True)
    for artefact in artefacts:
        stem = f"{artefact.operator}-{artefact.candidate.id}"
        if (folder / "artefacts" / f"{stem}.json").exists():  # of another task of the operator
            stem += f"-{artefact.task.hash}"
        write_artefact(artefact, folder / "artefacts" / f"{stem}.json")
        (folder / "pages" / f"{stem}.md").write_text(page(artefact, package))
    return f"0.1.0+{digest([content_of(a) for a in artefacts])[:10]}"


def _write(
    artefacts: Sequence[Artefact],
    left_out: dict[str, str],
    folder: Path,
    package: str,
    archs: Sequence[str],
) -> list[Path]:
    version = renewed(folder, OWNED, artefacts, package)
    missing = _write_tree(artefacts, folder, package, version, archs)
    built = build(folder / "source", folder / "dist")
    facts = {
        "package": package,
        "version": version,
        "archs": list(archs),
        "left_out": left_out,
        "without_binaries": missing,
    }
    return [*built, write_manifest(folder, facts, artefacts)]


def build(tree: Path, dist: Path) -> list[Path]:
    """Source distribution and wheel of the tree; raises ConfigError with the last line."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(dist.resolve())],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        found = metadata.version("setuptools")
        if int(found.partition(".")[0]) < SETUPTOOLS:
            last = f"version {found} is installed; pip install 'setuptools>={SETUPTOOLS}'"
        raise ConfigError(f"{tree}: setuptools could not build it: {last}")
    for leftover in ("build", *(p.name for p in tree.glob("*.egg-info"))):
        shutil.rmtree(tree / leftover, ignore_errors=True)
    return sorted(dist.iterdir())


def _write_tree(
    artefacts: Sequence[Artefact], folder: Path, package: str, version: str, archs: Sequence[str]
) -> dict[str, list[str]]:
    tree, root = folder / "source", folder / "source" / package
    shutil.copytree(folder / "pages", root / "pages")
    names = ", ".join(dict.fromkeys(a.operator for a in artefacts))
    about = f"Tuned kernels for PyTorch: {names}"[:200]
    (root / "__init__.py").write_text(INIT.format(about=about, package=package, names=names))
    (root / "__main__.py").write_text(MAIN.format(package=package))
    missing = write_root(artefacts, root, package, package, version, archs)
    (tree / "README.md").write_text(_readme(about, package, artefacts))
    (tree / "pyproject.toml").write_text(_project(about, package, version, artefacts))
    return missing


def write_root(
    artefacts: Sequence[Artefact],
    root: Path,
    package: str,
    prefix: str,
    version: str,
    archs: Sequence[str],
) -> dict[str, list[str]]:
    """Beside the modules that are there: the runtime, sources, binaries, `library.json` over all.

    `prefix` is that of the environment's switches. Returns what NVRTC will have to compile where
    it is used, and why, by kernel.
    """
    (root / "kernels").mkdir(parents=True)
    _write_runtime(root)
    compiled = {a.candidate.id: compile_ahead(a, architectures(a, archs), root) for a in artefacts}
    operators = [
        _operator(name, list(group), root, package, compiled)
        for name, group in groupby(artefacts, key=lambda a: a.operator)
    ]
    files = {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }
    record = {
        "schema_version": SCHEMA_VERSION,
        "package": package,
        "prefix": prefix,
        "version": version,
        "operators": operators,
        "files": files,
    }
    (root / LIBRARY).write_text(seal(record))
    return {name: list(made.missing) for name, made in compiled.items() if made.missing}


def _write_runtime(root: Path) -> None:
    """The modules of agent/export/runtime, importing each other relative to where they are."""
    (root / "runtime").mkdir()
    for file in resources.files(RUNTIME).iterdir():
        if file.name.endswith(".py"):
            text = file.read_text().replace(f"from {RUNTIME}.", "from .")
            text = text.replace(f"from {RUNTIME} import", "from . import")
            (root / "runtime" / file.name).write_text(text)


def _operator(
    name: str,
    artefacts: list[Artefact],
    root: Path,
    package: str,
    compiled: Mapping[str, Compiled],
) -> dict[str, Any]:
    first = artefacts[0]
    # Of two operators with one name the later wins silently: other sources are another name.
    content = digest([first.reference, sorted(a.candidate.id for a in artefacts)])[:10]
    reference = f"kernels/{name}_reference.py"
    (root / reference).write_text(first.task.source)
    kernels = {a.candidate.id: _kernel(a, root, compiled[a.candidate.id]) for a in artefacts}
    rows = [
        _row(artefact, machine, finding, shape)
        for artefact in artefacts
        for machine, finding in artefact.decisive.items()
        for shape in artefact.interface.shapes
    ]
    return {
        "name": name,
        "namespace": f"{package}_{content}",
        "task_id": first.task.id,
        "dtype": first.task.dtype,
        "inputs": [list(pair) for pair in first.interface.inputs],
        "state": list(first.interface.state),
        "init": first.interface.init,
        "outputs": first.interface.outputs,
        "autograd": first.interface.autograd,
        "reference": reference,
        "reference_sha256": hashlib.sha256(first.task.source.encode()).hexdigest(),
        "kernels": list(kernels.values()),
        "rows": rows,
    }


def _kernel(artefact: Artefact, root: Path, compiled: Compiled) -> dict[str, Any]:
    file = f"kernels/{artefact.operator}_{artefact.candidate.id}.py"
    (root / file).write_text(artefact.candidate.source)
    return {
        "id": artefact.candidate.id,
        "file": file,
        "sha256": artefact.source_sha256,
        "language": artefact.candidate.language.value,
        "match": artefact.findings[-1].evaluation.parameters,
        "binding": binding_of(artefact),
        "binaries": list(compiled.records),
        "ordered": artefact.ordered,
        "repeats": artefact.repeats,
    }


def _row(artefact: Artefact, machine: str, finding: Finding, shape: Measured) -> dict[str, Any]:
    evaluation = finding.evaluation
    timed = shape == artefact.interface.shapes[0]
    return {
        "kernel": artefact.candidate.id,
        "machine": machine,
        "signature": shape.signature,
        "shape": shape.readable,
        "state": state_of(artefact, finding, shape),
        "speedup": _triple(evaluation.speedup) if timed else None,
        "best_baseline": best_baseline(evaluation.baselines)[0],
        "against_best": _triple(against_best(evaluation)) if timed else None,
        "precision": evaluation.precision or "-",
        "checked": finding.checked,
        "beats_eager": beats_eager(artefact, finding, shape),
    }


def _triple(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.value, interval.low, interval.high]


def content_of(artefact: Artefact) -> list[Any]:
    """What makes two versions of a library differ."""
    states = [
        [machine, shape.signature, state_of(artefact, finding, shape)]
        for machine, finding in artefact.decisive.items()
        for shape in artefact.interface.shapes
    ]
    return [artefact.reference, artefact.operator, artefact.candidate.id, states]


def _project(about: str, package: str, version: str, artefacts: Sequence[Artefact]) -> str:
    languages = {a.candidate.language for a in artefacts}
    needed = [TORCH, *(["ninja>=1.11"] if any(x.loads_inline for x in languages) else [])]
    if Language.CUDA in languages:
        needed.append("numpy>=2.0")
    if Language.TRITON in languages:
        needed.append("triton")
    licences = sorted({a.licence for a in artefacts} - {"unknown"})
    known = len({a.licence for a in artefacts}) == len(licences)
    return PROJECT.format(
        distribution=package.replace("_", "-"),
        version=version,
        about=about,
        dependencies=json.dumps(needed),
        licence=f'license = "{" AND ".join(licences)}"\n' if known else "",
        package=package,
    )


def _readme(about: str, package: str, artefacts: Sequence[Artefact]) -> str:
    rows = "".join(
        f"| `{a.operator}` | {a.task.id} | {machine_of(a.findings[-1].evaluation.environment)} "
        f"| {a.findings[-1].evaluation.speedup} | {against_best(a.findings[-1].evaluation)} |\n"
        for a in artefacts
    )
    return (
        f"# {package}\n\n{about}.\n\nA kernel runs where it was measured and won; everything else "
        f"is the PyTorch reference. `python -m {package} table` shows which; "
        f"`{package.upper()}_OFF=all` (or names) turns kernels off, and with "
        f"`{package.upper()}_AGAINST=eager` those run too that are faster than eager alone.\n\n"
        "| operator | task | measured on | against eager | against the best baseline |\n"
        f"|---|---|---|---|---|\n{rows}"
    )
