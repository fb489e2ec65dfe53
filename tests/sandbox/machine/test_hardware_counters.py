"""Hardware counters: read through CUPTI's structures, told in words, absent with the reason."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.machine import hardware_counters
from sandbox.machine.hardware_counters import METRICS, TIME, facts, values
from sandbox.worker.counters import (
    MOST_KERNELS,
    MOST_PASSES,
    Counters,
    Cupti,
    Uncounted,
    count,
    together,
)

DOUBLE = Path(__file__).parents[2] / "doubles" / "cupti.cpp"
DEVICE = 3


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("cupti") / "libcupti.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", built, DOUBLE], check=True)
    return ctypes.CDLL(str(built))


def read(library: ctypes.CDLL, call: Callable[[], object]) -> dict[str, float]:
    return Counters(Cupti(library), 17, DEVICE).of(call, lambda: None)


def test_a_call_is_repeated_until_every_counter_had_its_pass(library: ctypes.CDLL) -> None:
    library.fake(5, 0, b"")
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        library.fake_kernel()

    found = read(library, call)
    assert len(calls) == 5
    assert found == {name: 1.0 + place for place, name in enumerate(METRICS)}
    assert library.fake_enabled() == 0


def test_a_counter_that_the_chip_lacks_is_left_out(library: ctypes.CDLL) -> None:
    lacking = list(METRICS)[3]
    library.fake(1, 0, lacking.encode())
    assert set(read(library, library.fake_kernel)) == set(METRICS) - {lacking}


def test_amounts_of_kernels_are_summed_and_shares_weighted_by_their_time(
    library: ctypes.CDLL,
) -> None:
    library.fake(2, 0, b"")
    found = read(library, lambda: [library.fake_kernel(), library.fake_kernel()])
    place = list(METRICS).index("sm__warps_active.avg.pct_of_peak_sustained_active")
    assert found[TIME] == 1.0 + 11.0
    mean = ((1.0 + place) * 1.0 + (11.0 + place) * 11.0) / 12.0
    assert found["sm__warps_active.avg.pct_of_peak_sustained_active"] == pytest.approx(mean)


def test_a_ratio_to_nothing_is_left_out_of_the_mean() -> None:
    hits = "l1tex__t_sector_hit_rate.pct"
    none, some = {TIME: 2.0, hits: math.nan}, {TIME: 1000.0, hits: 40.0}
    assert together([none, some])[hits] == 40.0
    assert math.isnan(together([none])[hits])


@pytest.mark.parametrize(
    ("kernels", "words"), [(0, "no kernel"), (MOST_KERNELS + 1, f"more than {MOST_KERNELS}")]
)
def test_calls_of_no_kernel_or_too_many_say_so(
    library: ctypes.CDLL, kernels: int, words: str
) -> None:
    library.fake(1, 0, b"")
    with pytest.raises(Uncounted, match=words):
        read(library, lambda: [library.fake_kernel() for _ in range(kernels)])
    assert library.fake_enabled() == 0


@pytest.mark.parametrize(
    ("result", "words"),
    [(35, "NVreg_RestrictProfilingToAdminUsers"), (33, "virtual GPU"), (7, "CUptiResult 7")],
)
def test_a_driver_that_refuses_is_quoted(library: ctypes.CDLL, result: int, words: str) -> None:
    library.fake(1, result, b"")
    with pytest.raises(Uncounted, match=words):
        read(library, lambda: None)


def test_counters_without_end_are_given_up_and_the_profiler_is_put_away(
    library: ctypes.CDLL,
) -> None:
    library.fake(MOST_PASSES + 1, 0, b"")
    with pytest.raises(Uncounted, match="passes"):
        read(library, lambda: None)
    assert library.fake_enabled() == 0


def test_a_call_that_fails_leaves_no_profiler_behind(library: ctypes.CDLL) -> None:
    library.fake(2, 0, b"")

    def fails() -> None:
        raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"):
        read(library, fails)
    assert library.fake_enabled() == 0


def test_a_cupti_from_before_the_range_profiler_is_named() -> None:
    with pytest.raises(Uncounted, match=r"CUDA 12\.6"):
        Counters(Cupti(ctypes.CDLL("libc.so.6")), 0, 0)


def test_without_cupti_or_a_gpu_the_problem_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.worker.counters.SONAMES", ("libnone.so.1",))
    found = count(lambda: None, lambda: None)
    assert found == {"values": {}, "problem": "no libnone.so.1"}


def test_facts_name_the_metric_the_words_and_the_unit() -> None:
    shown = facts({"dram__bytes_read.sum": 33_554_432.0, "lts__t_sector_hit_rate.pct": 12.5})
    assert shown == [
        "counter dram__bytes_read.sum: read from DRAM 33.55 MB",
        "counter lts__t_sector_hit_rate.pct: L2 hits 12.5 %",
    ]


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"values": [1]},
        {"values": {"made up": 3.0}},
        {"values": {"dram__bytes_read.sum": "many"}},
        {"values": {"dram__bytes_read.sum": float("nan")}},
        {"values": {"dram__bytes_read.sum": -1.0}},
        {"values": {"dram__bytes_read.sum": 10**400}},
        {"values": {"dram__bytes_read.sum": True}},
    ],
)
def test_a_claim_that_is_no_counter_says_nothing(claim: dict[str, object]) -> None:
    assert values(claim) == {}
    assert hardware_counters.facts(values(claim)) == []
