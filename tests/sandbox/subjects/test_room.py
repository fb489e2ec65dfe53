"""Whose fault it is that a GPU has no memory left: played without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.errors import Crowded, DeviceError
from sandbox.machine import memory
from sandbox.machine.gpu_state import NOT_AVAILABLE, GpuWatch
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import Failure, FailureKind
from sandbox.subjects.room import refuse_hoard, room_beside
from sandbox.worker.main import claim

GIB = 1 << 30
ALL = 80 * GIB


class Device:
    """Memory that goes with the candidate's worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
        self.free, self.held, self.waited = 1 * GIB, held, 0
        self.worker = SimpleNamespace(pid=7, close=self.close)
        monkeypatch.setattr(memory, "device_free_bytes", lambda: self.free)
        monkeypatch.setattr(memory, "wait_for_device", self.wait)
        monkeypatch.setattr(memory.time, "sleep", lambda seconds: None)

    @property
    def candidate(self) -> Any:
        return SimpleNamespace(worker=self.worker, stage="verify", given_bytes=0)

    def close(self) -> None:
        self.free, self.held = self.free + self.held, 0

    def wait(self, free_bytes: int) -> None:
        self.waited = free_bytes


@pytest.mark.parametrize("shortage", [memory.OutOfMemoryError, torch.OutOfMemoryError])
def test_a_candidate_that_took_the_memory_is_out_of_memory(monkeypatch, shortage) -> None:
    device = Device(monkeypatch, 70 * GIB)
    with pytest.raises(WorkerFailed) as raised, room_beside(device.candidate, "cuda", ALL):
        raise shortage("no room")
    assert raised.value.failure.kind is FailureKind.MEMORY
    assert raised.value.failure.stage == "verify"
    assert "71680 MiB" in raised.value.failure.message
    assert device.waited == 12 * GIB  # what there was, a candidate's part, a context


def test_beside_a_modest_candidate_the_shortage_is_ours(monkeypatch) -> None:
    device = Device(monkeypatch, 2 * GIB)
    with pytest.raises(DeviceError, match="no room"), room_beside(device.candidate, "cuda", ALL):
        raise memory.OutOfMemoryError("no room")


@pytest.mark.parametrize(
    ("stage", "held", "left", "whose"),
    [
        ("verify", 2, 1, DeviceError),
        ("verify", 2, 30, WorkerFailed),
        ("verify", 30, 1, WorkerFailed),
        ("reference", 2, 30, DeviceError),
        ("reference", 30, 1, WorkerFailed),
    ],
    ids=["it lacked its share", "it had its share", "it took more", "reference", "left it none"],
)
def test_a_shortage_that_a_worker_tells_of_is_its_own_if_it_had_its_share(
    monkeypatch, stage: str, held: int, left: int, whose: type[Exception]
) -> None:
    device = Device(monkeypatch, held * GIB)
    device.free = left * GIB
    claimed = Failure(stage, FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")
    with pytest.raises(whose), room_beside(device.candidate, "cuda", ALL):
        raise WorkerFailed(claimed)
    assert device.held == 0


def test_the_share_of_large_calls_is_what_they_need(monkeypatch) -> None:
    claimed = Failure("verify", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")
    device = Device(monkeypatch, 20 * GIB)
    with pytest.raises(DeviceError), room_beside(device.candidate, "cuda", ALL, 30 * GIB):
        raise WorkerFailed(claimed)
    device = Device(monkeypatch, 20 * GIB)
    with pytest.raises(WorkerFailed), room_beside(device.candidate, "cuda", ALL):
        raise WorkerFailed(claimed)


@pytest.mark.parametrize(
    ("left", "crowded", "whose"),
    [(30, True, Crowded), (30, False, WorkerFailed), (70, True, WorkerFailed)],
    ids=["idle workers may have it", "room was made", "nearly all is free"],
)
def test_a_candidate_that_lacks_memory_has_what_idle_workers_held_first(
    monkeypatch, left: int, crowded: bool, whose: type[Exception]
) -> None:
    device = Device(monkeypatch, 0)
    device.free = left * GIB
    claimed = Failure("load", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")
    with pytest.raises(whose), room_beside(None, "cuda", ALL, crowded=crowded):
        raise WorkerFailed(claimed)


def test_workers_that_are_ending_are_waited_for_before_memory_is_counted(monkeypatch) -> None:
    device = Device(monkeypatch, 2 * GIB)

    def settle() -> None:  # what an earlier pair had is not this candidate's
        device.free += 60 * GIB

    with (
        pytest.raises(DeviceError, match="no room"),
        room_beside(device.candidate, "cuda", ALL, settle=settle),
    ):
        raise memory.OutOfMemoryError("no room")


def test_what_a_worker_lacks_on_the_host_is_left_alone(monkeypatch) -> None:
    device = Device(monkeypatch, 2 * GIB)
    claimed = Failure("verify", FailureKind.CLAIMED, ("MemoryError",), "no room")
    with pytest.raises(WorkerFailed), room_beside(device.candidate, "cpu", ALL):
        raise WorkerFailed(claimed)
    assert device.held


def test_memory_that_is_still_being_given_back_is_nobody_s(monkeypatch) -> None:
    looks = [1, 1, 1, 20, 20, 40, *[60] * 20]
    monkeypatch.setattr(memory, "device_free_bytes", lambda: looks.pop(0) * GIB)
    monkeypatch.setattr(memory.time, "sleep", lambda seconds: None)
    assert memory.steady_free_bytes() == 60 * GIB


class Clock:
    """Each look at the time is a hundredth of a second after the last."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("looks", "waited_s"),
    [
        ([10, 10, 20], 0.1),
        ([10, *[11] * 1000], 0.45),
        ([*range(10, 20), *[19] * 1000], 0.75),
    ],
    ids=["it is given back", "others take it", "they take the rest"],
)
def test_memory_is_waited_for_only_while_there_comes_more(
    monkeypatch: pytest.MonkeyPatch, looks: list[int], waited_s: float
) -> None:
    clock, left = Clock(), iter(looks)
    monkeypatch.setattr(memory, "time", clock)
    memory.wait_for_device(20, lambda: next(left), memory.STEADY_S)
    assert clock.now < waited_s


def test_our_own_arenas_are_not_what_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_free_bytes", lambda: 50)
    monkeypatch.setattr(memory, "_sizes", {1: 20, 2: 10})
    assert memory.others_free_bytes() == 80


def test_other_errors_and_none_are_left_alone(monkeypatch) -> None:
    device = Device(monkeypatch, 70 * GIB)
    with room_beside(device.candidate, "cuda", ALL):
        pass
    with pytest.raises(KeyError), room_beside(device.candidate, "cuda", ALL):
        raise KeyError
    assert device.held


class Nvml:
    """Answers as the driver's library does."""

    def __init__(self, told: dict[int, int | None] | None) -> None:
        self.told = told

    def compute_processes(self) -> dict[int, int | None] | None:
        return self.told


def watch(told: dict[int, int | None] | None) -> GpuWatch:
    found = GpuWatch.__new__(GpuWatch)
    found._nvml = Nvml(told)  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("told", [None, {}, {7: None}, {7: 2 * GIB}, {8: 70 * GIB}])
def test_what_is_not_known_to_hoard_goes_on(monkeypatch, told) -> None:
    candidate = Device(monkeypatch, 0).candidate
    refuse_hoard(candidate, watch(told), ALL)
    refuse_hoard(candidate, None, ALL)


def test_a_candidate_that_hoards_when_it_is_imported_waits_for_nobody(monkeypatch) -> None:
    candidate = Device(monkeypatch, 70 * GIB).candidate
    with pytest.raises(WorkerFailed, match="holds 71680 MiB"):
        refuse_hoard(candidate, watch({7: 70 * GIB}), ALL)


def test_what_it_was_given_is_not_hoarded(monkeypatch) -> None:
    candidate = Device(monkeypatch, 0).candidate
    candidate.given_bytes = 60 * GIB
    refuse_hoard(candidate, watch({7: 70 * GIB}), ALL)


def test_nvml_says_not_available_by_a_number_that_is_none() -> None:
    assert NOT_AVAILABLE == (1 << 64) - 1


class AcceleratorError(RuntimeError):
    """As torch raises it, with the runtime's number."""

    def __init__(self, code: int) -> None:
        super().__init__("CUDA error")
        self.error_code = code


def test_a_context_without_room_is_claimed_as_a_lack_of_memory() -> None:
    assert "OutOfMemoryError" in claim(AcceleratorError(2))["types"]
    assert "OutOfMemoryError" not in claim(AcceleratorError(700))["types"]
