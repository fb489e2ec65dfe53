"""What ends a benchmark early does not end what it kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = """
import sys, time
from pathlib import Path
from benchmarks.keeping import keep_json, stop_cleanly

stop_cleanly()
try:
    print("measuring", flush=True)
    time.sleep(60)
finally:
    keep_json(Path(sys.argv[1]), [1, 2])
"""


def test_sigterm_ends_a_benchmark_with_its_results_kept(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "measuring\n"
        child.terminate()
        assert child.wait(20) == 128 + signal.SIGTERM
    assert out.read_text().split() == ["[", "1,", "2", "]"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("scaling", "--gpus", "one"), "--gpus one: expected numbers"),
        (("stream", "--device", "cpu", "--suite", "no such"), "unknown task 'no such'"),
    ],
)
@pytest.mark.slow
def test_what_a_user_can_mend_is_told_without_a_traceback(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "WARPSMITH_CACHE": str(tmp_path)},
    )
    assert done.returncode != 0
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
