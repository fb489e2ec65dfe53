"""The throughput benchmark without a GPU: the exchange with another harness, and the tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, throughput
from benchmarks.candidates.probe import Probe
from benchmarks.candidates.stream import repeated, stream
from benchmarks.harness import SCRIPT, verdict_of
from benchmarks.throughput import Job, Rows
from benchmarks.throughput_table import summary
from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.types import EvalConfig, Language, Status, Task

EVAL = """
import litellm
from dotenv import load_dotenv
from types import SimpleNamespace
load_dotenv()
def eval_kernel_against_ref(original_model_src, custom_model_src, **options):
    assert options["num_correct_trials"] == 5 and str(options["precision"]) == "torch.float32"
    print("noise without a line end", end="")
    {body}
    return SimpleNamespace(compiled=True, correctness=custom_model_src == "good", runtime=2.0,
                           ref_runtime=3.0, metadata={{"error": ValueError("x")}})
"""
REQUEST = {"reference": "", "candidate": "good", "backend": "cuda", "build_dir": "/tmp"}
QUICK: Any = {"baselines": (), "batch_ms": 2, "rounds": 3, "min_pairs": 2, "max_pairs": 2}
REQUEST |= {"gpu_arch": "Hopper", "trials": 5, "perf_trials": 100}


def ask(folder: Path, body: str, candidate: str = "good") -> dict[str, Any]:
    package = folder / "kernelbench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "eval.py").write_text(EVAL.format(body=body))
    (package / "utils.py").write_text("def set_gpu_arch(names): assert names == ['Hopper']")
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT)],
        input=json.dumps({**REQUEST, "candidate": candidate}),
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return verdict_of(done)


@pytest.mark.slow
def test_a_verdict_travels_with_its_figures_and_the_names_of_placeholders(tmp_path: Path) -> None:
    row = ask(tmp_path, "pass")
    assert (row["verdict"], row["passed"], row["speedup"]) == ("correct", True, 1.5)
    assert "litellm" in row["placeholders"]


@pytest.mark.slow
def test_an_incorrect_candidate_has_no_speedup(tmp_path: Path) -> None:
    row = ask(tmp_path, "pass", "bad")
    assert (row["verdict"], row["passed"], "speedup" in row) == ("incorrect", False, False)


@pytest.mark.slow
def test_a_crash_is_a_failed_candidate_and_calling_a_placeholder_is_not_silent(
    tmp_path: Path,
) -> None:
    row = ask(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (row["verdict"], row["passed"]) == ("died (-11)", False)
    (tmp_path / "other").mkdir()
    row = ask(tmp_path / "other", "litellm.completion()")
    assert "litellm is not installed" in row["detail"]


@pytest.mark.slow
def test_without_kernelbench_there_is_nothing_to_compare() -> None:
    command = [sys.executable, "-P", str(SCRIPT)]
    done = subprocess.run(
        command, input=json.dumps(REQUEST), capture_output=True, text=True, timeout=60, check=False
    )
    with pytest.raises(SystemExit, match="cannot be imported"):
        verdict_of(done)


def test_the_stream_is_mixed_and_the_repeated_are_twenty_right_ones() -> None:
    found = stream()
    assert len(found) >= 40
    assert {Language.CUDA, Language.CUDA_INLINE, Language.TRITON} == {p.language for p in found}
    wanted = {Status.PASSED, Status.WRONG_VALUE, Status.RUNTIME_ERROR, Status.COMPILE_ERROR}
    assert wanted <= {p.expected for p in found}
    assert {p.problem[:6] for p in found} == {"level1", "level2", "level3"}
    again = repeated()
    assert len(set(again)) == 20
    assert {p.expected for p in again} == {Status.PASSED}


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    first, second = (Job("ours", False, probe, 0, False) for probe in stream()[:2])
    Rows(tmp_path / "rows").add({"kind": "row", "key": first.key, "verdict": "PASSED"})
    rows = Rows(tmp_path / "rows")
    assert (rows.has(first), rows.has(second)) == (True, False)


def row(part: str, variant: str, gpu_s: float, passed: bool, **more: Any) -> dict[str, Any]:
    key = [part, more.pop("kind", "stream"), "level1/12", "cuda", variant, more.pop("n", 0), False]
    verdict = {"verdict": "PASSED" if passed else "WRONG_VALUE", "passed": passed}
    base = {"kind": "row", "key": key, "expected": "PASSED", "seconds": gpu_s, "gpu_s": gpu_s}
    return {**base, "prepare_s": 1.0, "bytes": 1000, **verdict, **more}


def test_the_summary_pairs_candidates_and_names_disagreement() -> None:
    rows = [row("harness", "a", 10.0, True), row("ours", "a", 0.5, True)]
    rows += [row("harness", "b", 8.0, False), row("ours", "b", 1.0, True)]
    rows += [row("harness", "only theirs", 99.0, True)]
    text = summary([{"kind": "run", "date": "2026-01-01T", "kernelbench": "abc"}, *rows])
    assert (
        "| CUDA, Triton up to 1 GiB | 2 | 9.00, 9.00 | 0.75, 0.75 | 14.0 (8.0) | 400, 4800, 2057 |"
        in text
    )
    assert "1 of 2 agree" in text
    assert "Right for ours: 2 of 2" in text
    assert "| level1/12 cuda b | PASSED | WRONG_VALUE | PASSED |" in text


def test_a_fault_of_ours_costs_nothing_and_is_no_candidate(tmp_path: Path) -> None:
    rows = [row("harness", "a", 10.0, True), row("ours", "a", 1.0, True)]
    rows += [row("harness", "b", 10.0, True)]
    rows += [row("ours", "b", 0.0, False) | {"verdict": "SANDBOX_ERROR"}]
    text = summary([{"kind": "run", "date": "2026-01-01T", "kernelbench": "abc"}, *rows])
    assert "| all | 1 | 10.00, 10.00 | 1.00, 1.00 | 10.0 (10.0) | 360, 3600, 1800 |" in text
    assert "left out: 1" in text
    job = Job("ours", False, stream()[0], 0, False)
    Rows(tmp_path / "rows").add({"kind": "row", "key": job.key, "verdict": "SANDBOX_ERROR"})
    assert not Rows(tmp_path / "rows").has(job)


def test_spreads_are_compared_over_the_same_candidates() -> None:
    rows: list[dict[str, Any]] = [{"kind": "run", "date": "2026-01-01T", "kernelbench": "abc"}]
    for n, (both, alone) in enumerate(((1.0, 1.0), (1.1, 2.0))):
        for part in ("harness", "ours"):
            rows.append(row(part, "both", 1.0, True, kind="repeat", n=n, speedup=both))
        rows.append(row("harness", "theirs alone", 1.0, True, kind="repeat", n=n, speedup=alone))
    text = summary(rows)
    for name in ("theirs", "ours"):
        assert f"Spread over 1 candidates, {name}: median 9.5 %, worst 9.5 %." in text
    assert "1.500x, 66.7 % of 2" in text


def test_the_summary_gives_the_spread_over_repetitions() -> None:
    rows = [{"kind": "run", "date": "2026-01-01T", "kernelbench": "abc"}]
    for n, speedup in enumerate((1.0, 1.1, 1.05)):
        rows.append(row("ours", "a", 1.0, n > 0, kind="repeat", n=n, speedup=speedup))
    text = summary(rows)
    assert "1.050x, 9.5 % of 3 | ours |" in text


def test_the_summary_of_a_full_pipeline_counts_every_candidate() -> None:
    row = {"kind": "pipeline", "seconds": 20.0, "gpu_s": 15.0, "verdicts": ["PASSED"] * 40}
    text = summary([{**row, "right": 39}])
    assert "40 candidates in 20.0 s" in text
    assert "0.50 s each, 7200 per GPU-hour; GPU held 75 %" in text


@pytest.mark.slow
def test_every_repetition_has_an_evaluator_of_its_own_and_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LocalEvaluator] = []

    def evaluator(device: str, cache_dir: Path) -> LocalEvaluator:
        made.append(LocalEvaluator("cpu", cache_dir=tmp_path / "cache"))
        return made[-1]

    monkeypatch.setattr(throughput, "LocalEvaluator", evaluator)
    monkeypatch.setattr(throughput, "CONFIG", EvalConfig(**QUICK))
    [task] = load_tasks("builtin/relu", "cpu")
    source = task.source.replace("class Model(", "class ModelNew(")
    probe = Probe(task.id, Language.TORCH, "right", Status.PASSED, source)
    wrong = Probe(
        task.id,
        Language.TORCH,
        "wrong",
        Status.WRONG_VALUE,
        source.replace("torch.relu(", "-torch.relu("),
    )
    jobs = [Job("ours", True, p, n, False) for n in range(3) for p in (probe, wrong)]
    side = throughput.Ours(argparse.Namespace(kernelbench=tmp_path), tmp_path)
    side._tasks[task.id] = task
    try:
        judged = side.repetitions(jobs, time.monotonic() + 600)
        found = [next(judged) for _ in range(4)]
        assert list(side.repetitions(jobs, time.monotonic())) == []
    finally:
        side.close()
    assert [job for job, _ in found] == jobs[:4]
    assert [row["verdict"] for _, row in found] == ["PASSED", "WRONG_VALUE"] * 2
    assert all(row["speedup"] and row["pairs"] for _, row in found[::2])
    assert len(made) == 2


STUCK = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open("child", "w").write(str(child.pid))
time.sleep(60)
"""


def test_a_harness_that_is_stopped_leaves_no_compiler_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    monkeypatch.setattr(harness, "SCRIPT", tmp_path / "stuck.py")
    probe = stream()[0]
    options = argparse.Namespace(kernelbench=tmp_path, gpu_arch="Hopper")
    side = throughput.Harness(options, tmp_path / "builds")
    side._tasks[probe.problem] = Task("test/none", "", "cuda")
    found: list[Path] = []
    for seconds in (1.0, 5.0, 25.0):  # until it has come so far, on whatever machine
        monkeypatch.setattr(harness, "TIMEOUT_S", seconds)
        row = side.judge(Job("harness", False, probe, 0, False))
        assert (row["verdict"], row["passed"]) == ("timeout", False)
        found = found or [p for p in (tmp_path / "builds").glob("*/child") if p.read_text()]
        if found:
            break
    [told] = found
    deadline = time.monotonic() + 10
    while alive(int(told.read_text())):
        assert time.monotonic() < deadline, "its child lives on"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """A zombie that nobody reaps does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
