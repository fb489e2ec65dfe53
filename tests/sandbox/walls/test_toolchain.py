"""What must still work inside the walls: torch, OpenMP, `load_inline` with ninja and g++."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.walls.folders import prepare_scratch

SLOT_UID = 61_000 + os.getpid() % 2_000 if os.geteuid() == 0 else None
ZYGOTE = """
import json, os, sys
from pathlib import Path
import torch
import torch.utils.cpp_extension as extension
from sandbox.walls.enclose import Enclosure
from sandbox.machine.probe import ask

scratch, uid = Path(sys.argv[1]), int(sys.argv[2]) or None
SOURCE = 'extern "C" float twice(float x) { return 2 * x; }'

def work(walls):
    import ctypes
    torch.set_num_threads(2)
    product = torch.ones(512, 512) @ torch.ones(512, 512)
    extension.load_inline(
        "twice", SOURCE, no_implicit_headers=True, is_python_module=False, verbose=False
    )
    library = ctypes.CDLL(str(scratch / "home/torch_extensions/twice/twice.so"))
    library.twice.restype, library.twice.argtypes = ctypes.c_float, [ctypes.c_float]
    return [os.getuid(), walls.grade, product[0, 0].item(), library.twice(21.0)]

os.environ["TORCH_EXTENSIONS_DIR"] = str(scratch / "home/torch_extensions")
enclosure = Enclosure(scratch, (), uid, (), 60, 1 << 28, 64, None, 0)
print(json.dumps(ask(enclosure, work, timeout_s=60)))
"""
"""A process of its own: forking this one would fork what pytest and torch have started."""


@pytest.mark.slow
def test_torch_openmp_and_load_inline_work_inside(tmp_path: Path) -> None:
    scratch = prepare_scratch(tmp_path / "scratch", SLOT_UID)
    repository = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", ZYGOTE, str(scratch), str(SLOT_UID or 0)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    user, grade, product, doubled = json.loads(done.stdout.splitlines()[-1])
    assert user == (SLOT_UID or os.getuid())
    assert grade in ("full", "unprivileged")
    assert (product, doubled) == (512.0, 42.0)
