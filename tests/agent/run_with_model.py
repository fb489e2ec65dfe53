"""A campaign with a model, to be killed (tests/agent/killable.py)."""

from pathlib import Path

import agent.models.endpoint  # noqa: F401  before the fork: a campaign imports it once it asks
from agent.config import OptimizeConfig, load_optimize
from agent.loop.campaign import run_campaign
from agent.models.settings import ModelConfig
from agent.proposers import open_proposers
from agent.runs import open_run
from tests.agent.scripts import local_engine, make_task

TASKS = [make_task(name) for name in ("a", "b", "c")]


def main(url: str, folder: str, strategy: str) -> None:
    config = OptimizeConfig(
        strategy=load_optimize(strategy=strategy).strategy,
        max_candidates=24,
        models=(ModelConfig("scripted", url),),
        keep_replies=False,
        proposals_per_round=2,
        max_candidates_per_task=8,
    )
    engine = local_engine(seconds=0.02)
    with (
        open_run("first", config, Path(folder)) as journal,
        open_proposers(journal, config, {}) as proposers,
    ):
        run_campaign(TASKS, proposers, engine, journal, config.campaign())
    engine.close()
