"""A policy that a vLLM server samples: a process of its own, in an environment of its own.

The server holds the base model; what travels is each version's LoRA adapter, as a folder that both
read, and it is loaded before that version is asked. It starts no server, and does not correct for
where the server's arithmetic differs from the trainer's (docs/training.md, "Sampling by vLLM").

Routes: vLLM 0.33.0, entrypoints/serve/lora/api_router.py and entrypoints/openai/models/serving.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.model import ModelError
from agent.models.endpoint import OpenAIModel
from rl.completions import reply_ids, request, sample_of
from rl.config import SamplingConfig
from rl.policy import ADAPTER, Policy, Sample, base_of
from sandbox.errors import ConfigError
from sandbox.types import digest

log = logging.getLogger(__name__)

KEY = "VLLM_API_KEY"
"""The variable that `vllm serve` takes its key from; without one it asks for none."""
WEIGHTS = "adapter_model.safetensors"


class ServedPolicy:
    """A Sampler (rl/local.py) whose weights are those in a folder, whichever that is by then."""

    context: int
    """Tokens of prompt and reply together: the policy's, or the server's where that has fewer."""

    def __init__(
        self, policy: Policy, sampling: SamplingConfig, run: Path, folder: Callable[[], Path]
    ) -> None:
        """`folder`: the checkpoint of the policy's present weights, complete. `run` tells those of
        one run from others that the server has. Raises ConfigError where the server lacks the base
        model, ModelError where it cannot be asked or does not take the adapter.
        """
        self.policy, self._folder = policy, folder
        self._endpoint = OpenAIModel(
            policy.name,
            sampling.base_url,
            api_key=os.environ.get(KEY) or "none",
            api_key_env=KEY,
            concurrency=sampling.batch,
        )
        self._own = f"{policy.name}-{digest(str(run.resolve()))[:8]}@"
        self._ready()

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Sample | None]:
        """One reply to each prompt, of the present weights; None where the prompt leaves no room
        for one, or its request failed. Raises ModelError where all requests did.
        """
        model = self._ready()
        tokenizer, context = self.policy.tokenizer, self.context
        end = tokenizer.eos_token_id
        fitting = [i for i, prompt in enumerate(prompts) if len(prompt) + 1 < context]
        bodies = [
            request(model, prompts[i], sampling, seeds[i], context - len(prompts[i]), end)
            for i in fitting
        ]
        samples: list[Sample | None] = [None] * len(prompts)
        failed = []
        answers = self._endpoint.ask_route("/completions", bodies)
        for i, answer in zip(fitting, answers, strict=True):
            if isinstance(answer, ModelError):
                failed.append(answer)
                continue
            try:
                ids = reply_ids(answer.body, end)
            except ModelError as error:
                raise ModelError(f"{self._who}: {error}") from error
            samples[i] = sample_of(ids, prompts[i], tokenizer, answer.seconds)
        if failed and not any(samples):
            raise failed[0]
        for missing in failed:
            log.warning("one reply is missing: %s", missing)
        return samples

    def _ready(self) -> str:
        """The name by which the server knows the present weights, which it has loaded; of this
        run's others it keeps none. Asked anew each time, since it may have been started again.
        """
        folder = self._folder()
        cards, base = self._cards(), base_of(folder)
        known = (base, str(Path(base).resolve()))
        card = next((c for c in cards if {c.get("id"), c.get("root")}.intersection(known)), None)
        if card is None:
            raise ConfigError(
                f"{self._who}: it serves {', '.join(str(c.get('id')) for c in cards) or 'nothing'};"
                f" expected the policy's base model: vllm serve {base} --enable-lora"
            )
        self.context = min(self.policy.context, card.get("max_model_len") or self.policy.context)
        if not (folder / ADAPTER).is_file():
            return str(card["id"])
        name = self._name(folder)
        served = [str(card.get("id")) for card in cards]
        if name not in served:
            self._load(name, folder)
        for old in served:
            if old.startswith(self._own) and old != name:
                self._tell("unload", {"lora_name": old})
        return name

    def _name(self, folder: Path) -> str:
        """By its content too: under a name and path that it has had, a server answers with the
        keys and values it cached for the weights before (vllm-project/vllm#42125).
        """
        with (folder / WEIGHTS).open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        return f"{self._own}{self.policy.version}-{content[:12]}"

    def _load(self, name: str, folder: Path) -> None:
        refused = self._tell("load", {"lora_name": name, "lora_path": str(folder.resolve())})
        # A try whose answer was lost may have loaded it, and the next one is refused for that.
        if refused is not None and all(card.get("id") != name for card in self._cards()):
            rank = json.loads((folder / ADAPTER).read_text())["r"]
            raise ModelError(
                f"{refused}; an adapter in {folder} needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, "
                f"--enable-lora, --max-lora-rank of at least {rank}, and a server that reads it"
            ) from refused

    def _tell(self, what: str, body: Mapping[str, object]) -> ModelError | None:
        """Why it was refused; nothing where it was done."""
        [answer] = self._endpoint.ask_route(f"/{what}_lora_adapter", [body])
        return answer if isinstance(answer, ModelError) else None

    def _cards(self) -> list[dict[str, Any]]:
        """What the server says of its base model and of each adapter."""
        [answer] = self._endpoint.ask_route("/models", [None])
        if isinstance(answer, ModelError):
            raise answer
        try:
            return [dict(card) for card in answer.body["data"]]
        except (LookupError, TypeError, ValueError) as error:
            raise ModelError(f"{self._who}: its list of models cannot be read") from error

    @property
    def _who(self) -> str:
        return f"sampling.base_url {self._endpoint.base_url}"
