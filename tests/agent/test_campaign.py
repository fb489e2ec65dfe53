"""The loop's decisions, with scripted doubles for proposer and evaluator."""

import threading
import time
from pathlib import Path

from agent.campaign import CampaignConfig, run_campaign
from agent.engine import LocalEngine
from agent.journal import Journal
from agent.outcome import CampaignResult, Stage
from agent.scripted import ScriptedEvaluator, ScriptedProposer
from sandbox.types import Language, Status, Task


def make_task(name: str) -> Task:
    return Task(f"test/{name}", f"# {name}", "cpu")


def script(number: int, **words: object) -> str:
    line = " ".join(f"{k}={v}" for k, v in words.items())
    return f"# {number}\n# scripted: {line}\n"


def run(
    folder: Path,
    sources: dict[str, list[str]],
    evaluator: ScriptedEvaluator | None = None,
    **config: object,
) -> CampaignResult:
    double = evaluator or ScriptedEvaluator()
    engine = LocalEngine(lambda _: double)
    tasks = [make_task(name) for name in sources]
    proposer = ScriptedProposer({f"test/{name}": s for name, s in sources.items() if s})
    folder.mkdir(exist_ok=True)
    with Journal(folder) as journal:
        try:
            return run_campaign(tasks, [proposer], engine, journal, CampaignConfig(**config))
        finally:
            engine.close()


def test_first(tmp_path):
    r = run(tmp_path/"r", {"a": [script(1, speedup=1.5), script(2, status="WRONG_VALUE"), script(3, speedup=2.0), script(4,speedup=0.5)], "b": [], "c": [script(1, speedup=0.9)]}, max_candidates_per_task=4)
    for t in r.tasks: print(t.task_id, t.stage, t.tried, t.speedup, t.against_compile, t.verdict, t.reason, t.rounds)
    print(r.stopped, r.seconds)
    assert 0
