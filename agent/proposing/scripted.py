"""Shipped doubles: an evaluator and a proposer that follow a script, to test the loop alone.

It measures nothing and proves nothing. A candidate's source may hold a line such as
`# scripted: status=PASSED speedup=1.8 confirmed=1.7 seconds=0.1 floor_ms=0.2`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.types import FIRST_TURN, Attempt, Proposal, Turn, Usage
from sandbox.errors import InvalidReference
from sandbox.figures import Baseline, Interval, Pair, Timing
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task

MARK = "# scripted:"


@dataclass
class ScriptedEvaluator:
    """Maps a candidate's source to a canned Evaluation, after an optional delay."""

    device_index: int = 0
    """So that `partial(ScriptedEvaluator, ...)` serves as an engine's `make_evaluator`."""
    seconds: float = 0.0
    """Delay of each evaluation that does not name its own."""
    invalid: tuple[str, ...] = ()
    """Ids of tasks whose reference is declared invalid."""
    sleep: Callable[[float], None] = time.sleep
    """How the delay is spent."""
    log: Path | None = None
    """Appended to, one line per call: `evaluate CANDIDATE PID`; survives a kill -9."""
    closed: bool = field(default=False, init=False)

    def figures(self, task: Task, config: EvalConfig) -> None:
        """Raises InvalidReference for the tasks named so."""
        self._write(f"prepare {task.id} {os.getpid()}")
        if task.id in self.invalid:
            raise InvalidReference(f"{task.id}: the reference's output is constant")

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        script = parse_script(candidate.source)
        self._write(f"start {candidate.id} {os.getpid()}")
        self.sleep(float(script.get("seconds", self.seconds)))
        if script.get("exit"):
            os._exit(int(script["exit"]))
        speedup = script.get("speedup", "1.0")
        if to_beat is None:  # as a campaign asks for a confirmation
            speedup = script.get("confirmed", speedup)
        status = Status(script.get("status", "PASSED"))
        floor_ms = float(script["floor_ms"]) if "floor_ms" in script else None
        evaluation = scripted_evaluation(candidate, config, status, float(speedup), floor_ms)
        self._write(f"evaluate {candidate.id} {os.getpid()} to_beat={to_beat}")
        return evaluation

    def close(self) -> None:
        self.closed = True

    def _write(self, line: str) -> None:
        if self.log is not None:
            with self.log.open("a") as stream:
                stream.write(line + "\n")


@dataclass(frozen=True)
class ScriptedProposer:
    """Proposes the listed sources of each task in order; other tasks are unsupported."""

    sources: Mapping[str, Sequence[str]]
    name: str = "scripted"
    wants_measured: bool = False

    def unsupported(self, task: Task) -> str | None:
        return None if task.id in self.sources else "the script has no line for this task"

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        sources = self.sources[task.id][len(history) : len(history) + n]
        best = max(history, key=speed, default=None)
        parents = () if best is None else (best.proposal.candidate.id,)
        return [
            Proposal(
                Candidate(task.id, Language.TRITON, source),
                self.name,
                strategy="script",
                parents=parents,
                prompt=f"{len(history)} attempts so far",
                usage=Usage(prompt_tokens=10, completion_tokens=len(source)),
            )
            for source in sources
        ]


def parse_script(source: str) -> dict[str, str]:
    """The `key=value` words of the source's `# scripted:` line; empty without one."""
    for line in source.splitlines():
        if line.startswith(MARK):
            words = line.removeprefix(MARK).partition("#")[0].split()
            return dict(word.split("=", 1) for word in words)
    return {}


def scripted_evaluation(
    candidate: Candidate,
    config: EvalConfig,
    status: Status,
    speedup: float,
    floor_ms: float | None = None,
) -> Evaluation:
    """An evaluation as the sandbox would make it: reference 1 ms, interval of 2 %, three pairs."""
    timing = None
    if status is Status.PASSED and not config.verify_only:
        interval = Interval(speedup, speedup * 0.98, speedup * 1.02)
        timing = Timing(
            reference_ms=1.0,
            candidate_ms=1.0 / speedup,
            speedup=interval,
            noise_floor=0.005,
            pairs=(Pair(1.0, 1.0 / speedup, 0.0, rounds=8),) * 3,
            sets=16,
            floor_ms=floor_ms,
        )
    return Evaluation(
        candidate.task_id,
        candidate.id,
        config.id,
        status,
        detail="" if status is Status.PASSED else f"scripted {status.value}",
        timing=timing,
        baselines=(Baseline("compile", 0.8, Interval(1.25, 1.2, 1.3)),),
        environment={"device": "scripted"},
        seconds={"verify": 0.01, "time": 0.02},
    )


def speed(attempt: Attempt) -> float:
    """Lower bound of an attempt's speedup, 0 where it has none."""
    interval = attempt.evaluation.speedup
    return 0.0 if interval is None else interval.low
