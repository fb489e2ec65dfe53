"""Two benches: noise is called noise, and a real difference is found where it is."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbench.bench_view import progress_line
from kernelbench.comparison import compare, read_bench
from kernelbench.results import EVALUATIONS, REFERENCES, SUMMARY, Reference, Row, append_record
from sandbox.errors import ConfigError
from sandbox.figures import Baseline, Interval, Pair
from sandbox.judging.statistics import Null, interval
from sandbox.types import EvalConfig, Status
from tests.kernelbench.bench_records import HERE, row
from tests.kernelbench.bench_records import interval as within

TRUE = [random.Random(n).lognormvariate(0.3, 0.5) for n in range(40)]


def measured(seed: int, faster: float = 1.0) -> list[Row]:
    """40 tasks of three process pairs, each off by its own normal error of 0.7 %, with the interval
    that they would have; every third task faster.
    """
    rng = random.Random(seed)
    rows = []
    for n, true in enumerate(TRUE):
        middle = math.log(true * (faster if n % 3 == 0 else 1.0))
        logs = tuple(rng.gauss(middle, 0.007) for _ in range(3))
        pairs = [Pair(2.0, 2.0 / math.exp(log), log, rounds=6) for log in logs]
        speedup = interval(pairs, Null(), EvalConfig())
        half = math.log(speedup.high / speedup.value)
        rows.append(row(f"t{n}", speedup.value, half=half, logs=logs))
    return rows


def test_two_runs_that_differ_by_noise_are_said_to_nearly_always():
    found = [compare(measured(seed), measured(1000 + seed)) for seed in range(20)]
    assert sum(f.noise_only for f in found) >= 18
    assert "only by noise" in next(f for f in found if f.noise_only).verdict


def test_five_per_cent_on_a_third_of_the_tasks_are_found():
    for seed in range(5):
        found = compare(measured(seed), measured(1000 + seed, faster=1.05))
        assert found.ratio.low > 1.0
        assert "faster" in found.verdict
        real = {f"t{n}" for n in range(0, 40, 3)}
        named = {change.task_id for change in found.changes}
        assert len(named & real) >= 10
        assert len(named - real) <= 2


def test_one_task_within_its_interval_is_noise_and_far_outside_is_not():
    assert compare([row("a", 1.00)], [row("a", 1.003)]).noise_only
    found = compare([row("a", 1.0, half=0.002)], [row("a", 1.5, half=0.002)])
    assert [c.task_id for c in found.changes] == ["a"]
    assert found.verdict.startswith("B is faster than A: 1.500x [1.49")
    assert found.ratio.low > 1.0


def test_one_task_differs_by_chance_as_often_as_an_interval_of_95_per_cent_says():
    rng = random.Random(3)

    def measured_once() -> list[Row]:
        logs = tuple(rng.gauss(0.4, 0.01) for _ in range(3))
        return [row("a", math.exp(sum(logs) / 3), logs=logs)]

    found = [compare(measured_once(), measured_once()) for _ in range(300)]
    assert sum(not f.noise_only for f in found) < 0.09 * len(found)


def test_a_verdict_that_changed_is_a_change_and_counts_one():
    found = compare([row("a", 4.0), row("b", 2.0)], [row("a"), row("b", 2.0)])
    [change] = found.changes
    assert (change.before, change.after) == ("4.00x [3.96, 4.04]", "WRONG_VALUE")
    assert change.ratio == pytest.approx(0.25)
    assert found.ratio.value == pytest.approx(0.5)


def test_what_cannot_be_compared_is_left_out_and_said():
    before = [row("a", 2.0), row("b", 2.0), row("c", 2.0), row("d", 2.0)]
    after = [row("a", 2.0), row("b", 2.0, task_hash="new"), row("c", status=Status.SANDBOX_ERROR)]
    found = compare(before, after)
    assert found.tasks == 1
    assert [line.partition(":")[0] for line in found.left_out] == ["b", "c", "d"]


def test_other_environments_or_protocols_are_pointed_out():
    other = replace(row("a", 2.0), environment={"gpu": "another"})
    assert "environments of A and B differ" in compare([row("a", 2.0)], [other]).left_out[0]


def test_what_was_taught_its_tasks_is_compared_with_its_like_alone():
    taught = [replace(row("a", 2.0), taught="small-transductive@2")]
    assert compare(taught, taught).tasks == 1
    with pytest.raises(
        ConfigError, match="B has kernels of small-transductive@2, which was taught"
    ):
        compare([row("a", 2.0)], taught)


def test_benches_without_a_common_task_are_one_clear_error():
    with pytest.raises(ConfigError, match="no scored task in common"):
        compare([row("a", 2.0)], [row("b", 2.0)])


def test_a_bench_is_read_by_its_folder_or_its_record(tmp_path: Path):
    append_record(tmp_path / EVALUATIONS, row("a", 2.0))
    assert read_bench(tmp_path) == read_bench(tmp_path / EVALUATIONS) == ([row("a", 2.0)], [])
    with pytest.raises(ConfigError, match="no evaluations"):
        read_bench(tmp_path / "missing")


def test_benches_without_kernels_are_compared_by_their_baselines(tmp_path: Path):
    for name, ratio in (("a", 2.0), ("b", 2.01), ("c", 4.0)):
        timed = (
            Baseline("compile", 1.0, Interval(ratio, ratio / 1.01, ratio * 1.01)),
            Baseline("cuda_graph", None, None, "it failed"),
        )
        for task in ("s/1", "s/2", "s/3"):
            record = Reference(task, "hash", "config", HERE, 2.0, timed)
            append_record(tmp_path / name / REFERENCES, record)
    a, b, c = (read_bench(tmp_path / name)[0] for name in "abc")
    assert compare(a, b).noise_only
    found = compare(a, c)
    assert {change.task_id for change in found.changes} == {f"s/{n}, compile" for n in (1, 2, 3)}
    assert (found.changes[0].before, found.tasks) == ("2.00x [1.98, 2.02]", 6)


def test_one_baseline_far_outside_its_interval_stands_out_of_many(tmp_path: Path):
    for name, ratio in (("a", 1.25), ("b", 2.5)):
        for n in range(20):
            faster = within(ratio if n == 0 else 1.25, 0.02)
            timed = (Baseline("compile", 1.0, faster),)
            record = Reference(f"s/{n}", "hash", "config", HERE, 2.0, timed)
            append_record(tmp_path / name / REFERENCES, record)
    a, b = (read_bench(tmp_path / name)[0] for name in "ab")
    assert [change.task_id for change in compare(a, b).changes] == ["s/0, compile"]


def test_a_broken_summary_is_said_and_a_missing_one_is_nothing_to_say(tmp_path):
    append_record(tmp_path / EVALUATIONS, row("a", 2.0))
    assert read_bench(tmp_path)[1] == []
    for text in ('{"counted": [', "[]", '{"counted": 3}', "\xff"):
        (tmp_path / SUMMARY).write_bytes(text.encode("latin-1"))
        rows, [line] = read_bench(tmp_path)
        assert len(rows) == 1
        assert line.startswith(f"{tmp_path / SUMMARY}: cannot be read, so every record")


def test_why_a_sample_failed_is_told_in_whole_words():
    failed = row("a")
    found = replace(failed.evaluation, detail="RuntimeError: " + "mismatch " * 20)
    line = progress_line(replace(failed, evaluation=found), 1, 0, 1.0)
    assert line == f"a sample 0: WRONG_VALUE RuntimeError:{' mismatch' * 7}… (done)"
    found = replace(found, detail="short\nand a second line")
    assert "WRONG_VALUE short… (done)" in progress_line(replace(failed, evaluation=found), 1, 0, 1)
