"""Replies are paid once, caps are exact to the request: OpenAIModel against a real server."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.config import OptimizeConfig
from agent.model import CapReached, ModelError
from agent.models.completions import most_of
from agent.models.endpoint import OpenAIModel
from agent.models.ledger import Caps, Ledger, Spend
from agent.models.opening import open_books
from agent.models.prices import Price
from agent.models.store import ReplyStore
from agent.prompts.message import Message
from sandbox.errors import ConfigError
from tests.asked import complete
from tests.doubles.openai_server import OpenAIServer, Step

ROOT = Path(__file__).parents[2]
ASK: list[Message] = [Message(role="user", content="Write a kernel.")]
PRICE = Price(input=10.0, output=100.0)


def client(server: OpenAIServer, **settings: Any) -> OpenAIModel:
    defaults: dict[str, Any] = {"api_key": "k", "retries": 0}
    return OpenAIModel(server.model, server.url, **defaults | settings)


def test_a_kept_reply_is_not_asked_for_again(tmp_path):
    store = ReplyStore(tmp_path)
    with OpenAIServer(["a", "b", "c"]) as server:
        first = complete(client(server, store=store), ASK, 3)
        again = complete(client(server, store=store), ASK, 3)
    assert first == again
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"temperature": 0.5}, {"max_tokens": 5}, {"extra": {"top_k": 1}}]
)
def test_another_seed_or_setting_is_another_request(tmp_path, other):
    store = ReplyStore(tmp_path)
    with OpenAIServer(["a", "b"]) as server:
        complete(client(server, store=store), ASK, 1)
        [reply] = complete(client(server, store=store, **other), ASK, 1)
    assert reply.text == "b"


def test_another_draw_of_the_same_prompt_is_another_request(tmp_path):
    with OpenAIServer(["a", "b"]) as server:
        model = client(server, store=ReplyStore(tmp_path))
        texts = [complete(model, ASK, 1, draw)[0].text for draw in ("0", "1", "0")]
    assert texts == ["a", "b", "a"]


def test_only_what_is_missing_is_asked_for(tmp_path):
    store = ReplyStore(tmp_path)
    with OpenAIServer(["a", "b", "c"]) as server:
        model = client(server, store=store)
        complete(model, ASK, 1)
        texts = [reply.text for reply in complete(model, ASK, 3)]
    assert texts == ["a", "b", "c"]
    assert [request.body.get("n") for request in server.requests] == [None, 2]


def test_a_damaged_kept_reply_is_asked_for_again(tmp_path):
    with OpenAIServer(["a", "b"]) as server:
        model = client(server, store=ReplyStore(tmp_path))
        complete(model, ASK, 1)
        [kept] = tmp_path.rglob("*.json")
        kept.write_text("{")
        assert complete(model, ASK, 1)[0].text == "b"


def test_where_no_reply_can_be_kept_none_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    run, config = tmp_path / "run", OptimizeConfig(model="m")
    run.mkdir()
    with open_books(run, config):
        assert list((tmp_path / "cache" / "replies").iterdir()) == []
    (tmp_path / "cache" / "replies").rmdir()
    (tmp_path / "cache" / "replies").touch()
    with pytest.raises(ConfigError, match="replies cannot be kept"), open_books(run, config):
        pass
    with open_books(run, replace(config, keep_replies=False)) as books:
        assert books.store.get("a" * 32) is None


def test_a_store_that_cannot_be_written_is_an_error_before_the_reply_is_used(tmp_path):
    (tmp_path / "file").write_text("")
    with OpenAIServer(["a"]) as server, pytest.raises(ModelError, match="cannot be kept"):
        complete(client(server, store=ReplyStore(tmp_path / "file")), ASK, 1)


def test_every_try_counts_and_a_cap_on_requests_is_exact():
    ledger = Ledger(caps=Caps(max_requests=5))
    busy = [Step("busy", status=429), Step("boom", status=500)]
    with OpenAIServer([*busy, "a", *busy, "b"], honours_n=False) as server:
        model = client(server, ledger=ledger, retries=4, concurrency=1)
        assert [reply.text for reply in complete(model, ASK, 1)] == ["a"]
        with pytest.raises(CapReached, match="max_requests"):
            complete(model, ASK, 1)
    assert len(server.requests) == 5
    assert ledger.spent == Spend(5, 18)


def test_a_cap_that_retries_reach_does_not_hide_that_nobody_answers():
    with OpenAIServer(["a"]) as server:
        model = client(server, ledger=Ledger(caps=Caps(max_requests=2)), retries=4)
    with pytest.raises(ModelError, match="cannot be reached") as said:
        complete(model, ASK, 1)
    assert not isinstance(said.value, CapReached)


def test_a_cap_leaves_what_still_fits_and_in_flight_requests_never_exceed_it():
    ledger = Ledger(caps=Caps(max_requests=4))
    with OpenAIServer([Step("a", delay_s=0.05)] * 9, honours_n=False) as server:
        replies = complete(client(server, ledger=ledger), ASK, 9)
    assert len(server.requests) == 4
    assert len(replies) == 4


def test_a_cap_on_tokens_holds_for_the_most_that_requests_in_flight_may_use():
    one = most_of(ASK, 1, 50, None).tokens
    ledger = Ledger(caps=Caps(max_tokens=2 * one))
    with OpenAIServer([Step("a", delay_s=0.1)] * 20, honours_n=False) as server:
        replies = complete(client(server, ledger=ledger, max_tokens=50), ASK, 20)
    assert server.most_in_flight <= 2
    assert ledger.spent.tokens == 18 * len(replies) <= 2 * one
    assert ledger.spent.tokens + one > 2 * one, "another request did fit"


def test_a_cap_on_money_is_kept_and_costs_reach_the_replies():
    ledger = Ledger(caps=Caps(max_usd=0.02))
    with OpenAIServer(["a"] * 50) as server:
        model = client(server, ledger=ledger, max_tokens=100, price=PRICE)
        costs: list[float] = []
        with pytest.raises(CapReached, match="max_usd"):
            spend_all(model, costs)
    assert costs[0] == pytest.approx(11 * 10e-6 + 7 * 100e-6)
    assert ledger.spent.usd == pytest.approx(sum(costs))
    assert 0.02 - most_of(ASK, 1, 100, PRICE).usd < ledger.spent.usd <= 0.02


def spend_all(model: OpenAIModel, costs: list[float]) -> None:
    for draw in range(50):
        costs += [reply.cost_usd for reply in complete(model, ASK, 1, str(draw))]


def test_a_cap_that_cannot_be_kept_is_refused_before_anything_is_sent():
    with pytest.raises(ConfigError, match="needs a limit"):
        OpenAIModel("m", "http://h/v1", api_key="k", ledger=Ledger(caps=Caps(max_tokens=9)))
    with pytest.raises(ConfigError, match="'m' has no price"):
        OpenAIModel(
            "m", "http://h/v1", api_key="k", max_tokens=9, ledger=Ledger(caps=Caps(max_usd=1))
        )


@pytest.mark.parametrize(
    ("step", "tokens"),
    [
        (Step("refused", status=400), 0),
        (Step(delay_s=1.0), most_of(ASK, 1, 50, None).tokens),
        (Step(body="<html>"), most_of(ASK, 1, 50, None).tokens),
        (Step(body='{"choices": []}'), most_of(ASK, 1, 50, None).tokens),
        (Step(body='{"choices": [{"message": {}}]}'), most_of(ASK, 1, 50, None).tokens),
    ],
)
def test_an_answer_that_was_lost_counts_in_full_and_a_refusal_does_not(step, tokens):
    ledger = Ledger()
    with OpenAIServer([step]) as server:
        model = client(server, ledger=ledger, timeout_s=0.3, max_tokens=50)
        with suppress(ModelError):
            complete(model, ASK, 1)
    assert ledger.spent == Spend(1, tokens)


def test_a_spent_quota_is_not_tried_again():
    body = '{"error": {"message": "no money", "code": "insufficient_quota"}}'
    with (
        OpenAIServer([Step(status=429, body=body)] * 3) as server,
        pytest.raises(ModelError, match="quota"),
    ):
        complete(client(server, retries=2), ASK, 1)
    assert len(server.requests) == 1


def test_the_limit_on_requests_in_flight_holds_over_all_callers():
    with OpenAIServer([Step("a", delay_s=0.05)] * 12, honours_n=False) as server:
        model = client(server, concurrency=2)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda draw: complete(model, ASK, 3, str(draw)), range(4)))
    assert server.most_in_flight == 2


def test_after_kill_9_with_requests_in_flight_nothing_is_paid_twice_or_lost(tmp_path):
    steps = [Step(str(i), delay_s=0.15 + 0.02 * i) for i in range(16)]
    with OpenAIServer(steps, honours_n=False) as server:
        command = [sys.executable, "-m", "tests.agent.ask_model", server.url, str(tmp_path), "16"]
        process = subprocess.Popen(command, cwd=ROOT)
        deadline = time.monotonic() + 60
        while len(list(tmp_path.rglob("*.json"))) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        kept = len(list(tmp_path.rglob("*.json")))
        asked = -1
        while asked != len(server.requests):  # what was sent before the kill may come after it
            asked = len(server.requests)
            time.sleep(0.5)
        assert asked > kept, "something was in flight"
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # The script ends after 16 replies; those in flight at the kill were answered to nobody.
    lost = asked - kept
    assert len(done.stdout.split()) == 16 - lost
    assert len(server.requests) == asked + 16 - kept
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.spent.requests >= len(server.requests)
