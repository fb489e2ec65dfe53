"""A scripted OpenAI-compatible server: real HTTP, answers in order, remembers what it was asked.

    python -m tests.doubles.openai_server --port 8123 --replies replies.json

replies.json is a list of strings (a reply's text) or of objects with Step's fields. It imitates the
shape of the protocol, failures included; it checks neither prompts nor sampling parameters.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Step:
    """One answer; with a status other than 200 it is an error and `text` its message."""

    text: str = ""
    reasoning: str | None = None
    finish_reason: str = "stop"
    status: int = 200
    delay_s: float = 0.0
    body: str | None = None
    """Sent as it is in place of a chat completion: a malformed answer."""
    prompt_tokens: int = 11
    completion_tokens: int = 7

    @property
    def plain(self) -> bool:
        """Whether it can be one choice among several."""
        return self.status == 200 and self.body is None


@dataclass
class Request:
    path: str
    authorization: str | None
    body: dict[str, Any]


@dataclass
class OpenAIServer:
    """Use it as a context manager; `url` is the base URL that a client is given."""

    replies: Sequence[str | Step | dict[str, Any]]
    model: str = "scripted"
    any_model: bool = False
    """Answers whatever model is asked for."""
    key: str | None = None
    """Requests with another key are answered 401; None takes any."""
    honours_n: bool = True
    """False gives one choice whatever was asked for, as `transformers serve` does."""
    cycle: bool = False
    """Start the script over at its end; otherwise further requests are answered 400."""
    answering: Callable[[str, int], str] | None = None
    """Instead of the script: from the prompt (as JSON) and how often it came before, to a reply."""
    delay_s: float = 0.0
    """Of every answer that `answering` makes."""
    retry_after: str | None = None
    """Header of every answer that is an error."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every answer, beside those that any has."""
    blank_lines: int = 0
    """Before every answer, 0.1 s apart: what some servers keep a connection alive by."""
    entries: Sequence[dict[str, Any]] | None = None
    """Its list of models; by default the one."""
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        self._steps = [as_step(reply) for reply in self.replies]
        self._next = 0
        self._asked: Counter[str] = Counter()
        self._in_flight = 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), handler_for(self))
        self._http.daemon_threads = True
        # A client that gave up (a time-out) is no reason to wait for its thread.
        self._http.block_on_close = False
        self.port = self._http.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> OpenAIServer:
        # A short poll: shutdown waits for the next one.
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def serve_forever(self) -> None:
        self._http.serve_forever()

    def answer(self, request: Request) -> tuple[int, str]:
        """The HTTP status and body for one request."""
        with self._lock:
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            return self._answer(request)
        finally:
            with self._lock:
                self._in_flight -= 1

    def content_type(self, path: str, status: int) -> str | None:
        return "application/json"

    def _answer(self, request: Request) -> tuple[int, str]:
        if self.key is not None and request.authorization != f"Bearer {self.key}":
            return 401, error_body(f"Incorrect API key provided: {request.authorization}")
        if request.path == "/v1/models":
            return 200, json.dumps(
                {"object": "list", "data": list(self.entries or [{"id": self.model}])}
            )
        if request.path != "/v1/chat/completions":
            return 404, error_body(f"no such path: {request.path}")
        if not self.any_model and request.body.get("model") != self.model:
            return 404, error_body(f"the model {request.body.get('model')!r} does not exist")
        n = request.body.get("n", 1) if self.honours_n else 1
        steps = self._take(n) if self.answering is None else self._made(request.body, n)
        if not steps:
            return 400, error_body(f"the script ends after {len(self._steps)} replies")
        time.sleep(max(step.delay_s for step in steps))
        if not steps[0].plain:
            return steps[0].status, steps[0].body or error_body(steps[0].text)
        return 200, json.dumps(completion(self.model, steps))

    def _made(self, body: dict[str, Any], n: int) -> list[Step]:
        assert self.answering is not None
        prompt = json.dumps(body["messages"])
        with self._lock:
            first = self._asked[prompt]
            self._asked[prompt] += n
        numbers = range(first, first + n)
        return [Step(self.answering(prompt, i), delay_s=self.delay_s) for i in numbers]

    def _take(self, n: int) -> list[Step]:
        """The next step, and up to n - 1 more where all can be choices of one answer."""
        with self._lock:
            taken: list[Step] = []
            while len(taken) < n and self._next < len(self._steps):
                step = self._steps[self._next]
                if taken and not step.plain:
                    break
                taken.append(step)
                self._next += 1
                if self.cycle:
                    self._next %= len(self._steps)
                if not step.plain:
                    break
            return taken


def as_step(reply: str | Step | dict[str, Any]) -> Step:
    if isinstance(reply, Step):
        return reply
    return Step(reply) if isinstance(reply, str) else Step(**reply)


def completion(model: str, steps: Sequence[Step]) -> dict[str, Any]:
    choices = []
    for index, step in enumerate(steps):
        message = {"role": "assistant", "content": step.text}
        if step.reasoning is not None:
            message["reasoning_content"] = step.reasoning
        choices.append({"index": index, "message": message, "finish_reason": step.finish_reason})
    prompt, generated = steps[0].prompt_tokens, sum(step.completion_tokens for step in steps)
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        },
    }


def error_body(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "scripted", "code": None}})


def handler_for(server: OpenAIServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if len(raw) < int(self.headers.get("Content-Length", 0)):
                raise ConnectionAbortedError("the client ended within its request")
            self._reply(json.loads(raw))

        def _reply(self, body: dict[str, Any]) -> None:
            request = Request(self.path, self.headers.get("Authorization"), body)
            status, text = server.answer(request)
            payload = text.encode()
            self.send_response(status)
            if (kind := server.content_type(request.path, status)) is not None:
                self.send_header("Content-Type", kind)
            if status != 200 and server.retry_after is not None:
                self.send_header("Retry-After", server.retry_after)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(server.blank_lines + len(payload)))
            self.end_headers()
            for _ in range(server.blank_lines):
                self.wfile.write(b"\n")
                time.sleep(0.1)
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: tests read `requests`."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # The client gave up waiting.
                self.close_connection = True

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--replies", type=Path, required=True)
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--cycle", action="store_true", help="start over at the script's end")
    options = parser.parse_args()
    replies = json.loads(options.replies.read_text(encoding="utf-8"))
    server = OpenAIServer(replies, options.model, cycle=options.cycle, port=options.port)
    print(f"serving {options.model} at {server.url}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
