"""Zygote, walled workers and their logs: real forks, real deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.errors import SandboxFault
from sandbox.machine import cores, spawn
from sandbox.machine.handle import Worker, WorkerFailed, signal_name
from sandbox.machine.logs import Log
from sandbox.machine.slots import FIRST_UID, UIDS, Slot
from sandbox.machine.spawn import Zygote, zygote_environment
from sandbox.observation import FailureKind
from sandbox.walls.devices import own_devices
from tests.sandbox.conftest import commands_of, scratch_folders

ROOT = os.geteuid() == 0
HELLO = "class ModelNew: pass\n"


def load(worker: Worker, source: str, timeout_s: float = 20.0) -> None:
    worker.request("load", stage="load", timeout_s=timeout_s, source=source)


def test_a_worker_answers_behind_its_walls(worker: Worker) -> None:
    load(worker, HELLO)
    assert worker.walls["grade"] in ("full", "unprivileged", "weak")
    if ROOT:
        owner = Path(f"/proc/{worker.pid}").stat().st_uid
        assert FIRST_UID <= owner < FIRST_UID + UIDS


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("import os; os._exit(3)", FailureKind.DIED, "code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", FailureKind.DIED, "SIGTERM"),
        ("while True: pass", FailureKind.TIMEOUT, "1 s"),
        ("raise KeyError('x')", FailureKind.CLAIMED, "x"),
    ],
)
def test_a_failure_is_known_by_its_kind(
    worker: Worker, source: str, kind: FailureKind, words: str
) -> None:
    with pytest.raises(WorkerFailed) as caught:
        load(worker, source, 1.0)
    assert (caught.value.failure.stage, caught.value.failure.kind) == ("load", kind)
    assert words in caught.value.failure.message


def test_a_claimed_failure_carries_types_and_trace(worker: Worker) -> None:
    with pytest.raises(WorkerFailed) as caught:
        load(worker, "class Odd(KeyError): pass\nraise Odd('lost')")
    failure = caught.value.failure
    assert failure.types[:3] == ("Odd", "KeyError", "LookupError")
    assert "candidate.py" in failure.trace


def test_a_worker_whose_time_is_up_is_gone_with_its_tree(worker: Worker) -> None:
    fork = "import os, time\nos.fork()\nos.fork()\ntime.sleep(1000)"
    with pytest.raises(WorkerFailed):
        load(worker, fork, 1.0)
    assert not any(group_of(pid) == worker.pid for pid in living())


def living() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]


def group_of(pid: int) -> int | None:
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state in "ZX" else int(group)


def test_closing_removes_scratch_and_process(zygote: Zygote) -> None:
    worker = zygote.spawn("candidate", memory_limit_bytes=1 << 30)
    assert worker.scratch.is_dir()
    worker.close()
    worker.close()
    assert not worker.scratch.exists()
    assert group_of(worker.pid) is None


def test_a_frozen_worker_stands_still(worker: Worker) -> None:
    worker.freeze()
    worker.send("release", stage="load")
    with pytest.raises(WorkerFailed, match="no answer"):
        worker.reply(stage="load", timeout_s=0.5)


def test_a_thawed_worker_answers(worker: Worker) -> None:
    worker.freeze()
    worker.send("release", stage="load")
    worker.thaw()
    assert worker.reply(stage="load", timeout_s=10) == {}


def test_a_worker_that_goes_on_while_it_is_frozen_fails_and_is_killed(worker: Worker) -> None:
    worker.freeze()
    os.killpg(worker.pid, signal.SIGCONT)
    with pytest.raises(WorkerFailed) as caught:
        worker.thaw()
    assert caught.value.failure.kind is FailureKind.AWAKE
    assert not any(group_of(pid) == worker.pid for pid in living())


def test_a_preloaded_folder_is_a_private_copy(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    worker = zygote.spawn(
        "candidate", memory_limit_bytes=1 << 30, preload=[(tmp_path, "home/triton")]
    )
    copied = worker.scratch / "home" / "triton" / "file"
    assert copied.read_text() == "mine"
    load(worker, f"open({str(copied)!r}, 'w').write('theirs')\n{HELLO}")
    assert copied.read_text() == "theirs"
    assert (tmp_path / "file").read_text() == "mine"
    worker.close()


def test_a_short_print_is_kept_when_the_worker_is_killed(worker: Worker) -> None:
    load(worker, f"import sys\nprint('one line')\nprint('another', file=sys.stderr)\n{HELLO}")
    worker.close()
    assert worker.stdout() == "one line\n"
    assert worker.stderr() == "another\n"


def test_many_workers_live_side_by_side_under_their_own_uid(zygote: Zygote) -> None:
    workers = [zygote.spawn("candidate", memory_limit_bytes=1 << 30) for _ in range(4)]
    assert len({w.pid for w in workers}) == 4
    assert len({w.scratch for w in workers}) == 4
    if ROOT:
        assert len({Path(f"/proc/{w.pid}").stat().st_uid for w in workers}) == 4
    workers[0].close()
    for worker in workers[1:]:
        load(worker, HELLO)
        worker.close()


@pytest.mark.skipif(not ROOT, reason="only root gives uids")
def test_two_zygotes_never_share_a_uid(zygote: Zygote) -> None:
    other = Zygote("cpu")
    workers = [z.spawn("candidate", memory_limit_bytes=1 << 30) for z in (zygote, other) * 3]
    assert len({Path(f"/proc/{w.pid}").stat().st_uid for w in workers}) == len(workers)
    for worker in workers:
        worker.close()
    other.close()


def test_a_slot_is_taken_until_it_is_closed() -> None:
    slots = [Slot() for _ in range(50)]
    assert len({slot.uid for slot in slots}) == 50
    for slot in slots:
        slot.close()


@pytest.mark.slow
def test_a_dead_zygote_is_our_fault_and_is_replaced() -> None:
    zygote = Zygote("cpu")
    worker = zygote.spawn("candidate", memory_limit_bytes=1 << 30)
    os.kill(int(zygote.pid or 0), signal.SIGKILL)
    with pytest.raises(SandboxFault, match="zygote died"):
        load(worker, "import time; time.sleep(5)")
    worker.close()
    fresh = zygote.spawn("candidate", memory_limit_bytes=1 << 30)
    load(fresh, HELLO)
    fresh.close()
    zygote.close()
    assert zygote.pid is None


@pytest.mark.slow
def test_a_zygote_that_was_ended_is_not_started_again() -> None:
    """What begins beside the end of an evaluator would leave a process that nobody ends."""
    zygote = Zygote("cpu")
    zygote.start()
    zygote.close()
    with pytest.raises(SandboxFault, match="was ended"):
        zygote.start()
    assert zygote.pid is None


@pytest.mark.slow
def test_where_cuda_does_not_start_with_one_gpu_alone_workers_see_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here it starts with none at all."""
    every = (Path("/dev/nvidia0"), Path("/dev/nvidia1"), Path("/dev/nvidiactl"))
    monkeypatch.setattr(spawn, "gpu_devices", lambda: every)
    monkeypatch.setattr(spawn, "own_gpu", lambda index: ("GPU-b", own_devices(every, index)))
    monkeypatch.setattr(cores, "launching_core", lambda gpu: None)
    zygote = Zygote("cuda", 1)
    assert zygote.devices == every[1:]
    zygote.start()
    assert zygote.devices == every
    assert "workers can open every GPU" in caplog.text
    worker = zygote.spawn("candidate", memory_limit_bytes=1 << 30)  # the fork went back to its loop
    worker.close()
    zygote.close()


def test_workers_end_with_their_zygote() -> None:
    zygote = Zygote("cpu")
    worker = zygote.spawn("candidate", memory_limit_bytes=1 << 30)
    zygote.close()
    deadline = time.monotonic() + 5
    while group_of(worker.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group_of(worker.pid) is None
    worker.close()


@pytest.mark.parametrize(
    ("number", "name"), [(9, "SIGKILL"), (11, "SIGSEGV"), (40, "signal 40"), (0, "signal 0")]
)
def test_every_signal_has_a_name(number: int, name: str) -> None:
    assert signal_name(number) == name


def test_a_workers_environment_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    found = zygote_environment("GPU-b", 4)
    assert "hf_secret" not in found.values()
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert zygote_environment("", 4)["CUDA_VISIBLE_DEVICES"] == "", "none on the CPU"


@pytest.mark.parametrize(
    ("uuid", "named"), [("GPU-b", ("GPU-b", ["nvidia1"])), ("", ("5", ["nvidia0", "nvidia1"]))]
)
def test_a_worker_names_its_gpu_so_that_it_is_found_alone(
    monkeypatch: pytest.MonkeyPatch, uuid: str, named: tuple[str, list[str]]
) -> None:
    """CUDA numbers only GPUs whose files it can open: by its index there would be no second one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(spawn, "GpuWatch", lambda index: SimpleNamespace(uuid=uuid, minor=index))
    monkeypatch.setattr(spawn, "gpu_devices", lambda: (Path("/dev/nvidia0"), Path("/dev/nvidia1")))
    gpu, devices = spawn.own_gpu(1)
    assert (gpu, [path.name for path in devices]) == named


@pytest.mark.parametrize("order", [None, "PCI_BUS_ID"])
def test_a_worker_numbers_gpus_as_its_supervisor_does(
    monkeypatch: pytest.MonkeyPatch, order: str | None
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    if order is not None:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    assert zygote_environment("1", 4)["CUDA_DEVICE_ORDER"] == (order or "FASTEST_FIRST")


def test_a_worker_that_cannot_be_furnished_leaves_nothing(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folders = [(tmp_path, "given"), (tmp_path, "given/file")]  # a folder where a file is
    with pytest.raises(FileExistsError):
        zygote.spawn("candidate", memory_limit_bytes=1 << 30, preload=folders)
    assert scratch_folders() == []


HOLDER = """
import sys, threading
from pathlib import Path
from types import SimpleNamespace
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

evaluator = LocalEvaluator("cpu", cache_dir=Path(sys.argv[1]))
task = task_of(SCALE)
evaluator.prepare(task, FAST)
print(evaluator._zygote.pid, flush=True)
fork = "import os, time\\nos.fork()\\nprint('x' * 10000)\\ntime.sleep(1000)"
evaluator.evaluate(task, Candidate(task.id, Language.TORCH, forward("return y", top=fork)), FAST)
"""


def test_a_killed_supervisor_leaves_no_process_behind(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
        start_new_session=True,
    )
    assert holder.stdout is not None
    zygote = int(holder.stdout.readline())
    deadline = time.monotonic() + 20
    # The reference, the candidate and its fork, seen at once: workers of preparing may still end.
    while len(found := commands_of(zygote)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    family = [zygote, *found]
    assert len(family) >= 4
    holder.kill()
    holder.wait()
    deadline = time.monotonic() + 10
    while any(group_of(pid) is not None for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in family if group_of(pid) is not None] == []
    holder.stdout.close()


def written(log: Log, *pieces: bytes) -> str:
    for piece in pieces:
        os.write(log.write_fd, piece)
    log.started()
    return log.text(5)


def test_a_short_log_is_kept_whole() -> None:
    assert written(Log(100), b"one\n", b"two\n") == "one\ntwo\n"


def test_a_long_log_keeps_head_and_tail() -> None:
    found = written(Log(20), b"a" * 10, *[b"x" * 1000] * 100, b"z" * 10)
    assert found == "a" * 10 + "\n... 100000 bytes left out ...\n" + "z" * 10


def test_a_log_that_is_no_text_is_still_text() -> None:
    assert written(Log(100), b"\xff\xfe ok").endswith(" ok")


def test_a_writer_never_blocks_on_its_log() -> None:
    log = Log(100)
    writer = threading.Thread(target=os.write, args=(log.write_fd, b"x" * (4 << 20)))
    writer.start()
    writer.join(5)
    assert not writer.is_alive()
    log.started()
