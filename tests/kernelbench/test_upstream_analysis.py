"""KernelBench's own analysis reads our files and finds our figures.

Needs a checkout: WARPSMITH_KERNELBENCH=PATH. Its command-line and table packages, which do not
compute, are replaced where they are not installed.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kernelbench.bench import Bench
from kernelbench.submissions import Submission
from kernelbench.suite import load_tasks
from sandbox.types import Candidate, EvalConfig, Language
from tests.kernelbench.bench_records import HERE
from tests.kernelbench.test_bench import ListedJudge

CHECKOUT = os.environ.get("WARPSMITH_KERNELBENCH")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="WARPSMITH_KERNELBENCH names no checkout")
DRIVER = """
import importlib.util, json, sys, types
if importlib.util.find_spec("pydra") is None:
    sys.modules["pydra"] = types.SimpleNamespace(
        Config=object, REQUIRED=None, main=lambda base: lambda function: function)
if importlib.util.find_spec("tabulate") is None:
    sys.modules["tabulate"] = types.SimpleNamespace(tabulate=lambda *_, **__: "")
package = types.ModuleType("kernelbench")  # without its __init__, which needs model clients
package.__path__ = ["src/kernelbench"]
sys.modules["kernelbench"] = package
sys.path[:0] = ["src", "scripts"]
from benchmark_eval_analysis import analyze_greedy_eval
out, level = sys.argv[1], int(sys.argv[2])
found = analyze_greedy_eval(f"level{level}", "any", "any", level, eval_results_dir=out,
    baseline_file=f"{out}/timing/baseline_time_torch.json")
print("FOUND" + json.dumps(found))
"""


@pytest.mark.parametrize("level", [1, 2])
def test_kernelbenchs_analysis_finds_the_same_figures(tmp_path: Path, level: int) -> None:
    tasks = load_tasks(f"kernelbench:{CHECKOUT}:level{level}", "cpu")
    rng = random.Random(level)
    figures = {
        t.id.rpartition("/")[2]: rng.choice([None, rng.lognormvariate(0.2, 0.6)]) for t in tasks
    }
    submissions = [
        Submission(Candidate(t.id, Language.TRITON, "# k"), 0, "k.py")
        for t in tasks
        if rng.random() < 0.8  # the others have no kernel
    ]
    bench = Bench(tasks, submissions, EvalConfig(), HERE, tmp_path, {})
    bench.run(ListedJudge({name: figure for name, figure in figures.items() if figure}))
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "kernelbench"), str(level)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.partition("FOUND")[2])
    ours = bench.report().all
    assert ours is not None
    assert (theirs["total_count"], theirs["correct_count"]) == (ours.tasks, ours.correct)
    assert theirs["geo_mean_speedup"] == pytest.approx(ours.conditional)
    for p, share in theirs["fast_p"].items():
        expected = ours.correctness if p == "0.0" else ours.fast[f"{float(p):g}"]
        assert share == pytest.approx(expected), p
