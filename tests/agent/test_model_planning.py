"""What is said before anything is sent, and what one request tells about an endpoint."""

import pytest

from agent.config import OptimizeConfig
from agent.models.endpoint import OpenAIModel
from agent.models.planning import plan_requests
from agent.models.prices import Price
from agent.models.probing import probe_model
from agent.strategies.contrastive import Contrastive
from agent.views.asking import asks_text, next_asks
from sandbox.types import Language
from tests.agent.scripts import campaign, make_task, script
from tests.doubles.openai_server import OpenAIServer, Step

TASKS = [make_task(str(i)) for i in range(4)]
PRICES = {"m": Price(1.0, 10.0)}


def test_the_plan_counts_candidates_estimates_their_cost_and_names_the_cap():
    config = OptimizeConfig(model="m", prices=PRICES, max_candidates_per_task=5, max_usd=3.0)
    plan = plan_requests(config, TASKS, {})
    assert plan.requests == 20
    assert plan.prompt_tokens > 2000
    assert plan.usd == pytest.approx(20e-6 * (plan.prompt_tokens + 10 * plan.reply_tokens))
    assert "cap: max_usd 3" in str(plan)
    assert plan_requests(config, TASKS, {}, tried=18).requests == 2


def test_a_plan_without_a_price_says_so():
    plan = plan_requests(OptimizeConfig(model="other", prices=PRICES), TASKS, {})
    assert plan.usd is None
    assert "price unknown; no cap (--max-requests, --max-usd)" in str(plan)


@pytest.mark.parametrize(
    ("server", "said", "requests"),
    [
        (OpenAIServer(["a", "b"]), "n = 2 is honoured", 1),
        (OpenAIServer(["a", "b"], honours_n=False), "n = 2 is ignored", 1),
        (OpenAIServer([Step("n?", status=400), "a"]), "n = 2 is refused", 2),
    ],
)
def test_one_request_tells_the_latency_and_whether_n_is_honoured(server, said, requests):
    with server:
        found = probe_model(OpenAIModel(server.model, server.url, api_key="k", retries=0))
    text = "\n".join(finding.detail for finding in found)
    assert said in text
    assert "replied in" in text
    assert "the endpoint does not say" in text
    asked = [r for r in server.requests if r.path.endswith("completions")]
    assert len(asked) == requests


def test_the_context_limit_is_found_where_servers_put_it():
    entries = [{"id": "m", "max_model_len": 32768}]
    with OpenAIServer(["a"], model="m", entries=entries) as server:
        found = probe_model(OpenAIModel("m", server.url, api_key="k"))
    assert found[-1].detail == "32768 tokens"


def test_an_endpoint_that_does_not_answer_is_one_finding():
    with OpenAIServer([], key="right") as server:
        [finding] = probe_model(OpenAIModel(server.model, server.url, api_key="wrong"))
    assert not finding.ok
    assert "key was refused" in finding.detail


def test_the_next_questions_of_a_run_can_be_read(tmp_path):
    sources = {"a": [script(1, speedup=1.5), script(2, speedup=3.0)]}
    campaign(tmp_path / "run", sources)
    config = OptimizeConfig(strategy=Contrastive(), language=Language.CPP)
    first = asks_text(next_asks(make_task("a"), config, {"CPU": "one"}))
    assert "##### propose, asked 3 time(s)" in first
    assert "- CPU: one" in first
    later = asks_text(next_asks(make_task("a"), config, {}, tmp_path / "run"))
    assert "(score: 3.00x)" in later
    assert "##### contrast" in later
