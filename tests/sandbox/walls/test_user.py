"""A whole evaluator as root and as an ordinary user, on hosts that lack something, and attacked.

The same attempts as in the matrix, made by a candidate that is being judged.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandbox.types import Status
from sandbox.walls.enclose import Grade
from tests.sandbox.walls.host import Host, become, bind, lack
from tests.sandbox.walls.test_matrix import (
    EXPOSED,
    GRADES,
    IF_PYTHON_IS_CLOSED,
    ORDINARY,
    ROOT,
    offered,
    python_is_closed,
)

REPOSITORY = Path(__file__).resolve().parents[3]


@contextmanager
def home_of(user: int | None) -> Iterator[Path]:
    """A folder of that user for caches, scratch and files, outside the private /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="warpsmith-user-", dir="/var/tmp"))
    folder.chmod(0o755)
    for name in ("python", "packages", "source"):
        (folder / name).mkdir()
    for name in ("work", "scratch"):
        (folder / name).mkdir()
        if user is not None:
            os.chown(folder / name, user, user)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def supervise(who: str, host: Host) -> dict[str, Any]:
    """What tests/sandbox/walls/supervisor_as.py saw as that user on that host."""
    user = ORDINARY if ROOT and who == "ordinary" else None
    with home_of(user) as folder:
        real = {
            "python": Path(sys.base_prefix),
            "packages": Path(sysconfig.get_path("purelib")),
            "source": REPOSITORY,
        }

        def before() -> None:
            if user is not None:  # an interpreter in root's home would be out of its reach
                bind({folder / name: place for name, place in real.items()})
                become(user)
            lack(host)

        places = real if user is None else {name: folder / name for name in real}
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        done = subprocess.run(
            [
                str(places["python"] / "bin" / version) if user is not None else sys.executable,
                *("-m", "tests.sandbox.walls.supervisor_as", str(folder / "work")),
            ],
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{places['source']}{os.pathsep}{places['packages']}",
                "LD_LIBRARY_PATH": str(places["python"] / "lib"),
                "HOME": str(folder / "work"),
                "WARPSMITH_SCRATCH": str(folder / "scratch"),
                "OPENAI_API_KEY": "sk-secret",
            },
            preexec_fn=before,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        left = list((folder / "scratch").glob("*/*"))
        assert left == []
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


CELLS = [
    pytest.param(
        who,
        host,
        id=f"{who}, {host}",
        marks=() if (who, host) == ("ordinary", Host.WHOLE) else pytest.mark.slow,
    )
    for who in (("root", "ordinary") if ROOT else ("ordinary",))
    for host in Host
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("who", "host"), CELLS)
def test_an_attacked_evaluator_goes_on_and_says_its_grade(who: str, host: Host) -> None:
    offered(who, host)  # skips where this machine lacks more
    found = supervise(who, host)
    grade = GRADES.get((who, host), Grade.WEAK)
    for name in ("honest", "attack"):
        status, detail, walls = found[name]
        assert status == Status.PASSED, detail
        assert walls == grade
    assert found["doctor"].startswith(f"{grade}: ")
    assert found["alive"] == []
    assert not found["seen"]["secret"]
    assert (found["seen"]["uid"] == (ORDINARY if ROOT else os.getuid())) is (who == "ordinary")
    known = set(EXPOSED.get((who, host), ()))
    if python_is_closed():
        known |= IF_PYTHON_IS_CLOSED.get((who, host), set())
    outcomes = found["seen"]["outcomes"]
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == known, outcomes
