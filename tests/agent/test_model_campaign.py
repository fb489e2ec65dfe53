"""A campaign whose proposals come from a model: rounds that end early, prices, several models."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agent.config import OptimizeConfig, load_optimize
from agent.journals.journal import Journal
from agent.journals.outcome import CampaignResult, Stage
from agent.journals.spending import Spending, spending
from agent.loop.allocation import Allocation
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.model import AwaitingReplies, Model, ModelError, Reply, ScriptedModel
from agent.models.endpoint import OpenAIModel
from agent.models.mixture import Mixture
from agent.models.opening import check_models, together
from agent.models.settings import ModelConfig
from agent.prompts.message import Message
from agent.proposers import open_proposers
from agent.proposing.model_proposer import ModelProposer
from agent.replay import replay_run
from agent.runs import open_run
from agent.strategies.best_of_n import BestOfN
from agent.strategies.portfolio import Portfolio
from agent.strategies.types import Strategy
from agent.types import Measured
from sandbox.errors import ConfigError
from tests.agent.scripts import hashed_reply, local_engine, make_task
from tests.asked import complete
from tests.doubles.openai_server import OpenAIServer, Step

ASK: list[Message] = [Message(role="user", content="Write a kernel.")]


def reply(number: int, **words: object) -> Reply:
    """A reply whose candidate the scripted evaluator knows how to judge."""
    line = " ".join(f"{key}={value}" for key, value in words.items())
    source = f"# {number}\n# scripted: {line}\nclass ModelNew: ...\n"
    return Reply(f"```python\n{source}```\n", None, 11, 7, "stop", 0.5, 0.25)


def run(
    folder: Path, model: Model, strategy: Strategy | None = None, **config: object
) -> CampaignResult:
    engine = local_engine()
    proposer = ModelProposer(model, {}, strategy or BestOfN())
    with Journal(folder) as journal:
        result = run_campaign(
            [make_task("a")],
            [proposer],
            engine,
            journal,
            CampaignConfig(**{"max_candidates_per_task": 9, **config}),
        )
    engine.close()
    return result


def test_a_model_that_fails_ends_the_search_and_what_was_found_is_confirmed(tmp_path):
    [row] = run(tmp_path, ScriptedModel([reply(i, speedup=1.5 + i) for i in range(3)])).tasks
    assert (row.stage, row.verdict, row.tried) == (Stage.STOPPED, "win", 3)
    assert "the script ends after 3 replies" in row.reason
    again = run(tmp_path, ScriptedModel([reply(i, speedup=0.5) for i in range(3, 9)]))
    assert (again.tasks[0].tried, again.tasks[0].stage) == (9, Stage.DONE)


def test_a_model_that_never_answers_leaves_a_task_untried_with_the_reason(tmp_path):
    [row] = run(tmp_path, ScriptedModel([])).tasks
    assert (row.stage, row.tried) == (Stage.STOPPED, 0)
    assert "the script ends" in row.reason


def test_tokens_and_money_reach_the_journal(tmp_path):
    run(tmp_path, ScriptedModel([reply(i) for i in range(3)]), max_candidates_per_task=3)
    with Journal(tmp_path) as journal:
        usages = [attempt.proposal.usage for attempt in journal.attempts("test/a")]
        assert spending(journal) == Spending(3, 33, 21, 0.75, pytest.approx(0.09))
        assert "3 replies, 33 + 21 tokens, $0.75" in str(spending(journal))
    assert [(u.prompt_tokens, u.completion_tokens, u.cost_usd) for u in usages] == [
        (11, 7, 0.25)
    ] * 3


def test_what_was_measured_first_stays_what_models_are_told(tmp_path):
    with Journal(tmp_path) as journal:
        journal.record_measured("t", Measured(1.5, {"compile": 1.0}))
        journal.record_measured("t", Measured(9.9))
        assert journal.measured("t") == Measured(1.5, {"compile": 1.0})
        assert journal.measured("other") is None


class Named:
    """Answers with its own name."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name = name
        self.inner = ScriptedModel([] if fails else [Reply(name, model=name)] * 10_000)

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        return self.inner.complete_each(prompts, draw)


def test_models_get_requests_by_their_weights_and_the_same_again():
    mixture = Mixture([Named("a"), Named("b")], [3.0, 1.0])
    replies = [r.text for draw in range(100) for r in complete(mixture, ASK, 10, str(draw))]
    assert Counter(replies)["a"] == pytest.approx(750, abs=60)
    assert replies == [r.text for draw in range(100) for r in complete(mixture, ASK, 10, str(draw))]


def test_two_models_share_a_campaign_by_weight_under_one_cap(tmp_path, monkeypatch):
    config = OptimizeConfig(
        device="cpu",
        models=(ModelConfig("big", weight=3.0), ModelConfig("small")),
        strategy=BestOfN(),
        keep_replies=False,
        proposals_per_round=4,
        max_candidates_per_task=40,
        max_requests=24,
    )
    engine = local_engine()
    answering = {"answering": hashed_reply, "honours_n": False, "delay_s": 0.02}
    with OpenAIServer([], any_model=True, **answering) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        with Journal(tmp_path) as journal, open_proposers(journal, config, {}) as proposers:
            tasks = [make_task(str(i)) for i in range(4)]
            result = run_campaign(tasks, proposers, engine, journal, config.campaign())
            made = Counter(
                record.proposal.proposer for task in tasks for record in journal.proposals(task.id)
            )
    engine.close()
    assert len(server.requests) == 24, "the cap is used up, and not exceeded"
    assert server.most_in_flight > 1
    assert made == Counter(request.body["model"] for request in server.requests)
    assert made["big"] > made["small"] > 0
    assert all("max_requests (24)" in row.reason for row in result.tasks)


class Absent(Named):
    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        raise AwaitingReplies(len(prompts))


def test_replies_of_all_models_together_are_awaited():
    with pytest.raises(AwaitingReplies, match="awaiting 40 replies"):
        complete(Mixture([Absent("a"), Absent("b")], [1.0, 1.0]), ASK, 40)


def test_a_model_that_fails_loses_its_share_alone_and_is_named(caplog):
    mixture = Mixture([Named("a"), Named("b", fails=True)], [1.0, 1.0])
    replies = complete(mixture, ASK, 40)
    assert {reply.text for reply in replies} == {"a"}
    assert 0 < len(replies) < 40
    assert "one model's replies are missing: scripted: the script ends" in caplog.text


@pytest.mark.parametrize(
    "strategy", [BestOfN(), Portfolio(arms=(BestOfN(),), across=Allocation(patience=None))]
)
def test_a_model_whose_server_is_gone_is_left_out_and_the_other_goes_on(
    tmp_path, monkeypatch, strategy
):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    told: list[str] = []
    with OpenAIServer([]) as gone:
        pass
    with OpenAIServer([], any_model=True, answering=hashed_reply) as server:
        config = OptimizeConfig(
            device="cpu",
            models=(ModelConfig("gone", gone.url, retries=0), ModelConfig("there", server.url)),
            strategy=strategy,
            keep_replies=False,
            proposals_per_round=1,
            max_candidates_per_task=8,
        )
        engine = local_engine()
        with (
            open_run("first", config, tmp_path) as journal,
            open_proposers(journal, config, {}, tell=told.append) as proposers,
        ):
            tasks = [make_task(name) for name in "ab"]
            rows = run_campaign(tasks, proposers, engine, journal, config.campaign()).tasks
            made = {r.proposal.proposer for task in tasks for r in journal.proposals(task.id)}
    engine.close()
    assert [(row.stage, row.tried) for row in rows] == [(Stage.DONE, 8)] * 2
    assert made == {"there"}
    assert len(told) == 1
    assert "model 'gone'" in told[0]
    assert "is it running" in told[0]
    assert "left out" in told[0]
    assert replay_run(tmp_path / "first", "again", tmp_path)[1] == []


def test_an_interrupt_waits_for_no_request_and_loses_no_reply(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    done = [reply(i).text for i in range(3)]
    late = [Step(delay_s=60)] * 2
    with OpenAIServer([done[0], *late, *done[1:]], "there", honours_n=False) as server:
        config = OptimizeConfig(
            device="cpu",
            models=(ModelConfig("there", server.url),),
            strategy=BestOfN(),
            keep_replies=False,
            max_candidates_per_task=3,
        )

        def call(interrupted: Callable[[], bool]) -> CampaignResult:
            engine = local_engine()
            with (
                open_run("first", config, tmp_path) as journal,
                open_proposers(journal, config, {}) as proposers,
                closing(engine),
            ):
                return run_campaign(
                    [make_task("a")],
                    proposers,
                    engine,
                    journal,
                    config.campaign(),
                    interrupted=interrupted,
                    at_endpoints=True,
                )

        began_s = time.monotonic()
        stopped = call(lambda: len(server.requests) == 3)
        assert (stopped.interrupted, stopped.tried) == (True, 0)
        assert time.monotonic() - began_s < 30
        assert call(lambda: False).tried == 3
        assert len(server.requests) == 5, "the reply that had come was not asked for again"


def test_where_all_models_are_gone_each_call_fails_and_one_line_is_told():
    told: list[str] = []
    with OpenAIServer([]) as gone:
        models = [OpenAIModel(n, gone.url, api_key="k", retries=0) for n in ("a", "b")]
    mixture = Mixture(models, [1.0, 1.0], tell=told.append)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"model '[ab]' at .* cannot be reached"):
            complete(mixture, ASK, 5)
    assert len(told) == 1
    for model in models:
        model.close()


def test_a_portfolio_has_no_stand_in_that_it_does_not_name():
    models = [Named(name) for name in "abc"]
    config = OptimizeConfig(
        models=tuple(ModelConfig(name) for name in "abc"), strategy=Portfolio(models=("a", "c"))
    )
    assert together(models, config).name == "a+c"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "campaign.yaml"
    path.write_text(
        "models:\n"
        "  - {name: big, base_url: 'http://h/v1', weight: 3, max_tokens: 1000}\n"
        "  - {name: small-2, base_url: 'http://h/v1', max_tokens: 100}\n"
        "prices: {big: {input: 1, output: 2}, 'small-*': {input: 0, output: 0}}\n"
        "strategy: {kind: contrastive, bucket_width: 0.2}\n"
        "max_usd: 2.5\n"
    )
    return path


def test_models_prices_strategy_and_caps_come_from_the_config(written, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    config = load_optimize(str(written))
    assert [m.name for m in config.asked] == ["big", "small-2"]
    assert (config.strategy.kind, config.caps.max_usd) == ("contrastive", 2.5)
    assert config.prices["gpt-4o"].output > 0, "the shipped table is below the config's"
    check_models(config)
    assert [m.name for m in load_optimize(str(written), model="big").asked] == ["big"]
    assert load_optimize(strategy="best-of-n").strategy == BestOfN()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [{nam: m}]", "unknown key 'models.0.nam'; did you mean 'models.0.name'"),
        ("models: [{name: m, weight: 0}]", "models.0.weight is 0; expected above 0"),
        ("models: [{name: m, weight: .nan}]", "models.0.weight is nan; expected above 0"),
        ("models: [{name: m, max_tokens: -5}]", "models.0.max_tokens is -5; expected at least 1"),
        ("models: [{name: m, timeout_s: 0}]", "models.0.timeout_s is 0; expected above 0"),
        ("models: [{name: m, concurrency: 0}]", "models.0.concurrency is 0; expected at least 1"),
        ("models: [{name: m, extra: {n: 40}}]", "models.0.extra holds 'n', which a request says"),
        ("models: [{name: m, extra: {max_tokens: 9}}]", "models.0.extra holds 'max_tokens'"),
        ("prices: {m: {input: .nan, output: 1}}", "prices are nan and 1"),
        ("models: [{name: m}, {name: m}]", "same name"),
        ("prices: {m: {in: 1}}", "unknown key 'prices.m.in'"),
        ("strategy: fsrr", "no strategy preset; did you mean 'fsr'"),
        ("strategy: {kind: mcts}", "expected a name or a kind of best-of-n"),
        ("strategy: {kind: fsr, deep: 2}", "unknown key 'strategy.deep'"),
        ("strategy: {kind: fsr, depth: 0}", "expected depth >= 1"),
        ("strategy: {kind: contrastive, bucket_width: .nan}", "bucket_width > 0"),
        ("strategy: {kind: contrastive, temperature: .nan}", "temperature is nan; expected above"),
        ("strategy: {kind: evolve, bucket_width: .nan}", "bucket_width and temperature above 0"),
        ("strategy: {kind: evolve, temperature: .nan}", "bucket_width and temperature above 0"),
        ("strategy: {kind: portfolio, exploration: .nan}", "exploration is nan; expected 0 or"),
    ],
)
def test_a_mistake_about_models_is_one_clear_line(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError) as raised:
        load_optimize(str(path))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_money_cap_without_a_price_is_refused(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    config = OptimizeConfig(model="unheard-of", max_usd=1.0)
    with pytest.raises(ConfigError, match="needs a limit"):
        check_models(config)
