"""Whatever a candidate breaks: the right status, an honest one passes next, a neighbour goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status
from tests.sandbox.conftest import FAST, SCALE, forward, task_of, workers_alive
from tests.sandbox.neighbour import Neighbour

STEADY = replace(FAST, rounds=6, single_share=0.1, memory_limit_bytes=700 << 20)
"""More rounds that count: the machine is busy while something is breaking on it."""
TASK = task_of(SCALE)
HONEST = Candidate(TASK.id, Language.TORCH, forward("return y"))
S, M = replace(STEADY, run_timeout_s=2.0), STEADY

SEGFAULT = forward("import ctypes", "ctypes.string_at(0)")
HANG = forward("while True: pass")
KILLED = forward("import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")
FORK_BOMB = forward(
    "import os, time",
    "for _ in range(2000):",
    "    if os.fork() == 0: time.sleep(1000)",
)
MEMORY_BOMB = forward("hog = []", "while True: hog.append(bytearray(b'x') * (32 << 20))")
MEMORY_FILES = forward(
    "import os, time",
    "fds = [os.memfd_create(str(n)) for n in range(40)]",
    "for fd in fds: os.write(fd, bytes(32 << 20))",
    "time.sleep(60)",
)
DISK = forward(
    "import time",
    "for n in range(40):",
    "    with open(f'hog{n}', 'wb') as f: f.write(bytes(32 << 20))",
    "time.sleep(60)",
)
UNLINKED = forward(
    "import os, time",
    "files = [open(f'hog{n}', 'wb') for n in range(40)]",
    "for n, f in enumerate(files): f.write(bytes(32 << 20)); f.flush(); os.unlink(f'hog{n}')",
    "time.sleep(60)",
)
DESCRIPTORS = forward("hog = []", "while True: hog.append(open('/dev/null'))")
SIGNALS = forward(
    "import os, signal",
    # In disguise: the static layer refuses the plain call.
    f"getattr(os, ''.join(('ki', 'll')))({os.getpid()}, signal.SIGKILL)",
)
TO_THE_ZYGOTE = SIGNALS.replace(f"({os.getpid()},", "(os.getppid(),")
ZOMBIES = forward(
    "return y",
    top="""
import os

for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
""",
)
FAULTS = {
    "a segfault": (SEGFAULT, M, Status.RUNTIME_ERROR, "SIGSEGV"),
    "a death by SIGKILL": (KILLED, M, Status.RUNTIME_ERROR, "SIGKILL"),
    "a hang": (HANG, S, Status.TIMEOUT, "2 s"),
    "a fork bomb": (FORK_BOMB, S, None, ""),
    "a memory bomb": (MEMORY_BOMB, M, Status.OUT_OF_MEMORY, "host memory"),
    "memory in files nobody maps": (MEMORY_FILES, M, Status.OUT_OF_MEMORY, "host memory"),
    "a disk being filled": (DISK, M, Status.OUT_OF_MEMORY, "in files"),
    "deleted files that fill the disk": (UNLINKED, M, Status.OUT_OF_MEMORY, "in files"),
    "too many descriptors": (DESCRIPTORS, M, Status.RUNTIME_ERROR, "Too many open files"),
    "a signal to the supervisor": (SIGNALS, M, Status.RUNTIME_ERROR, "PermissionError"),
    "a signal to the zygote": (TO_THE_ZYGOTE, M, Status.RUNTIME_ERROR, "PermissionError"),
    "zombie grandchildren": (ZOMBIES, M, Status.PASSED, ""),
}
"""Source, protocol, status, words of its detail. A fork bomb ends by its limit, its memory, or its
time, whichever comes first.
"""


@pytest.fixture(scope="module")
def neighbour(evaluator: LocalEvaluator, cache: Path) -> Iterator[Neighbour]:
    evaluator.evaluate(TASK, HONEST, STEADY)
    found = Neighbour(lambda: LocalEvaluator("cpu", cache_dir=cache), TASK, HONEST, STEADY)
    yield found
    found.close()


def unharmed(
    evaluator: LocalEvaluator, neighbour: Neighbour, broken: Candidate, config: EvalConfig
) -> Evaluation:
    """The broken candidate's evaluation, once everybody else was seen to be well."""
    zygote = evaluator._zygote.pid
    found, others = neighbour.during(lambda: evaluator.evaluate(TASK, broken, config))
    assert {other.status for other in others} == {Status.PASSED}, [o.detail for o in others]
    after = evaluator.evaluate(TASK, HONEST, STEADY)
    assert after.status is Status.PASSED, after.detail
    assert evaluator._zygote.pid == zygote
    evaluator.cool()
    assert workers_alive(evaluator) == []
    assert zombies_of(zygote) == []
    return found


def zombies_of(zygote: int | None) -> list[str]:
    """Dead processes that the zygote has not collected."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state == "Z" and int(parent) == zygote:
            found.append(path.parent.name)
    return found


QUICK = ("a segfault", "memory in files nobody maps", "zombie grandchildren")
"""Of the others each status has a quick test of its own, without neighbours."""


@pytest.mark.parametrize(
    "fault",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS],
)
def test_a_fault_gets_its_status_and_harms_nobody_else(
    evaluator: LocalEvaluator, neighbour: Neighbour, fault: str
) -> None:
    source, config, status, words = FAULTS[fault]
    found = unharmed(evaluator, neighbour, Candidate(TASK.id, Language.TORCH, source), config)
    bomb_ends = (Status.RUNTIME_ERROR, Status.OUT_OF_MEMORY, Status.TIMEOUT)
    assert found.status in (bomb_ends if status is None else (status,)), found.detail
    assert words in found.detail


ENDLESS = '''
from torch.utils.cpp_extension import load_inline

SRC = """
constexpr long spin(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i; return s; }
constexpr long never = spin(1L << 60);
extern "C" long answer() { return never; }
"""
load_inline(
    name="endless",
    cpp_sources=[SRC],
    is_python_module=False,
    no_implicit_headers=True,
    extra_cflags=["-fconstexpr-loop-limit=2147483647", "-fconstexpr-ops-limit=1099511627776"],
)
'''


@pytest.mark.slow
def test_a_compiler_that_hangs_times_out_with_its_tree(
    evaluator: LocalEvaluator, neighbour: Neighbour
) -> None:
    source = ENDLESS + forward("return y")
    short = replace(STEADY, build_timeout_s=4.0)
    found = unharmed(evaluator, neighbour, Candidate(TASK.id, Language.CPP, source), short)
    assert found.status is Status.TIMEOUT, found.detail
    assert found.detail.startswith("build:")
    assert running("endless") == []


def running(word: str) -> list[str]:
    """Command lines of living processes that hold the word; the killed have a while to die."""
    deadline = time.monotonic() + 10
    while (found := holding(word)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def holding(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if word in line and "pytest" not in line:
            found.append(line)
    return found
