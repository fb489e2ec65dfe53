"""The folder that a library's wheel is installed into; processes that see it and torch alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.export.runtime.switches import Against, against_name
from benchmarks.library.inside.exchange import MARK
from sandbox.errors import ConfigError
from sandbox.machine.cores import launching_core
from sandbox.machine.spawn import visible_device, zygote_environment

HERE = Path(__file__).parent
PROGRAM = ("-m", "inside")
"""In that folder, from which nothing of the project can be imported."""
INSTALL_S = 120
MEASURED = ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
"""What the evaluator sets where it measures, as it sets it."""
OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")


@dataclass(frozen=True)
class Site:
    """Every confirmed winner's kernel runs there, also one that is faster than eager alone."""

    package: str
    folder: Path
    """Holds the wheel's contents under `lib`; kernels are compiled under `cache`."""
    device: str

    @property
    def core(self) -> int | None:
        """On which a GPU's calls are launched, as in a campaign, whatever else the host does."""
        return launching_core(visible_device(0)) if self.device == "cuda" else None

    @property
    def switch(self) -> str:
        """As a user would set it."""
        return f"{against_name(self.package)}={Against.EAGER}"

    def ask(self, request: dict[str, Any], timeout_s: float) -> tuple[list[dict[str, Any]], str]:
        """What the child said, and how it ended; empty if as it should."""
        whole = {**request, "package": self.package, "device": self.device, "core": self.core}
        # Without `site` no .pth file is read, and so no editable install is found.
        command = [sys.executable, "-S", "-P", *PROGRAM]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self._environment(),
            start_new_session=True,
        ) as child:
            try:
                out, errors = child.communicate(json.dumps(whole), timeout=timeout_s)
                ended = _ended(child.returncode, errors)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # its compilers too
                out, _ = child.communicate()
                ended = f"stopped after {timeout_s:.0f} s"
        return list(_said(out)), ended

    def _environment(self) -> dict[str, str]:
        plain = {
            k: v for k, v in os.environ.items() if k not in OURS and not k.startswith("WARPSMITH")
        }
        paths = [self.folder / "lib", *map(sysconfig.get_path, ("purelib", "platlib")), HERE]
        programs = f"{Path(sys.executable).parent}{os.pathsep}{plain.get('PATH', '')}"
        cache = self.folder / "cache"
        here = zygote_environment("", len(os.sched_getaffinity(0)))
        return plain | {
            **{name: here[name] for name in MEASURED},
            against_name(self.package): Against.EAGER,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(map(str, paths))),
            "PATH": programs,
            "XDG_CACHE_HOME": str(cache),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }


def install(library: Path, package: str, folder: Path, device: str) -> Site:
    """Raises ConfigError where the library has no wheel, or pip refuses it."""
    wheels = sorted((library / "dist").glob("*.whl"))
    if len(wheels) != 1:
        raise ConfigError(f"{library}: {len(wheels)} wheels; expected what `export` wrote")
    (folder / "cache").mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(folder / "lib"), str(wheels[0])],
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{wheels[0].name}: pip could not install it: {last}")
    return Site(package, folder, device)


def _said(out: str) -> Iterator[dict[str, Any]]:
    """A process that was stopped may have left a line unfinished."""
    for line in out.splitlines():
        if line.startswith(MARK):
            with contextlib.suppress(ValueError):
                yield json.loads(line.removeprefix(MARK))


def _ended(code: int, errors: str) -> str:
    if not code:
        return ""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return (errors.strip().splitlines() or [f"exit status {code}"])[-1][:300]
