"""CUDA headers that NVRTC asks for and pip's CUDA packages leave out, from a toolkit that is there.

Beside NVRTC the packages hold `mma.h`, but not the `crt/mma.h` that it includes: that is in one of
its own, nvidia-cuda-crt, which torch does not bring. A toolkit's folder is searched last, so that
nothing changes for a source that compiles without it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USUAL = Path("/usr/local/cuda")
VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)


def complete(compiler: Any, major: int) -> None:
    """Let cupy's compiler (the module `cupy.cuda.compiler`) find a toolkit's headers of its own
    major version, after all others.
    """
    program = getattr(compiler, "_NVRTCProgram", None)
    folder = next(toolkits(major), None)
    if program is None or folder is None:
        return
    original = program.compile

    def compile_with_toolkit(self: Any, options: Any = (), log_stream: Any = None) -> Any:
        return original(self, (*options, f"-I{folder}"), log_stream)

    program.compile = compile_with_toolkit


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
