"""Faster steps for torch's own extension builder, inside a build process: light headers, the
prelude precompiled, nvcc's steps side by side, and no second compilation of what none could mend.
Where torch's internals are not as expected, its own steps run unchanged.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from sandbox.building import light
from sandbox.worker import lacking, nvcc_steps

OPERATORS = Path(torch.__file__).parent / "include" / "ATen" / "ops"
GCH = light.PRELUDE + ".gch"


@dataclass
class Hurry:
    """What one process does to build faster, and which preludes it would have liked ready-made."""

    folder: Path
    """The process's own; the light headers are written there."""
    ways: light.Ways
    precompiled: Path | None
    """Folder of ready-made preludes, each in a folder named by its key."""
    missing: list[dict[str, Any]] = field(default_factory=list)
    used: bool = False
    """Whether light headers were put before a source; the caller resets it."""
    enabled: bool = True

    def install(self) -> None:
        """Take the place of torch's call of ninja."""
        original = getattr(cpp_extension, "_run_ninja_build", None)
        if self.ways.light_headers and original is not None:
            cpp_extension._run_ninja_build = self.around(original)

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(build_directory: str, *arguments: Any, **options: Any) -> Any:
            if self.enabled:
                self.rewrite(Path(build_directory) / "build.ninja")
            return original(build_directory, *arguments, **options)

        return run

    def rewrite(self, path: Path) -> None:
        """Put the light steps into a ninja file, with the headers they need."""
        shadow = self.folder / "light"
        made = light.lighten(
            path.read_text(),
            lambda name: Path(name).read_text(),
            shadow,
            OPERATORS,
            commands(self.ways),
        )
        if made is None:
            return
        tree = {f"{name}/{light.OPERATORS}": text for name, text in made.operators.items()}
        light.write_tree(shadow, {**light.shadow_tree(), **tree})
        prelude = shadow / light.PRELUDE
        if self.ways.precompiled and self.precompiled is not None and made.cflags:
            key = light.prelude_key(compiler(), made.cflags)
            if (self.precompiled / key / GCH).is_file():
                prelude = self.precompiled / key / light.PRELUDE
            else:
                cuda = "\ncuda_cflags = " in made.ninja
                flags = light.own_flags(made.cflags)
                self.missing.append({"key": key, "cuda": cuda, "flags": flags})
        path.write_text(light.with_prelude(made.ninja, prelude))
        self.used = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Torch's own steps alone."""
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = True


def commands(ways: light.Ways) -> light.Commands:
    """As ninja starts them."""

    def script(path: str) -> str:
        return shlex.join([sys.executable, "-I", "-S", path])

    steps, lacks = script(nvcc_steps.__file__), f"{script(lacking.__file__)} $out.light $in"
    found = light.Commands(f"{steps} $nvcc" if ways.side_by_side else "$nvcc")
    if not ways.lacking:
        return found
    host = f"{lacks} $cxx $cflags -E $in && "
    cuda = f"{lacks} {steps} --preprocess $nvcc $cuda_cflags -c $in -o $out && "
    return replace(found, host=host, cuda=cuda)


def compiler() -> str:
    """The host compiler's name and version: it reads no other's precompiled headers, and says
    nothing of that.
    """
    cxx = cpp_extension.get_cxx_compiler()
    try:
        said = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # a candidate may name any; what comes of it is ninja's to say
        return str(cxx)
    return f"{cxx} {said.stdout}"


def precompile(folder: Path, flags: list[str], cuda: bool) -> dict[str, Any]:
    """Compile the prelude with the flags that torch gives host sources; returns its key and file.

    Raises RuntimeError with the compiler's words where that fails.
    """
    found: dict[str, str] = {}

    def stop(build_directory: str, *_: Any, **__: Any) -> None:
        ninja = (Path(build_directory) / "build.ninja").read_text()
        found["cflags"] = next(
            line.removeprefix("cflags = ") for line in ninja.splitlines() if "cflags = " in line
        )
        raise StopIteration

    original = cpp_extension._run_ninja_build
    cpp_extension._run_ninja_build = stop
    where = folder / "prelude"
    where.mkdir()
    try:
        cpp_extension.load_inline(
            "prelude", "", extra_cflags=flags, with_cuda=cuda, build_directory=str(where)
        )
    except StopIteration:
        pass
    finally:
        cpp_extension._run_ninja_build = original
    light.write_tree(where, light.shadow_tree())
    cxx = cpp_extension.get_cxx_compiler()
    options = [f for f in shlex.split(found["cflags"]) if not f.startswith("-DTORCH_EXTENSION_N")]
    command = [cxx, f"-I{where}", "-DAT_PER_OPERATOR_HEADERS", *options, "-x", "c++-header"]
    command += [str(where / light.PRELUDE), "-o", str(where / GCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-4000:])
    return {"key": light.prelude_key(compiler(), found["cflags"]), "file": f"prelude/{GCH}"}
