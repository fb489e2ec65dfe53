"""NVRTC as candidates reach it through cupy: headers from a toolkit, and no source compiled twice.

pip's CUDA packages hold `mma.h`, but not the `crt/mma.h` that it includes: that is in one of its
own, nvidia-cuda-crt, which torch does not bring. A toolkit's folder is searched last, so that
nothing changes for a source that compiles without it.

Every pair has a new worker, which imports the candidate again: where it finds what the first one
compiled it saves some 50 ms, with CUB's headers seconds. cupy's own cache has its folder fixed when
it is imported, before any worker has one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USUAL = Path("/usr/local/cuda")
VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)
FOLDER = "CUPY_CACHE_DIR"
"""The variable that names a worker's own folder, in its scratch."""

Made = tuple[bytes, dict[str, str] | None]
"""A cubin or PTX, and the symbols of name expressions."""


def complete(compiler: Any, major: int) -> None:
    """Let cupy's compiler (the module `cupy.cuda.compiler`) find a toolkit's headers of its own
    major version, after all others, and what it has compiled before.
    """
    program = getattr(compiler, "_NVRTCProgram", None)
    if program is None:
        return
    more = tuple(f"-I{folder}" for folder in list(toolkits(major))[:1])
    original = program.compile

    def compile_once(self: Any, options: Any = (), log_stream: Any = None) -> Any:
        whole = (*options, *more)
        path = None if log_stream is not None else place(self, whole)
        made = None if path is None else known(path)
        if made is None:
            made = original(self, whole, log_stream)
            if path is not None:
                keep(path, made)
        return made

    program.compile = compile_once


def place(program: Any, options: tuple[str, ...]) -> Path | None:
    """The file for what a program compiles to; None where there is no folder for it."""
    folder = os.environ.get(FOLDER)
    asked = [getattr(program, name, None) for name in ("src", "name", "name_expressions", "method")]
    if not folder or not isinstance(asked[0], str):
        return None
    text = json.dumps([*asked, options], default=str)
    return Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()}.made"


def known(path: Path) -> Made | None:
    """What an earlier worker made; None where there is nothing whole."""
    try:
        head, _, binary = path.read_bytes().partition(b"\n")
        symbols, sha256 = json.loads(head)
    except (OSError, ValueError):
        return None
    return (binary, symbols) if hashlib.sha256(binary).hexdigest() == sha256 else None


def keep(path: Path, made: Made) -> None:
    """For later workers; what cannot be kept is compiled again."""
    binary, symbols = made
    with contextlib.suppress(OSError, TypeError, ValueError):
        head = json.dumps([symbols, hashlib.sha256(binary).hexdigest()])
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(head.encode() + b"\n" + binary)
        temporary.replace(path)


def toolkits(major: int, usual: Path = USUAL) -> Iterator[Path]:
    """Include folders of the toolkits on this machine that are of this major version of CUDA."""
    nvcc = shutil.which("nvcc")
    named = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    homes = [Path(home) for home in named if home]
    homes += [] if nvcc is None else [Path(os.path.realpath(nvcc)).parents[1]]
    homes += [usual, *sorted(usual.parent.glob(f"{usual.name}-{major}*"))]
    for folder in dict.fromkeys(home / "include" for home in homes):
        if (folder / "crt" / "mma.h").is_file() and version(folder) // 1000 == major:
            yield folder


def version(folder: Path) -> int:
    """13000 for CUDA 13.0, as `cuda.h` in an include folder says; 0 where it does not."""
    try:
        found = VERSION.search((folder / "cuda.h").read_text(errors="replace"))
    except OSError:
        return 0
    return 0 if found is None else int(found[1])
