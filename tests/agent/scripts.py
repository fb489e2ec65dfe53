"""What tests of the loop share: tasks, scripts for the doubles, and one campaign in a folder."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agent.engines.engine import Engine, LocalEngine
from agent.journals.journal import Journal
from agent.journals.outcome import CampaignResult
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.proposing.scripted import ScriptedEvaluator, ScriptedProposer
from sandbox.errors import SandboxFault
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Task

Sources = Mapping[str, Sequence[str]]


def make_task(name: str) -> Task:
    return Task(f"test/{name}", f"# {name}", "cpu")


def script(number: int, **words: object) -> str:
    """A candidate's source; `number` makes it distinct."""
    line = " ".join(f"{key}={value}" for key, value in words.items())
    return f"# {number}\n# scripted: {line}\n"


def candidate(name: str, source: str) -> Candidate:
    return Candidate(f"test/{name}", Language.TRITON, source)


def proposer(sources: Sources) -> ScriptedProposer:
    """Names without sources are unsupported."""
    return ScriptedProposer({f"test/{name}": s for name, s in sources.items() if s})


@dataclass
class Clock:
    """The campaign's, which only evaluations move: a busy machine's does not stop in between."""

    now_s: float = 0.0

    def read(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def local_engine(**evaluator: Any) -> LocalEngine:
    return LocalEngine(partial(ScriptedEvaluator, **evaluator))


class FullDisk(ScriptedEvaluator):
    """Judges nothing."""

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        raise SandboxFault("no space left on device")


class SlowToPrepare(ScriptedEvaluator):
    """For longer than any test waits."""

    def figures(self, task: Task, config: EvalConfig) -> None:
        super().figures(task, config)
        time.sleep(600)


def campaign(
    folder: Path,
    sources: Sources,
    engine: Engine | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    **config: Any,
) -> CampaignResult:
    """Run or resume a campaign over the scripted tasks; a given engine is left open."""
    folder.mkdir(exist_ok=True)
    used = engine or local_engine()
    try:
        with Journal(folder) as journal:
            return run_campaign(
                [make_task(name) for name in sources],
                [proposer(sources)],
                used,
                journal,
                CampaignConfig(**config),
                interrupted=interrupted,
            )
    finally:
        if engine is None:
            used.close()


def hashed_reply(prompt: str, number: int) -> str:
    """A model whose answer follows from the prompt: mostly correct, of some speed, or broken."""
    dice = random.Random(f"{number} {prompt}")
    status = dice.choice(["PASSED"] * 4 + ["COMPILE_ERROR", "WRONG_VALUE", "TIMEOUT"])
    if dice.random() < 0.05:
        return "I would rather not."
    line = f"status={status} speedup={dice.uniform(0.5, 3.0):.3f}"
    source = f"# scripted: {line}\nclass ModelNew:\n    number = {dice.random()}\n"
    return f"Here it is.\n```python\n{source}```\n"


def calls(log: Path, word: str) -> list[str]:
    """Second words of the log's lines that begin with `word`: candidates started, evaluated."""
    if not log.exists():
        return []
    lines = [line.split() for line in log.read_text().splitlines()]
    return [words[1] for words in lines if words[0] == word]


def note_build(log: Path, built: Candidate, config: EvalConfig, task: Task) -> None:
    """A build that leaves a line."""
    with log.open("a") as stream:
        stream.write(f"build {built.id}\n")
