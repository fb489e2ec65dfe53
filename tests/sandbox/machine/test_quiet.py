"""What may go on beside a timed region, and whose turn it is at the device."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.machine import proc
from sandbox.machine.handle import Worker, WorkerFailed
from sandbox.machine.quiet import Quiet, Turns
from sandbox.machine.spawn import Zygote

BUSY = "import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass\n"


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_noise_waits_for_the_end_of_a_timed_region() -> None:
    quiet, order = Quiet(same_cores=True), []

    def disturb() -> None:
        with quiet.noise():
            order.append("noise")

    other = threading.Thread(target=disturb)
    with quiet.timed():
        other.start()
        other.join(0.1)
        order.append("timed")
    other.join(5)
    assert order == ["timed", "noise"]


def test_a_timed_region_waits_for_the_end_of_noise() -> None:
    quiet, begun = Quiet(same_cores=True), threading.Event()

    def disturb() -> None:
        with quiet.noise(), quiet.noise():
            begun.set()
            time.sleep(0.2)

    other = threading.Thread(target=disturb)
    other.start()
    begun.wait(5)
    with quiet.timed():
        assert not other.is_alive() or quiet._noises == 0
    other.join(5)


@pytest.mark.parametrize(
    ("same_cores", "strict", "order"),
    [
        (False, False, ["murmur", "timed"]),
        (False, True, ["timed", "murmur"]),
        (True, False, ["timed", "murmur"]),
    ],
    ids=["a search on a GPU", "a figure to be reported", "a search on the CPU"],
)
def test_a_murmur_waits_where_it_would_be_heard(
    same_cores: bool, strict: bool, order: list[str]
) -> None:
    quiet, found = Quiet(same_cores=same_cores), []

    def murmur() -> None:
        with quiet.murmur():
            found.append("murmur")

    other = threading.Thread(target=murmur)
    with quiet.timed(strict=strict):
        other.start()
        other.join(0.2)
        found.append("timed")
    other.join(5)
    assert found == order


def test_a_figure_to_be_reported_waits_for_the_end_of_a_murmur() -> None:
    quiet, begun, ended = Quiet(same_cores=False), threading.Event(), threading.Event()

    def murmur() -> None:
        with quiet.murmur():
            begun.set()
            time.sleep(0.2)
            ended.set()

    other = threading.Thread(target=murmur)
    other.start()
    begun.wait(5)
    with quiet.timed(strict=False):
        assert not ended.is_set()
    with quiet.timed():
        assert ended.is_set()
    other.join(5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.slow
def test_a_timed_region_waits_for_no_worker_that_raises_its_walls(
    zygote: Zygote, monkeypatch: pytest.MonkeyPatch, *, strict: bool
) -> None:
    quiet, forked, timed = Quiet(same_cores=False), threading.Event(), threading.Event()
    greet, workers = Worker.greet, list[Worker]()

    def slowly(worker: Worker) -> None:
        workers.append(worker)
        forked.set()
        timed.wait(10)
        greet(worker)

    monkeypatch.setattr(Worker, "greet", slowly)
    with ThreadPoolExecutor(1) as pool:
        limit = 1 << 30
        spawned = pool.submit(zygote.spawn, "candidate", memory_limit_bytes=limit, quiet=quiet)
        assert forked.wait(10)
        time.sleep(0.5)  # it is up, and waits for its first request
        with quiet.timed(strict=strict):
            assert not spawned.done()
            assert (state_of(workers[0].pid) == "T") == strict
        timed.set()
        assert spawned.result(10).walls
    workers[0].close()


def loading(
    quiet: Quiet, worker: Worker, seconds: float, timeout_s: float, *, on_host: bool = False
) -> threading.Thread:
    """A thread in which the worker loads something that keeps it busy; waits until it does."""
    failures: list[WorkerFailed] = []

    def load() -> None:
        try:
            with quiet.beside(worker, on_host=on_host):
                worker.request(
                    "load",
                    stage="load",
                    timeout_s=timeout_s,
                    source=BUSY.format(seconds=seconds) + "class ModelNew: pass\n",
                )
        except WorkerFailed as failed:
            failures.append(failed)

    thread = threading.Thread(target=load)
    thread.failures = failures  # type: ignore[attr-defined]
    thread.start()
    deadline = time.monotonic() + 10
    while state_of(worker.pid) != "R" and time.monotonic() < deadline:
        time.sleep(0.002)
    return thread


@pytest.mark.parametrize(
    ("same_cores", "strict", "on_host", "states"),
    [
        (True, False, True, "T"),
        (False, True, True, "T"),
        (False, False, False, "T"),
        (False, False, True, "RSD"),
    ],
)
def test_what_is_busy_stands_still_unless_it_is_on_the_host_and_cores_of_its_own_in_a_search(
    worker: Worker, same_cores: bool, strict: bool, on_host: bool, states: str
) -> None:
    quiet = Quiet(same_cores=same_cores)
    thread = loading(quiet, worker, 0.5, 20, on_host=on_host)
    with quiet.timed(strict=strict):
        deadline = time.monotonic() + (0.0 if strict or same_cores else 5.0)
        while state_of(worker.pid) not in states and time.monotonic() < deadline:
            time.sleep(0.002)  # a search goes on while it comes to a stand
        assert state_of(worker.pid) in states
    assert state_of(worker.pid) != "T"
    thread.join(10)
    assert thread.failures == []  # type: ignore[attr-defined]


@pytest.mark.slow
def test_standing_still_does_not_count_against_a_deadline(worker: Worker) -> None:
    quiet = Quiet(same_cores=True)
    thread = loading(quiet, worker, 0.0, 3.0)
    with quiet.timed():
        time.sleep(4.0)
    thread.join(10)
    assert thread.failures == []  # type: ignore[attr-defined]


def test_a_worker_that_has_to_wait_is_left_frozen(worker: Worker) -> None:
    quiet = Quiet(same_cores=False)
    with quiet.beside(worker, then_stop=True):
        worker.request("load", stage="load", timeout_s=20, source="class ModelNew: pass\n")
    assert state_of(worker.pid) == "T"


def test_the_device_goes_to_the_task_just_served_then_to_whoever_waited_longest() -> None:
    turns, order, threads = Turns(), [], []

    def take(key: str) -> None:
        with turns.hold(key):
            order.append(key)

    with turns.hold("b"):
        for number, key in enumerate("acbb"):
            threads.append(threading.Thread(target=take, args=(key,)))
            threads[-1].start()
            while len(turns._waiting) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join(5)
    assert order == ["b", "b", "a", "c"]


def test_what_is_measured_alone_waits_for_candidates_and_holds_new_ones_back() -> None:
    turns, order = Turns(), []

    def alone() -> None:
        with turns.alone():
            order.append("alone")
            time.sleep(0.1)

    def candidate() -> None:
        with turns.under_way():
            order.append("second")

    threads = [threading.Thread(target=each) for each in (alone, candidate)]
    with turns.under_way():
        threads[0].start()
        while not turns._wanting:
            time.sleep(0.001)
        threads[1].start()
        order.append("first")
    for thread in threads:
        thread.join(5)
    assert order == ["first", "alone", "second"]


def test_a_frozen_tree_includes_orphans_and_grandchildren(worker: Worker) -> None:
    source = (
        "import os\n"
        "middle = os.fork()\n"
        "if middle == 0:\n"
        "    if os.fork() == 0:\n"
        "        while True: pass\n"
        "    os._exit(0)\n"
        "os.waitpid(middle, 0)\n"
        "if os.fork() == 0:\n"
        "    while True: pass\n"
        "class ModelNew: pass\n"
    )
    worker.request("load", stage="load", timeout_s=20, source=source)
    family = [p.pid for p in proc.living(worker.pid)]
    assert len(family) == 3
    assert sorted(p.pid for p in proc.family(worker.pid)) == sorted(family)
    worker.freeze()
    assert {state_of(pid) for pid in family} == {"T"}


def test_who_is_interrupted_while_it_waits_for_the_device_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, held = Turns(), threading.Event()

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    def work() -> None:
        with turns.hold("three"):
            held.set()

    with turns.hold("one"), monkeypatch.context() as patched:
        patched.setattr(turns._changed, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt), turns.hold("two"):
            pass
    threading.Thread(target=work, daemon=True).start()
    assert held.wait(5)
