"""The command line as a user calls it: `warpsmith` in a folder of its own, and in a process."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import warpsmith

COMMAND = [sys.executable, str(Path(__file__).parents[1] / "warpsmith.py")]
PROTOCOL = """\
preset: quick
baselines: []
rounds: 16
batch_ms: 5
single_share: 0.4
max_pairs: 3
run_timeout_s: 20
load_timeout_s: 20
"""
"""YAML of an EvalConfig: a verdict within seconds. Many short rounds, several with a single set:
with few of those honest code may pass for merged calls on a busy machine."""


SINGLE = ("kernelbench", "rl")
"""Folders of tests that learn or compute with torch itself, on one thread beside each other."""
LONGEST = ("test_cli_bad_input.py", "test_end_to_end_killed.py")
"""Begun first, so that no process of a parallel run is left alone with them, and none measures
beside the interpreters that they start.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_configure() -> None:
    """What is imported stays: to look through it while it grows took a sixth of the collecting,"""
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Of tests that a shell started in the background; commands that they start inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _imported() -> None:
    """and half a second each time afterwards: an update of a policy makes two."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of torch in each process of a parallel run: teams of two spin against the other process.
    Elsewhere generated kernels are called here, whose threads are part of what is tested.
    """
    torch = sys.modules.get("torch")
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    if torch is None or "PYTEST_XDIST_WORKER" not in os.environ or folder not in SINGLE:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Done(NamedTuple):
    code: int
    out: str
    err: str


def environment_of(folder: Path, **variables: str) -> dict[str, str]:
    """Of a command: builds and measurements are kept in the folder, not in the user's cache."""
    return os.environ | {"WARPSMITH_CACHE": str(folder / "cache"), **variables}


def run(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 200,
) -> Done:
    """One command line, to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment_of(folder, **(environment or {})),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command line in a folder, in this process: torch is imported once. However wide the
    terminal is that the tests were started from, readline tells it to the processes below.
    """
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(folder: Path, *arguments: str) -> Done:
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            warpsmith.main(arguments)
        return Done(int(end.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of a parallel run, for what is kept by its contents."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="session")
def one_core() -> Iterator[None]:
    """Workers get one thread, since OpenMP teams of two spin against each other on a busy machine,
    and each process of a parallel run a core of its own.
    """
    allowed = os.sched_getaffinity(0)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(allowed)[number % len(allowed)]})
    yield
    os.sched_setaffinity(0, allowed)
