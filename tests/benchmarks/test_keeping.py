"""What ends a benchmark early does not end what it kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
