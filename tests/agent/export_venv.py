"""A virtual environment with torch and without Warpsmith, and the wheel installed there."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def install(wheel: Path, folder: Path) -> Path:
    """The environment's interpreter. Torch is seen through a .pth file; nothing is downloaded."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*command, "--no-index", "--no-deps", str(wheel)], check=True)
    return python


def run_python(python: Path, cache: Path, *arguments: str, **variables: str) -> str:
    """What it printed, from a folder without our sources."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    done = subprocess.run(
        [str(python), *arguments],
        cwd=cache,
        env=environment | {"PATH": path, "XDG_CACHE_HOME": str(cache), **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
