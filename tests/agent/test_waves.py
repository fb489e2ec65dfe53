"""The shared part of the candidates, where tasks stop before they have had theirs."""

import json
from collections.abc import Sequence
from pathlib import Path

from agent.journals.journal import Journal
from agent.journals.outcome import CampaignResult
from agent.loop.allocation import Allocation
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.model import ModelError
from agent.proposing.scripted import ScriptedProposer
from agent.types import FIRST_TURN, Attempt, Proposal, Turn
from sandbox.types import Task
from tests.agent.scripts import local_engine, make_task, script

MOST = 8
SOURCES = {f"test/{name}": [script(n, speedup=1 + n / 9) for n in range(20)] for name in "ab"}


class Refusing(ScriptedProposer):
    """A script whose model will not be asked about the first task."""

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        if task.id == "test/a":
            raise ModelError("the prompt was refused")
        return super().propose(task, history, n, turn)


def search(folder: Path, proposer: ScriptedProposer) -> CampaignResult:
    folder.mkdir(exist_ok=True)
    engine = local_engine()
    config = CampaignConfig(
        proposals_per_round=2,
        max_candidates=MOST,
        max_candidates_per_task=MOST,
        confirm=False,
        allocation=Allocation(patience=None),
    )
    with Journal(folder) as journal:
        tasks = [make_task(name) for name in "ab"]
        result = run_campaign(tasks, [proposer], engine, journal, config)
    engine.close()
    return result


def test_what_a_stopped_task_may_still_use_is_not_granted_to_others(tmp_path):
    first = search(tmp_path / "run", Refusing(SOURCES))
    assert first.tasks[0].reason == "the prompt was refused"
    assert first.tried == 6
    again = search(tmp_path / "run", ScriptedProposer(SOURCES))
    assert again.tried == MOST
    assert again.tasks[0].tried == 2
    with Journal(tmp_path / "run", read_only=True) as journal:
        grants = [json.loads(detail) for detail in journal.events("granted")]
    assert sum(count for grant in grants for count in grant.values()) <= MOST - 4
