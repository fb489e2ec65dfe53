"""A journal is a model and a device: its campaign is decided again, and differences are found."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.config import OptimizeConfig
from agent.engines.engine import LocalEngine
from agent.journals.journal import Journal
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.model import ScriptedModel
from agent.models.replay import ReplayModel
from agent.models.settings import ModelConfig
from agent.proposers import open_proposers
from agent.proposing.model_proposer import ModelProposer
from agent.replay import replay_run
from agent.runs import open_run
from agent.strategies.contrastive import Contrastive
from agent.strategies.evolve import Evolve
from agent.strategies.fsr import Fsr
from agent.strategies.islands import ISLAND
from agent.strategies.portfolio import Portfolio
from agent.strategies.types import Strategy
from kernelbench.suite import load_tasks
from sandbox.errors import ConfigError
from sandbox.types import Task
from tests.agent.scripts import FullDisk, hashed_reply, local_engine, make_task
from tests.doubles.openai_server import OpenAIServer

FEW = [make_task(str(i)) for i in range(3)]
MANY = [make_task(str(i)) for i in range(20)]


def record(
    runs: Path, tasks: Sequence[Task], config: OptimizeConfig, *, name: str = "first"
) -> int:
    """A campaign with a model over HTTP and scripted evaluations; returns its attempts."""
    engine = local_engine(invalid=("test/1",))
    with (
        open_run(name, config, runs) as journal,
        open_proposers(journal, config, {"GPU": "one"}) as proposers,
    ):
        result = run_campaign(tasks, proposers, engine, journal, config.campaign())
    engine.close()
    return result.tried


@pytest.mark.parametrize("strategy", [Fsr(), Evolve(), Portfolio()], ids=lambda s: s.kind)
def test_what_a_later_call_judged_after_a_fault_of_ours_is_decided_alike(
    tmp_path, endpoint, strategy
):
    tasks = [make_task("0"), make_task("2")]
    for engine, each in ((LocalEngine(FullDisk), 3), (local_engine(), 3), (local_engine(), 9)):
        config = settings(strategy, each)
        with (
            open_run("first", config, tmp_path) as journal,
            open_proposers(journal, config, {}) as proposers,
        ):
            rows = run_campaign(tasks, proposers, engine, journal, config.campaign()).tasks
        engine.close()
    assert [row.faults for row in rows] == [0, 0]
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert found == []
    assert result.tried == sum(row.tried for row in rows) > 6


def settings(strategy: Strategy, each: int) -> OptimizeConfig:
    return OptimizeConfig(
        device="cpu",
        models=(ModelConfig("scripted"), ModelConfig("other", weight=2.0)),
        strategy=strategy,
        keep_replies=False,
        proposals_per_round=3,
        max_candidates_per_task=each,
    )


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch):
    with OpenAIServer([], any_model=True, answering=hashed_reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield server


@pytest.mark.parametrize(
    "strategy", [Fsr(), Contrastive(), Evolve(), Portfolio()], ids=lambda s: s.kind
)
def test_a_campaign_is_decided_again_without_its_model_or_its_device(
    tmp_path, endpoint, monkeypatch, strategy
):
    tried = record(tmp_path, FEW, settings(strategy, 6))
    asked = len(endpoint.requests)
    monkeypatch.delenv("OPENAI_API_KEY")
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert found == []
    assert result.tried == tried == 12
    assert len(endpoint.requests) == asked
    _, found = replay_run(tmp_path / "again", "third", tmp_path)
    assert found == [], "a replay is a recording too"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Fsr(depth=9), Evolve(), Portfolio()], ids=lambda s: s.kind)
def test_200_attempts_are_decided_again(tmp_path, endpoint, strategy):
    config = settings(strategy, 11)
    assert record(tmp_path, MANY, config) >= 200
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert found == []
    assert result.tried >= 200


def test_a_run_that_was_resumed_with_a_larger_budget_is_replayed_too(tmp_path, endpoint):
    record(tmp_path, FEW, settings(Fsr(), 4))
    tried = record(tmp_path, FEW, settings(Fsr(), 9))
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert (result.tried, found) == (tried, [])


def test_a_run_that_was_cut_short_is_replayed_as_far_as_it_came(tmp_path, endpoint, clock):
    config = settings(Fsr(), 9)
    engine = local_engine(seconds=1, sleep=clock.sleep)  # 27 s for all
    with (
        open_run("first", config, tmp_path) as journal,
        open_proposers(journal, config, {}) as proposers,
    ):
        limited = CampaignConfig(proposals_per_round=3, max_candidates_per_task=9, max_seconds=12)
        first = run_campaign(FEW, proposers, engine, journal, limited)
    engine.close()
    assert 0 < first.tried < 27
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert (result.tried, found) == (first.tried, [])


def test_a_reply_stays_with_its_question_where_equal_ones_failed(tmp_path):
    class Lossy(ScriptedModel):
        def complete_each(self, prompts, draw=""):
            replies = super().complete_each(prompts, draw)
            return [None if place in (0, 2) else reply for place, reply in enumerate(replies)]

    [task] = FEW[:1]
    model = Lossy([hashed_reply("", number) for number in range(5)])
    live = ModelProposer(model, {}, Evolve(islands=5)).propose(task, [], 5)
    assert [p.features[ISLAND] for p in live] == [1, 3, 4]
    with Journal(tmp_path) as journal:
        journal.record_task(task)
        journal.record_proposals(0, live)
        replayed = ModelProposer(ReplayModel(journal), {}, Evolve(islands=5))
        assert replayed.propose(task, [], 5) == live


def test_the_built_in_search_is_replayed_too(tmp_path):
    config = OptimizeConfig(device="cpu", max_candidates_per_task=5, seed=3)
    tried = record(tmp_path, load_tasks("builtin/sigmoid", "cpu"), config)
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert (result.tried, found) == (tried, [])


def test_another_decision_is_found_and_named(tmp_path, endpoint):
    record(tmp_path, FEW, settings(Fsr(), 6))
    with Journal(tmp_path / "first") as journal:
        journal.record_config(settings(Contrastive(), 6))
    _, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert {d.task_id for d in found} == {"test/0", "test/2"}
    assert "strategy was 'fsr propose', now 'contrastive propose'" in str(found[0])


def test_a_replay_never_writes_into_a_run_that_exists(tmp_path, endpoint):
    record(tmp_path, FEW[:1], settings(Fsr(), 1))
    with pytest.raises(ConfigError, match="exists already"):
        replay_run(tmp_path / "first", "first", tmp_path)
