"""A policy: a transformers checkpoint with its tokenizer, sampled in batches, saved and loaded.

`new_policy` makes a small one from nothing, with a tokenizer of its own (rl/tokens.py). It does not
know what a kernel is, and `rl.trainers` alone knows how weights are changed.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)
from transformers.distributed.configuration_utils import DistributedConfig

from agent.prompts.message import Message
from kernelbench.hub import reachable
from kernelbench.submissions import TRANSDUCTIVE
from rl.config import SamplingConfig, ShapeConfig
from rl.decoding import decode, wanted
from rl.draw import Draw
from rl.spread import is_spread
from rl.telling import hush
from rl.tokens import START, new_tokenizer
from sandbox.errors import ConfigError

hush()

FILE = "policy.json"
"""Beside a checkpoint: whose it is and how often it was updated."""
ADAPTER = "adapter_config.json"
CONFIG = "config.json"
"""Beside one that is adapters alone (PEFT): what base model they change."""


@dataclass(frozen=True)
class Sample:
    ids: list[int]
    """With the end token, where it was reached."""
    text: str
    finished: bool
    prompt_tokens: int
    seconds: float
    log_probabilities: list[float] = field(default_factory=list)
    """Of each token, at the temperature it was sampled at; none where a server does not tell."""


@dataclass
class Policy:
    """Weights and tokenizer; the weights change in place."""

    name: str
    model: Any
    """None where another process holds the weights (rl/served.py)."""
    tokenizer: Any
    version: int = 0
    """Updates by rollouts since it was last begun from a checkpoint of another stage."""
    transductive: bool = False
    """Some stage trained it on evaluated tasks; told wherever it is named, and by what comes of it.
    """
    taught: set[str] = field(default_factory=set)
    """Compositions, families and sizes (rl/data.py) of all tasks that some stage trained it on."""

    @property
    def context(self) -> int:
        config = getattr(self.model, "config", None)
        return int(getattr(config, "max_position_embeddings", 1 << 30))

    @property
    def label(self) -> str:
        """As journals, tables and manifests name it, beside its version."""
        return f"{self.name}{TRANSDUCTIVE}" if self.transductive else self.name

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        return self.prompts_ids([messages])[0]

    def reply_ids(self, reply: str) -> list[int]:
        """With the end token: what the policy would have to write."""
        return self.replies_ids([reply])[0]

    def prompts_ids(self, asked: Iterable[Sequence[Message]]) -> list[list[int]]:
        return self._ids(
            self.tokenizer.apply_chat_template(
                [dict(m) for m in messages], tokenize=False, add_generation_prompt=True
            )
            for messages in asked
        )

    def replies_ids(self, replies: Iterable[str]) -> list[list[int]]:
        return [[*ids, self.tokenizer.eos_token_id] for ids in self._ids(replies)]

    def _ids(self, texts: Iterable[str]) -> list[list[int]]:
        """All at once: the tokenizer works on every core."""
        return list(self.tokenizer(list(texts), add_special_tokens=False)["input_ids"])

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Sample | None]:
        """One reply to each prompt, drawn by a seed of its own, whatever it is sampled beside; None
        where the prompt leaves no room for one.
        """
        room = [i for i, p in enumerate(prompts) if len(p) + 1 < self.context]
        samples: list[Sample | None] = [None] * len(prompts)
        self.model.eval()

        def limit(i: int) -> int:
            return min(sampling.max_new_tokens, self.context - len(prompts[i]))

        with torch.no_grad():
            # Of like length together, so that little is padding; who may write less, apart.
            order = sorted(room, key=lambda i: (limit(i), len(prompts[i])))
            for most, group in itertools.groupby(order, limit):
                alike = list(group)
                for first in range(0, len(alike), sampling.batch):
                    chosen = alike[first : first + sampling.batch]
                    own = [seeds[i] for i in chosen]
                    found = self._batch([prompts[i] for i in chosen], sampling, own, most)
                    for i, sample in zip(chosen, found, strict=True):
                        samples[i] = sample
        self.rest()
        return samples

    def rest(self) -> None:
        """Leave the GPU what is not used now: caches of keys grow by pieces that none fits later,
        and what is judged meanwhile is judged in other processes.
        """
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        seeds: Sequence[int],
        most: int,
    ) -> list[Sample]:
        began_s = time.monotonic()
        width = max(map(len, prompts))
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        # (batch, width) int64, padded on the left
        device, draw = self.model.device, Draw(sampling, seeds, self.model.device)
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts]).to(device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]).to(device)
        if wanted(self.model) and not is_spread(self.model):  # Those are elsewhere each time.
            out = decode(
                self.model, ids, mask, most, lambda logits: draw(ids, logits).argmax(-1), end
            )
        else:
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=most,
                # What a checkpoint's own defaults add is no part of the policy that is trained.
                do_sample=False,
                temperature=1.0,
                top_p=1.0,
                top_k=50,
                repetition_penalty=1.0,
                logits_processor=LogitsProcessorList([draw]),
                pad_token_id=pad,
                eos_token_id=end,
                synced_gpus=False,  # Ranks have replies of their own.
            )[:, width:]
        seconds = (time.monotonic() - began_s) / len(prompts)
        found = []
        rows = zip(out.tolist(), draw.log_probabilities.tolist(), prompts, strict=True)
        for row, likely, prompt in rows:
            finished = end in row
            kept = row[: row.index(end) + 1] if finished else row
            text = self.tokenizer.decode(kept, skip_special_tokens=True)
            found.append(Sample(kept, text, finished, len(prompt), seconds, likely[: len(kept)]))
        return found

    def log_probabilities(
        self, prompt: Sequence[int], reply: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        """Of each token of the reply, given the prompt and the tokens before it."""
        self.model.eval()
        ids = torch.tensor([[*prompt, *reply]], device=self.model.device)  # (1, tokens) int64
        with torch.no_grad():
            logits = self.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        logits = logits / temperature
        chosen = torch.tensor(list(reply), device=self.model.device)
        found = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        return [float(x) for x in found]

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """A checkpoint that any program can load; complete once policy.json is there. `weights`:
        where the model's own are spread over processes.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).unlink(missing_ok=True)
        self.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        record = {
            "schema_version": 1,
            "name": self.name,
            "version": self.version,
            "transductive": self.transductive,
            "taught": sorted(self.taught),
        }
        (folder / FILE).write_text(json.dumps(record) + "\n")


def load_policy(
    source: str | Path,
    name: str = "",
    device: str = "cpu",
    dtype: str = "",
    *,
    weights: bool = True,
    ranks: int = 1,
) -> Policy:
    """From a folder or a hub's name, or all of it but the weights; raises ConfigError where there
    is no model. `ranks`: over which the weights are spread (rl/spread.py), as each of them calls.
    """
    known = Path(source) / FILE
    here = Path(source).is_dir() or not reachable()
    if Path(source).is_dir() and not any((Path(source) / f).is_file() for f in (CONFIG, ADAPTER)):
        raise ConfigError(
            f"{source}: no transformers checkpoint (no {CONFIG} in it); "
            "`warpsmith train sft` makes one"
        )
    lacking = f"readable {FILE}"
    try:
        record = json.loads(known.read_text()) if known.is_file() else {}
        lacking = "tokenizer"
        tokenizer = _tokenizer(source, here=here)
        lacking = "transformers checkpoint"
        kind = getattr(torch, dtype) if dtype else "auto"
        model = _weights(source, kind, ranks, here=here) if weights else None
    except ConfigError:
        raise
    except Exception as error:  # Its files are anybody's: what reads them raises anything.
        if here and not Path(source).is_dir():
            raise ConfigError(
                f"{source}: no such folder, and no model in the Hub's cache; the Hub cannot be "
                "reached"
            ) from error
        told = str(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        first = told.strip().partition("\n")[0]
        raise ConfigError(f"{source}: no {lacking} ({first[:160]})") from error
    _refuse_other_record(known, record)
    taught = set(record.get("taught", ()))
    if model is not None and ranks == 1:  # else it is where its parts are
        model = model.to(device)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    _refuse_speechless(source, tokenizer)
    name = name or record.get("name") or Path(source).name
    version, transductive = int(record.get("version", 0)), record.get("transductive", False)
    return Policy(name, model, tokenizer, version, transductive, taught)


def taught_to(folder: Path) -> set[str]:
    """What `Policy.taught` of this checkpoint is; nothing where it does not tell."""
    known = folder / FILE
    try:
        record = json.loads(known.read_text())
    except (OSError, ValueError):
        return set()  # Whoever loads it says what is wrong.
    _refuse_other_record(known, record)
    return set(record.get("taught", ()))


def _refuse_other_record(file: Path, record: Any) -> None:
    """Raises ConfigError where it is not what `save` writes beside weights, or wrote once."""
    kinds = {"name": str, "version": int, "transductive": bool, "taught": list}
    if (
        isinstance(record, dict)
        and all(isinstance(record[key], kind) for key, kind in kinds.items() if key in record)
        and all(isinstance(each, str) for each in record.get("taught", ()))
    ):
        return
    raise ConfigError(
        f"{file}: is {json.dumps(record)[:60]}; expected a name, a version and whether it is "
        "transductive, as `warpsmith train` writes them: put the file back, or train it anew"
    )


def _refuse_speechless(source: str | Path, tokenizer: Any) -> None:
    """Raises ConfigError where prompts could not be put to the model."""
    roles = ("system", "user")
    try:
        tokenizer.apply_chat_template([{"role": r, "content": r} for r in roles], tokenize=False)
    except (ValueError, TemplateError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(
            f"{source}: its tokenizer has no chat template that takes a system and a user message "
            f"({first[:160]}); expected an instruction-tuned model's"
        ) from error


def base_of(source: str | Path) -> str:
    """The model that a checkpoint's adapters change; of any other checkpoint, itself."""
    adapters = Path(source) / ADAPTER
    if not adapters.is_file():
        return str(source)
    try:
        return str(json.loads(adapters.read_text())["base_model_name_or_path"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{adapters}: names no base_model_name_or_path; expected what PEFT saves"
        ) from error


def _weights(source: str | Path, dtype: Any, ranks: int, *, here: bool) -> Any:
    spread = {"distributed_config": DistributedConfig(fsdp_size=ranks)} if ranks > 1 else {}
    if Path(source).is_dir():  # Adapters keep it as their base's, wherever they are loaded.
        source = Path(source).resolve()
    if (Path(source) / ADAPTER).is_file():
        from peft import AutoPeftModelForCausalLM

        base = Path(base_of(source))
        if base.is_absolute() and not base.is_dir():
            raise ConfigError(
                f"{source}: its adapters change {base}, and there is no such folder; put it back, "
                f"or name another base in {ADAPTER}"
            )
        return AutoPeftModelForCausalLM.from_pretrained(
            source, dtype=dtype, is_trainable=True, **spread
        )
    model, report = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        local_files_only=here,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # Told below, in one line.
        **spread,
    )
    # What a checkpoint lacks, transformers draws by chance, with a warning.
    if report["mismatched_keys"]:
        name, found, expected = min(report["mismatched_keys"])
        raise ConfigError(
            f"{source}: its weights of {name} are {tuple(found)}; expected {tuple(expected)}, as "
            f"its {CONFIG} has it"
        )
    if report["missing_keys"]:
        raise ConfigError(
            f"{source}: has no weights for {min(report['missing_keys'])}, which its {CONFIG} "
            "tells of; expected a whole causal language model"
        )
    return model


def _tokenizer(source: str | Path, *, here: bool) -> Any:
    # AutoTokenizer would take the class of the architecture, with another pre-tokenizer than ours.
    if (Path(source) / FILE).is_file() and _is_ours(Path(source)):
        return PreTrainedTokenizerFast.from_pretrained(source)
    return AutoTokenizer.from_pretrained(source, local_files_only=here)


def _is_ours(folder: Path) -> bool:
    file = folder / "tokenizer.json"
    return file.is_file() and START in file.read_text(encoding="utf-8")


def new_policy(
    texts: Iterable[str], shape: ShapeConfig, name: str, seed: int = 0, asked: Iterable[str] = ()
) -> Policy:
    """A Llama of this shape with random weights, and a tokenizer of these texts and of what is
    asked, whose figures will differ.
    """
    tokenizer = new_tokenizer(texts, shape.vocabulary, asked)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.convert_tokens_to_ids(START),
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,  # Tied and untrained, it repeats its last token.
        initializer_range=1 / math.sqrt(2 * shape.hidden),
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return Policy(name, model, tokenizer)
