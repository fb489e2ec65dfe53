"""A server that speaks vLLM's routes for adapters and completions of tokens; a policy answers.

What it imitates was read in vLLM 0.33.0 (entrypoints/serve/lora, entrypoints/openai/models and
completion): statuses, shapes, and that a success of the adapters' routes is text of no type. Its
tokens are drawn by rl.policy from the very folder it was told to load; it batches nothing.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl.config import SamplingConfig
from rl.policy import Policy, load_policy
from tests.doubles.openai_server import OpenAIServer, Request, Step, error_body

SUCCESS = 200


@dataclass
class VllmServer(OpenAIServer):
    """Of the model in `base`; `requests` of the parent are what it was asked."""

    replies: Sequence[str | Step | dict[str, Any]] = ()
    base: Path = Path()
    updating: bool = True
    """VLLM_ALLOW_RUNTIME_LORA_UPDATING; without it the adapters' routes do not exist."""
    token_ids: bool = True
    """False is a vLLM before 0.10.2, which ignores return_token_ids."""
    max_model_len: int = 128
    refusing: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By route: statuses that come first, in place of answers."""
    losing: set[str] = field(default_factory=set)
    """Routes whose next request is done, and then answered 503."""
    told: list[str] = field(default_factory=list)
    """Adapters' names with `load`, `unload` or `ask` before them, in order, repeats of ask once."""
    said: list[list[int]] = field(default_factory=list)
    """The tokens of all completions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.adapters: dict[str, Path] = {}
        self._policies: dict[str, Policy] = {}
        self._one = threading.Lock()

    def content_type(self, path: str, status: int) -> str | None:
        bare = path.endswith("_lora_adapter") and status == SUCCESS
        return None if bare else "application/json"

    def _answer(self, request: Request) -> tuple[int, str]:
        route = request.path.rpartition("/")[2]
        with self._one:
            if self.refusing[route]:
                return self.refusing[route].pop(0), error_body("not now")
            answer = self._route(route, request.body)
        if route in self.losing:
            self.losing.remove(route)
            return 503, error_body("done, but who knows")
        return answer

    def _route(self, route: str, body: dict[str, Any]) -> tuple[int, str]:
        if route == "models":
            return SUCCESS, json.dumps({"object": "list", "data": self._cards()})
        if route == "completions":
            return self._completion(body)
        if not self.updating:
            return 404, json.dumps({"detail": "Not Found"})
        return (self._load if route == "load_lora_adapter" else self._unload)(
            body["lora_name"], body
        )

    def _cards(self) -> list[dict[str, Any]]:
        base = {"id": "served", "root": str(self.base), "parent": None}
        base |= {"max_model_len": self.max_model_len}
        return [
            base,
            *(
                {"id": name, "root": str(path), "parent": "served", "max_model_len": None}
                for name, path in self.adapters.items()
            ),
        ]

    def _load(self, name: str, body: dict[str, Any]) -> tuple[int, str]:
        if name in self.adapters:
            return 400, error_body(f"The lora adapter '{name}' has already been loaded.")
        self.told.append(f"load {name}")
        self.adapters[name] = Path(body["lora_path"])
        self._policies[name] = load_policy(body["lora_path"])
        return SUCCESS, f"Success: LoRA adapter '{name}' added successfully."

    def _unload(self, name: str, body: dict[str, Any]) -> tuple[int, str]:
        if self.adapters.pop(name, None) is None:
            return 404, error_body(f"The lora adapter '{name}' cannot be found.")
        self.told.append(f"unload {name}")
        return SUCCESS, f"Success: LoRA adapter '{name}' removed successfully."

    def _completion(self, body: dict[str, Any]) -> tuple[int, str]:
        name = body["model"]
        if name == "served" and name not in self._policies:
            self._policies[name] = load_policy(self.base)
        elif name != "served" and name not in self.adapters:
            return 404, error_body(f"The model `{name}` does not exist.")
        if len(body["prompt"]) + body["max_tokens"] > self.max_model_len:
            return 400, error_body("the maximum context length is exceeded")
        if self.told[-1:] != [f"ask {name}"]:
            self.told.append(f"ask {name}")
        policy, greedy = self._policies[name], body["temperature"] == 0
        assert body["ignore_eos"]
        assert body["stop_token_ids"] == [policy.tokenizer.eos_token_id]
        sampling = SamplingConfig(
            1.0 if greedy else body["temperature"],
            body["top_p"],
            body["max_tokens"],
            greedy=greedy,
        )
        [sample] = policy.sample([body["prompt"]], sampling, [body["seed"]])
        assert sample is not None
        self.said.append(sample.ids)
        choice = {"index": 0, "text": sample.text, "prompt_token_ids": body["prompt"]}
        choice["finish_reason"] = "stop" if sample.finished else "length"
        if self.token_ids and body["return_token_ids"]:
            choice["token_ids"] = sample.ids
        return SUCCESS, json.dumps({"object": "text_completion", "choices": [choice]})
