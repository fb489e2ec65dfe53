"""KernelBench's own evaluation of one candidate, as its scripts run it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("harness_script.py")
TRIALS, PERF_TRIALS, TIMEOUT_S = 5, 100, 180.0
"""Defaults of KernelBench's scripts/eval_from_generations.py."""


def protocol() -> dict[str, Any]:
    """For a record."""
    return {"trials": TRIALS, "perf_trials": PERF_TRIALS, "timeout_s": TIMEOUT_S}


def ask(checkout: Path, asked: dict[str, Any], build: Path) -> dict[str, Any]:
    """What KernelBench's evaluation says of one candidate, in a process of its own that builds in
    `build`: `seconds` and what `verdict_of` tells. `asked` is the harness's request without what is
    the same for all.
    """
    build.mkdir(parents=True, exist_ok=True)
    request = {**asked, "build_dir": str(build), "trials": TRIALS, "perf_trials": PERF_TRIALS}
    paths = [str((checkout / "src").resolve()), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-P", str(SCRIPT.resolve())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=build,
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            out, errors = child.communicate(json.dumps(request), timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # its compilers too
            child.communicate()
            seconds = time.monotonic() - start
            return {"seconds": seconds, "gpu_s": seconds, "verdict": "timeout", "passed": False}
    seconds = time.monotonic() - start
    done = subprocess.CompletedProcess(child.args, child.returncode, out, errors)
    return {"seconds": seconds, "gpu_s": seconds, **verdict_of(done)}


def verdict_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Their verdict; a process that ended without one is a crash, which they too count as failed.

    Raises SystemExit where KernelBench itself cannot be imported: then there is nothing to compare.
    """
    lines = done.stdout.strip().splitlines()
    try:
        reply = json.loads(lines[-1]) if lines else None
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        last = done.stderr.strip().splitlines()[-1:] or [""]
        if "ModuleNotFoundError" in last[0] and "kernelbench" in done.stderr:
            raise SystemExit(f"KernelBench cannot be imported: {last[0]}; put it on PYTHONPATH")
        return {"verdict": f"died ({done.returncode})", "passed": False, "detail": last[0][:300]}
    result = reply["result"]
    if result is None:
        return {"verdict": "no verdict", "passed": False, "placeholders": reply["placeholders"]}
    row = {"passed": result["correct"], "placeholders": reply["placeholders"]}
    if "refused" in reply:
        row["refused"] = reply["refused"]
    row["evaluation_s"] = reply["evaluation_s"]
    row["verdict"] = (
        "correct" if result["correct"] else "incorrect" if result["compiled"] else "not compiled"
    )
    row["detail"] = json.dumps(result["metadata"])[:400]
    if result["correct"] and result["runtime_ms"] > 0:
        row["candidate_ms"], row["reference_ms"] = result["runtime_ms"], result["reference_ms"]
        row["speedup"] = result["reference_ms"] / result["runtime_ms"]
    return row
