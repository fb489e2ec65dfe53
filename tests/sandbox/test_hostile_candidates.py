"""Candidates that attack the harness or the machine: the right status, and nothing left behind."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Status
from tests.sandbox.conftest import FAST, Evaluate, forward, scratch_folders, workers_alive

HIDDEN = """
import importlib

def harness(*path):
    # A name that is made while the file runs: static analysis does not see it.
    return importlib.import_module(".".join(("sandbox", *path)))
"""
UNWATCHED = (
    HIDDEN
    + """
harness("worker", "facts").Watch.changes = lambda self: {}
"""
)
"""A candidate that silences what its own process would say of it."""

SPEAK = (
    HIDDEN
    + """
import gc, os, socket

Channel = harness("machine", "channel").Channel

def channel():
    everything = getattr(gc, "_".join(("get", "objects")))()
    channels = [found for found in everything if isinstance(found, Channel)]
    return next(found for found in channels if found._nonce != "zygote")

def stream():
    return channel()._socket
"""
)
"""How a candidate finds the harness's own channel, nonce included."""


def saying(claim: str) -> str:
    """A candidate that answers each request with `claim` before its harness can."""
    return forward(f"channel().send({claim})", "os._exit(0)", top=SPEAK)


@pytest.mark.parametrize(
    "line",
    [
        "stream().sendall(b'\\xff\\xff\\xff\\xff garbage')",
        "stream().sendall(b'\\x04\\x00\\x00\\x00oops')",
        "Channel(stream(), 'another').send({'ok': {}})",
        "channel().send([1, 2])",
        "channel().send({'ok': 3})",
    ],
    ids=["length", "no JSON", "wrong nonce", "a list", "no reply"],
)
def test_what_our_harness_never_sends_is_a_hack(evaluate: Evaluate, line: str) -> None:
    found = evaluate(forward(line, "return y", top=SPEAK))
    assert found.status is Status.REWARD_HACK, found.detail


CLAIMS = [
    "{'kinds': 3, 'sets': []}",
    "{'kinds': [[{}, []]], 'sets': [0] * 5}",
    "{'kinds': [[{'t': 0}, [[]]]], 'sets': [0] * 5}",
    "{'kinds': [[{'t': 0}, [[[7, 129], 'float32']]]], 'sets': [0] * 5}",
    "{'kinds': [[{'t': 0}, [[[float('inf')], 'float32', 'contiguous', 'Tensor']]]], 'sets': [0]}",
    "{'kinds': [[5, [[[7, 129], 'float32', 'contiguous', 'Tensor']]]], 'sets': [0] * 5}",
    "{'kinds': [[{'l': 5}, [[[7, 129], 'float32', 'contiguous', 'T']]]], 'sets': [0] * 5}",
    "{'kinds': [[{'t': 0}, [[[7, 129], 'float\\udfff\\n', 'x', 'Tensor']]]], 'sets': [0] * 5}",
    "{}",
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_of_no_known_form_is_judged_not_raised(evaluate: Evaluate, claim: str) -> None:
    speak = f"channel().send({{'ok': {{}}}}); channel().send({{'ok': {claim}}})"
    # By a process that lives: one that ends may be gone before it is asked.
    found = evaluate(forward(speak, "__import__('time').sleep(60)", top=SPEAK))
    assert found.status in (Status.WRONG_SHAPE, Status.WRONG_DTYPE), found.detail
    found.detail.encode()


@pytest.mark.parametrize(
    "claim",
    ["{'state': 3}", "{'state': [[1]]}", "{'state': [['w', [[1e400], 'f', [1], 4]]]}", "{}"],
)
def test_a_state_of_no_known_form_is_a_hack(evaluate: Evaluate, claim: str) -> None:
    constructed = "channel().send({'ok': {}})"
    speak = f"{constructed}; channel().send({{'ok': {claim}}}); __import__('time').sleep(60)"
    source = forward("return y", top=SPEAK).replace("self.factor = factor", speak)
    found = evaluate(source)
    assert found.status is Status.REWARD_HACK, found.detail


@pytest.mark.parametrize("error", ["{'types': 5}", "{'types': [[], {}], 'message': []}", "{}"])
def test_an_error_of_no_known_form_is_a_runtime_error(evaluate: Evaluate, error: str) -> None:
    found = evaluate(saying(f"{{'error': {error}}}"))
    assert found.status is Status.RUNTIME_ERROR, found.detail


SUBCLASS = """
class Late(torch.Tensor):
    pass
"""


def test_a_tensor_subclass_is_a_hack(evaluate: Evaluate) -> None:
    found = evaluate(forward("return y.as_subclass(Late)", top=SUBCLASS))
    assert found.status is Status.REWARD_HACK
    assert "Late" in found.detail


DEFERRED = (
    UNWATCHED
    + """
trees = harness("machine", "trees")
real = trees.flatten

def flatten(value, is_tensor):
    return real(value() if callable(value) else value, is_tensor)

trees.flatten = flatten
"""
)


def test_work_put_off_until_collect_reads_garbage(evaluate: Evaluate) -> None:
    lazy = "return lambda: torch.relu(x) * self.factor + 1.0"
    found = evaluate(forward(lazy, top=DEFERRED))
    assert found.status is Status.WRONG_VALUE, found.detail


def test_work_on_a_private_copy_put_off_until_collect_is_charged(evaluate: Evaluate) -> None:
    top = DEFERRED + "\nimport time\n"
    lines = ("x = x.clone()", "late = lambda: (time.sleep(0.02), torch.relu(x) * 3.0 + 1.0)[1]")
    found = evaluate(forward(*lines, "return late", top=top))
    assert found.status is Status.PASSED, found.detail
    assert found.timing is not None
    assert found.timing.candidate_ms > 15


EARLY = (
    SPEAK
    + UNWATCHED
    + """
import time

session = harness("worker", "session")
real_go, real_send = session.Session.do_go, Channel.send
said = []

def send(self, body, fds=()):
    if said:
        said.clear()
    else:
        real_send(self, body, fds)

def go(self, request, fds):
    channel().send({"ok": {}})
    time.sleep(0.02 * len(request["sets"]))
    found = real_go(self, request, fds)
    said.append(True)
    return found

Channel.send = send
session.Session.do_go = go
"""
)


def test_done_said_before_the_work_is_charged(evaluate: Evaluate) -> None:
    found = evaluate(forward("return y", top=EARLY))
    assert found.status in (Status.PASSED, Status.REWARD_HACK, Status.WRONG_VALUE), found.detail
    assert found.timing is None or found.timing.candidate_ms > 15


MERGED = (
    UNWATCHED
    + """
import time

session = harness("worker", "session")

def go(self, request, fds):
    time.sleep(0.05)
    self.results += [torch.relu(a[0]) * 3.0 + 1.0 for a in map(self.arguments, request["sets"])]
    return {}

session.Session.do_go = go
"""
)


@pytest.mark.alone
def test_calls_merged_into_one_are_a_hack(evaluate: Evaluate) -> None:
    several = replace(FAST, rounds=8, single_share=0.5)  # one single-set round convicts nobody
    found = evaluate(forward("return y", top=MERGED), config=several)
    assert found.status is Status.REWARD_HACK, found.detail
    assert "single-set" in found.detail


SHRINK = """
import os

def shrink():
    paths = {int(fd): f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
    arenas = [fd for fd, path in paths.items() if "arena" in os.path.realpath(path)]
    assert arenas, paths
    for fd in arenas:
        try:
            os.ftruncate(fd, 0)
        except PermissionError:
            print("sealed")
"""


def test_an_arena_cannot_be_shrunk_under_the_supervisor(evaluate: Evaluate) -> None:
    found = evaluate(forward("shrink()", "return y", top=SHRINK))
    assert found.status is Status.PASSED, found.detail
    assert "sealed" in found.stdout


def test_descriptors_sent_to_the_supervisor_are_dropped(evaluate: Evaluate) -> None:
    before = len(os.listdir("/proc/self/fd"))
    flood = "for _ in range(50): socket.send_fds(stream(), [b'\\x00'], [0] * 8)"
    evaluate(forward(flood, "os._exit(0)", top=SPEAK))
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_worker_that_answers_without_reading_does_not_block_us(evaluate: Evaluate) -> None:
    flood = "while True: channel().send({'ok': {'state': [], 'kinds': [], 'sets': []}})"
    found = evaluate(forward("return y", top=SPEAK + flood))
    assert found.status.scored


@pytest.mark.slow
def test_a_flood_of_output_is_cut_and_passes(evaluate: Evaluate) -> None:
    print_100_mb = "for _ in range(100): print('x' * 1_000_000)"
    found = evaluate(forward("return y", top=print_100_mb))
    assert found.status is Status.PASSED, found.detail
    assert len(found.stdout) < FAST.log_limit_bytes + 100
    assert "bytes left out" in found.stdout


def test_children_of_a_passing_candidate_end_with_it(evaluate: Evaluate) -> None:
    fork = "import os, time\nif os.fork() == 0:\n    while True: time.sleep(1)"
    found = evaluate(forward("return y", top=fork))
    assert found.status is Status.PASSED, found.detail


@pytest.mark.slow
def test_a_fork_bomb_ends_with_its_candidate(evaluate: Evaluate) -> None:
    bomb = "import os, time\nfor _ in range(2000):\n    if os.fork() == 0: time.sleep(1000)"
    found = evaluate(forward("return y", top=bomb))
    # Pages shared with the zygote count once per process.
    assert found.status in (Status.RUNTIME_ERROR, Status.OUT_OF_MEMORY), found.detail


def test_the_network_is_refused(evaluate: Evaluate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
        found = evaluate(forward("return y", top=reach))
    assert found.status is Status.RUNTIME_ERROR, found.detail


def test_a_file_outside_the_scratch_cannot_be_written(evaluate: Evaluate) -> None:
    target = Path("/var/tmp/warpsmith-test-outside")
    found = evaluate(forward("return y", top=f"open({str(target)!r}, 'w').write('x')"))
    assert found.status is Status.RUNTIME_ERROR
    assert not target.exists()


@pytest.mark.parametrize("of", ["self", "supervisor"])
def test_the_supervisors_secrets_are_out_of_reach(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    of = str(os.getpid()) if of == "supervisor" else of
    look = f"""
import os
assert "OPENAI_API_KEY" not in os.environ
try:
    assert b"sk-secret" not in open("/proc/{of}/environ", "rb").read()
except PermissionError:
    print("refused")
"""
    found = evaluate(forward("return y", top=look))
    assert found.status is Status.PASSED, found.detail


def test_a_cache_linked_to_our_files_is_not_copied_to_later_workers(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("ours")
    link = f"""
import glob, os
home = os.environ["HOME"]
stolen = glob.glob(home + "/*/secret") + glob.glob(home + "/*/*/secret")
assert not stolen, stolen
if not os.path.exists(home + "/cupy"):
    os.symlink({str(tmp_path)!r}, home + "/triton")
    os.makedirs(home + "/cupy")
    os.mkfifo(home + "/cupy/pipe")
    os.symlink({str(tmp_path)!r}, home + "/cupy/folder")
"""
    found = evaluate(forward("return y", top=link))
    assert found.status is Status.PASSED, found.detail


def test_the_reference_is_nowhere_to_be_read(evaluate: Evaluate) -> None:
    look = """
import glob
roots = ("/var/tmp/*", "/var/tmp/*/*", "/tmp/*", "/dev/shm/*")
found = [p for root in roots for p in glob.glob(root + "/reference.py")]
assert not found, found
"""
    assert evaluate(forward("return y", top=look)).status is Status.PASSED


def test_evaluations_leave_no_descriptor_behind(
    evaluate: Evaluate, evaluator: LocalEvaluator
) -> None:
    evaluate(forward("return y"))
    before = len(os.listdir("/proc/self/fd"))
    for body in ("return y", "raise KeyError", "import os; os._exit(3)"):
        evaluate(forward(body))
    assert len(os.listdir("/proc/self/fd")) <= before
    assert workers_alive(evaluator) == []
    assert scratch_folders() == []
