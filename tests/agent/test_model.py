"""OpenAIModel against a real HTTP server on this machine."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.model import ModelError, Reply, ScriptedModel, Unavailable
from agent.models.endpoint import OpenAIModel
from agent.prompts.message import Message
from sandbox.errors import ConfigError
from tests.asked import complete
from tests.doubles.openai_server import OpenAIServer, Step

ASK: list[Message] = [Message(role="user", content="Write a kernel.")]


def client(server: OpenAIServer, **settings: Any) -> OpenAIModel:
    defaults: dict[str, Any] = {"api_key": "k", "retries": 0}
    return OpenAIModel(server.model, server.url, **defaults | settings)


def test_a_reply_carries_text_reasoning_tokens_and_why_it_ended() -> None:
    step = Step("code", reasoning="hmm", finish_reason="length", delay_s=0.05)
    with OpenAIServer([step]) as server:
        [reply] = complete(client(server), ASK, 1)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("code", "hmm", "length")
    assert (reply.prompt_tokens, reply.completion_tokens) == (11, 7)
    assert reply.seconds >= 0.05


def test_n_choices_of_one_request_share_its_tokens() -> None:
    with OpenAIServer(["a", "b", "c"]) as server:
        replies = complete(client(server), ASK, 3)
    assert len(server.requests) == 1
    assert [reply.text for reply in replies] == ["a", "b", "c"]
    assert sum(reply.prompt_tokens for reply in replies) == 11
    assert sum(reply.completion_tokens for reply in replies) == 21


def test_a_server_that_ignores_n_is_asked_again_for_the_rest() -> None:
    with OpenAIServer(["a", "b", "c"], honours_n=False) as server:
        replies = complete(client(server), ASK, 3)
    assert sorted(reply.text for reply in replies) == ["a", "b", "c"]
    assert [request.body.get("n") for request in server.requests] == [3, None, None]


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_n_is_asked_one_by_one(status: int) -> None:
    with OpenAIServer([Step("n must be 1", status=status), "a", "b"]) as server:
        replies = complete(client(server), ASK, 2)
    assert sorted(reply.text for reply in replies) == ["a", "b"]


def test_a_sparse_answer_is_still_a_reply() -> None:
    step = Step(body='{"choices": [{"message": {"content": null}}]}')
    with OpenAIServer([step]) as server:
        assert complete(client(server), ASK, 1)[0].text == ""


def test_the_text_of_an_answer_in_parts_is_what_counts() -> None:
    parts = '[{"type": "thinking", "thinking": []}, {"type": "text", "text": "co"}, '
    parts += '{"type": "text", "text": "de"}]'
    with OpenAIServer([Step(body=f'{{"choices": [{{"message": {{"content": {parts}}}}}]}}')]) as s:
        assert complete(client(s), ASK, 1)[0].text == "code"


def test_requests_in_flight_stay_within_the_limit() -> None:
    with OpenAIServer([Step("a", delay_s=0.05)] * 9, honours_n=False) as server:
        complete(client(server, concurrency=3), ASK, 9)
    assert server.most_in_flight == 3


def test_each_prompt_gets_its_own_reply_in_order() -> None:
    prompts = [[Message(role="user", content=str(i))] for i in range(3)]
    with OpenAIServer(["a", "b", "c"]) as server:
        replies = client(server, concurrency=1).complete_each(prompts)
    assert [reply.text for reply in replies if reply] == ["a", "b", "c"]
    asked = [request.body["messages"][0]["content"] for request in server.requests]
    assert asked == ["0", "1", "2"]


def test_one_failed_prompt_does_not_lose_the_others() -> None:
    with OpenAIServer(["a", Step("prompt too long", status=400), "c"]) as server:
        replies = client(server, concurrency=1).complete_each([ASK] * 3)
    assert [reply and reply.text for reply in replies] == ["a", None, "c"]


def test_no_prompts_and_no_replies_wanted_ask_nothing() -> None:
    with OpenAIServer([]) as server:
        assert complete(client(server), ASK, 0) == []
        assert client(server).complete_each([]) == []
    assert server.requests == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_tried_again(status: int) -> None:
    with OpenAIServer([Step("busy", status=status), "a"]) as server:
        [reply] = complete(client(server, retries=1), ASK, 1)
    assert reply.text == "a"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "asked", ["²", "0", "-1", "soon", "1e-3", "nan", "Fri, 27 Nov 2026 17:00:00 GMT", "."]
)
@pytest.mark.slow
def test_whatever_retry_after_says_the_server_is_tried_again(asked: str) -> None:
    script = [Step("busy", status=429), "a"]
    with OpenAIServer(script, retry_after=asked) as server:
        [reply] = complete(client(server, retries=1), ASK, 1)
    assert reply.text == "a"


@pytest.mark.parametrize("count", ["NaN", "1e400", "-5", "true", '"12"', "1e3", str(10**30)])
def test_what_is_no_number_of_tokens_is_none(count: str) -> None:
    """It ended the campaign: the journal could not hold it."""
    usage = f'{{"prompt_tokens": {count}, "completion_tokens": {count}}}'
    choice = '{"index": 0, "finish_reason": "stop", "message": {"content": "a"}}'
    step = Step(body=f'{{"choices": [{choice}], "usage": {usage}}}')
    with OpenAIServer([step]) as server:
        [reply] = complete(client(server), ASK, 1)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("a", 0, 0)


def test_an_answer_nested_beyond_reading_is_one_line() -> None:
    with (
        OpenAIServer([Step(body="[" * 100_000)]) as server,
        pytest.raises(ModelError, match="not a chat completion") as raised,
    ):
        complete(client(server), ASK, 1)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step("slow down", status=429), "rate limit or quota (429) after 1 tries"),
        (Step("boom", status=500), "server error after 1 tries"),
        (Step("prompt too long", status=400), "refused: Error code: 400"),
        (Step("forbidden", status=403), "key was refused (403); check OPENAI_API_KEY"),
        (Step(body="<html>\nhello</html>"), "not a chat completion"),
        (Step(body="[]"), "not a chat completion"),
        (Step(body="{}"), "not a chat completion"),
        (Step(body='{"choices": []}'), "not a chat completion, it holds no choices"),
        (Step(body='{"choices": [{"index": 0}]}'), "not a chat completion"),
        (Step(body='{"choices": "none"}'), "not a chat completion"),
        (Step(body='{"error": {"code": 502}}'), "completion, it says: {'code': 502}"),
        (Step(body='{"choices": [{"message": {"content": [1]}}]}'), "not a chat completion"),
        (Step(body='{"choices": [{"message": {}}], "usage": 3}'), "not a chat completion"),
        (Step(delay_s=1.0), "no reply within 0.2 s"),
    ],
)
def test_a_failure_is_one_line_that_says_what_to_do(step: Step, words: str) -> None:
    with (
        OpenAIServer([step]) as server,
        pytest.raises(ModelError) as raised,
    ):
        complete(client(server, timeout_s=0.2), ASK, 1)
    assert words in str(raised.value)
    assert server.url in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_that_is_closed_lets_go_of_those_who_wait_for_it_and_asks_nothing_more() -> None:
    with OpenAIServer([Step("late", delay_s=60)]) as server, ThreadPoolExecutor() as pool:
        model = client(server)
        waiting = pool.submit(complete, model, ASK, 1)
        while not server.requests:
            time.sleep(0.01)
        model.close()
        with pytest.raises(ModelError, match="closed before it answered"):
            waiting.result(timeout=10)
        with pytest.raises(ModelError, match="closed before it was asked"):
            complete(model, ASK, 1)
        assert len(server.requests) == 1


def test_blank_lines_keep_a_request_alive_until_its_time_is_over() -> None:
    with OpenAIServer(["a", "b"], blank_lines=3) as server:
        [reply] = complete(client(server, timeout_s=0.2), ASK, 1)
        assert reply.text == "a"
        server.blank_lines = 100
        began_s = time.monotonic()
        with pytest.raises(ModelError, match=r"no reply within 0.2 s, after 1 tries"):
            complete(client(server, timeout_s=0.2), ASK, 1)
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Content-Encoding": "gzip"}, 200, "its answer is not compressed as it says"),
        ({"Location": "/v1/chat/completions"}, 307, "it redirects again and again; is that"),
    ],
)
def test_a_server_that_answers_oddly_was_reached(
    headers: dict[str, str], status: int, words: str
) -> None:
    with OpenAIServer([Step("a", status=status)] * 30) as server:
        server.headers = headers
        with pytest.raises(ModelError, match=re.escape(f"{server.url}: {words}")):
            complete(client(server), ASK, 1)


@pytest.mark.parametrize(
    ("step", "lasting"),
    [
        (Step("no server behind me", status=503), True),
        (Step("forbidden", status=403), True),
        (Step("boom", status=500), False),
        (Step("prompt too long", status=400), False),
        (Step(delay_s=1.0), False),
    ],
)
def test_what_is_of_one_request_alone_says_nothing_of_the_next(step: Step, lasting: bool) -> None:
    with OpenAIServer([step]) as server, pytest.raises(ModelError) as raised:
        complete(client(server, timeout_s=0.2), ASK, 1)
    assert isinstance(raised.value, Unavailable) is lasting


def test_an_unreachable_server_is_named() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1"
        model = OpenAIModel("m", url, api_key="k", retries=0)
        with pytest.raises(Unavailable, match=f"{url}: cannot be reached"):
            complete(model, ASK, 1)


def test_an_unknown_model_is_answered_with_those_there_are() -> None:
    with OpenAIServer([], model="qwen") as server:
        model = OpenAIModel("qwem", server.url, api_key="k", retries=0)
        with pytest.raises(ModelError, match=r"no such model or address .*; it serves: qwen"):
            complete(model, ASK, 1)


def test_a_bad_key_is_refused_and_never_shown() -> None:
    with OpenAIServer([], key="right") as server:
        model = client(server, api_key="sk-very-secret")
        with pytest.raises(ModelError, match="check OPENAI_API_KEY") as raised:
            complete(model, ASK, 1)
    assert "sk-very-secret" not in f"{raised.value} {model!r}"


def test_a_key_echoed_by_the_server_is_not_repeated() -> None:
    step = Step("bad request by sk-very-secret", status=400)
    with OpenAIServer([step]) as server, pytest.raises(ModelError, match="by <key>"):
        complete(client(server, api_key="sk-very-secret"), ASK, 1)


def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIModel("m", "http://localhost:1/v1")


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(["a"], key="from-environment") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
        assert complete(OpenAIModel(server.model), ASK, 1)[0].text == "a"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://"])
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL"):
        OpenAIModel("m", url, api_key="k")


def test_sampling_settings_are_sent_only_where_given() -> None:
    with OpenAIServer(["a", "b"]) as server:
        complete(client(server), ASK, 1)
        complete(client(server, temperature=0.7, max_tokens=99), ASK, 1)
    first, second = (request.body for request in server.requests)
    assert first == {"model": "scripted", "messages": ASK}
    assert (second["temperature"], second["max_tokens"]) == (0.7, 99)


def test_a_model_works_inside_a_running_event_loop() -> None:
    async def inside() -> list[Reply]:
        return complete(model, ASK, 1)

    with OpenAIServer(["a"]) as server:
        model = client(server)
        assert asyncio.run(inside())[0].text == "a"


def test_another_route_answers_each_body_or_says_why() -> None:
    with OpenAIServer([]) as server:
        model = client(server)
        [models] = model.ask_route("/models", [None])
        missing = model.ask_route("/nothing", [{}, {"a": 1}])
    assert not isinstance(models, ModelError)
    assert models.body["data"] == [{"id": "scripted"}]
    assert all(isinstance(each, ModelError) and "404" in str(each) for each in missing)
    asked = [r.body for r in server.requests if r.path == "/v1/nothing"]  # side by side
    assert sorted(asked, key=len) == [{}, {"a": 1}]


def test_the_server_double_also_runs_as_a_program(tmp_path: Path) -> None:
    script = tmp_path / "replies.json"
    script.write_text(json.dumps([{"text": "slow", "status": 429}, "a"]), encoding="utf-8")
    command = [sys.executable, "-m", "tests.doubles.openai_server", "--replies", str(script)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            assert complete(OpenAIModel("scripted", url, api_key="k"), ASK, 1)[0].text == "a"
        finally:
            server.kill()


def test_the_scripted_model_answers_in_order_then_ends() -> None:
    model = ScriptedModel(["a", Reply("b", finish_reason="length")])
    assert [(reply.text, reply.finish_reason) for reply in complete(model, ASK, 2)] == [
        ("a", "stop"),
        ("b", "length"),
    ]
    assert model.prompts == [ASK, ASK]
    with pytest.raises(ModelError, match="ends after 2 replies"):
        complete(model, ASK, 1)
