"""Rows as a bench would write them, for tests of figures and files; nothing is measured."""

import math

from kernelbench.results import Row
from sandbox.evidence import Kind
from sandbox.figures import Baseline, Interval, Pair, Timing
from sandbox.types import Evaluation, Language, Status

HERE = {"device": "cuda", "gpu": "Test GPU"}


def interval(value: float, half: float) -> Interval:
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def row(
    task_id: str,
    speedup: float | None = None,
    *,
    status: Status = Status.PASSED,
    sample: int = 0,
    compiled: float | None = 1.25,
    half: float = 0.01,
    task_hash: str = "h",
    kind: Kind | None = Kind.KERNEL,
    logs: tuple[float, ...] | None = None,
) -> Row:
    """Passed with this speedup against eager's 2 ms; without one it failed. `logs` are the process
    pairs' log speedups; without them three pairs scatter as the half-width says.
    """
    if speedup is None and status is Status.PASSED:
        status = Status.WRONG_VALUE
    timing, baselines = None, ()
    if speedup is not None:
        apart, middle = half * math.sqrt(3) / 1.96, math.log(speedup)
        logs = logs or (middle - apart, middle, middle + apart)
        pairs = tuple(Pair(2.0, 2.0 / math.exp(log), log, rounds=6) for log in logs)
        timing = Timing(2.0, 2.0 / speedup, interval(speedup, half), 0.005, pairs, 8, 0.5)
        if compiled is not None:
            baselines = (Baseline("compile", 2.0 / compiled, interval(compiled, 0.02)),)
    found = Evaluation(
        task_id,
        f"candidate-{sample}",
        "config",
        status,
        timing=timing,
        baselines=baselines,
        kind=kind if status is Status.PASSED else None,
    )
    return Row(task_id, task_hash, sample, Language.TRITON, "file.py", HERE, found)
