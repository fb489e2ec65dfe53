"""What a walled process may read, write and open, and its scratch folder."""

from __future__ import annotations

import os
import pwd
import site
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PRIVATE = {Path("/tmp"): "tmp", Path("/dev/shm"): "shm"}
"""Shared folders, and the folder of the scratch that takes their place."""

SYSTEM = tuple(
    Path(p)
    for p in (
        *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc"),
        # Not all of /etc and /sys: with CAP_DAC_READ_SEARCH keys and traces would be readable.
        *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
        *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/hosts"),
        *(
            "/etc/localtime",
            "/etc/timezone",
            "/etc/os-release",
            "/etc/debian_version",
            "/etc/nvidia",
        ),
        *(
            "/sys/devices",
            "/sys/bus",
            "/sys/class",
            "/sys/module",
            "/sys/fs/cgroup",
            "/sys/kernel/mm",
        ),
    )
)
DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom"))
ARTIFACTS = "artifacts"
"""What extensions were compiled to: a folder per call."""
TRITON_CACHE, CUPY_CACHE = "home/triton", "home/cupy"
ENVIRONMENT = {
    "HOME": "home",
    "TMPDIR": "tmp",
    "XDG_CACHE_HOME": "home",
    "CUDA_CACHE_PATH": "home/cuda",
    "CUPY_CACHE_DIR": CUPY_CACHE,
    "TRITON_CACHE_DIR": TRITON_CACHE,
    "TRITON_HOME": "home",
    "TORCH_EXTENSIONS_DIR": "home/torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "home/inductor",
}
"""Variables that name a folder libraries write to, and that folder in the scratch."""


def prepare_scratch(root: Path, uid: int | None = None) -> Path:
    """Make `root` a scratch folder that belongs to `uid`, and return it resolved.

    For the parent, before the fork.
    """
    scratch = Path(os.path.realpath(root))
    for folder in (scratch, scratch / "tmp", scratch / "shm", scratch / "home"):
        folder.mkdir(mode=0o700, parents=folder == scratch, exist_ok=True)
        if uid is not None:
            os.chown(folder, uid, uid)
    return scratch


def scratch_environment(scratch: Path) -> dict[str, str]:
    """The variables that send every library's files into the scratch."""
    folders = {name: str(scratch / folder) for name, folder in ENVIRONMENT.items()}
    # Inductor's worker pool calls setsid, which the walls refuse.
    return {**folders, "TORCHINDUCTOR_COMPILE_THREADS": "1"}


@cache
def python_folders() -> tuple[Path, ...]:
    """Where imports come from: the interpreter, its site-packages, and packages already imported.

    Not every entry of sys.path: one may be a home or a folder of runs. Found once, before the
    workers are forked: on one GPU's host it took 0.4 s.
    """
    folders = [
        Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages())
    ]
    if site.ENABLE_USER_SITE:
        folders.append(Path(site.getusersitepackages()))
    for name, module in list(sys.modules.items()):
        if "." not in name:
            # Not getattr: a lazy module would import itself.
            folders += [Path(p) for p in vars(module).get("__path__", ())]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            folders.append(Path(os.environ[name]))
    return tuple(outermost(p for p in folders if p.is_absolute() and os.path.isdir(p)))


def outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths without those that lie beneath another of them."""
    kept: list[Path] = []
    for path in sorted(set(paths)):
        # Sorted by parts, so whatever lies beneath the last one kept follows it directly.
        if not kept or not path.is_relative_to(kept[-1]):
            kept.append(path)
    return kept


def coverable_home(readable: Iterable[Path]) -> Path | None:
    """The user's home where it can be hidden: it is a folder, and none that must stay readable."""
    try:
        home = Path(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
    except KeyError:
        return None  # a uid without an account
    kept = [Path(os.path.realpath(path)) for path in readable]
    shared = [Path("/"), *PRIVATE]
    if not home.is_dir() or any(path.is_relative_to(home) for path in shared):
        return None
    return None if any(home.is_relative_to(path) for path in kept) else home


def make_empty(scratch: Path) -> Path:
    """A folder in the scratch that others can enter and nobody has anything in."""
    empty = scratch / "nothing"
    empty.mkdir(exist_ok=True)
    empty.chmod(0o755)
    return empty
