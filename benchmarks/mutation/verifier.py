"""Verdicts on correctness alone: the evaluator's own path with the timing left out."""

from __future__ import annotations

from pathlib import Path

from sandbox.checking.pool import Pool
from sandbox.evaluator import LocalEvaluator
from sandbox.judging import judge
from sandbox.judging.statistics import Null
from sandbox.prepare import Preparation
from sandbox.run import Run
from sandbox.subjects.plan import Plan
from sandbox.types import Candidate, EvalConfig, Evaluation, Task

CONFIG = EvalConfig(
    preset="mutation",
    tf32=False,  # or rounding to ten bits would be allowed, not a mistake
    baselines=(),
    load_timeout_s=30.0,
    run_timeout_s=30.0,
    memory_limit_bytes=4 << 30,
)


class Untimed(Run):
    """Build, load, verify."""

    def time(self) -> None:
        """Nothing: what passes verification has passed."""


class Verifier:
    """Judges candidates against pools of secret cases that its caller renews."""

    def __init__(self, device: str, cache: Path | None = None) -> None:
        self._evaluator = LocalEvaluator(device, cache_dir=cache)
        self._bench = self._evaluator._bench
        self.facts = self._evaluator.facts

    def pools(self, task: Task) -> tuple[Pool, ...]:
        """Fresh cases under fresh secret seeds, for every shape."""
        return self._bench.preparer.pools(task, CONFIG, randomise=True)

    def judge(self, task: Task, candidate: Candidate, pools: tuple[Pool, ...]) -> Evaluation:
        run = Untimed(self._bench, task, candidate, CONFIG)
        try:
            run.load()
            one = Plan(1, 1)
            run.measure(Preparation(task, pools, one, Null(), (), None, one, None), None)
        finally:
            observation = run.finish()
        self._bench.stand.settle()
        return judge.judge(observation, Null(), CONFIG)

    def close(self) -> None:
        self._evaluator.close()
