"""Helper processes end with ours, also while they are busy with something else."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUSY = "import time\nprint('busy', flush=True)\ntime.sleep(60)\n"
"""A torch that is never imported to the end."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BUSY)
    return os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def zygote(environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Callable[[], object]]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "sandbox.machine.zygote", str(theirs.fileno())]
        process = subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE
        )
    ours.send(b"data does not end it")
    return process, ours.close


def tracer(environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Callable[[], object]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox.tracer"],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(b"nor does it here")
    process.stdin.flush()
    return process, process.stdin.close


@pytest.mark.parametrize("start", [zygote, tracer])
def test_a_process_that_still_imports_ends_with_its_parent(start, environment):
    process, close = start(environment)
    said = process.stdout or process.stderr  # the tracer's prints go there
    assert said.readline() == b"busy\n"
    assert process.poll() is None
    close()
    assert process.wait(30) == 0
    said.close()


TRACING = """
import time
print("tracing", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_reference_that_is_being_traced_ends_with_its_parent():
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox.tracer"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    request = {"source": TRACING, "dtype": "float32", "shapes": [{}]}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    assert process.stderr.readline() == b"tracing\n"
    process.stdin.close()
    assert process.wait(30) == 0
    assert process.stderr.read() == b""  # the last writer is gone
