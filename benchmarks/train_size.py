"""What training a model of a preset's size takes: weights drawn at random, rollouts as recorded.

A model that knows nothing writes nothing that could be rewarded. So the shapes are real and the
contents are not: the published configuration with random weights, a byte-level tokenizer of the
recorded texts (whose tokens are not the model's own), and updates on the prompts, replies and
verdicts of a recorded campaign. Measured are sampling, GRPO updates, each after the first from the
checkpoint before it as after a kill, memory, and that a checkpoint gives the same adapters again.

    python -m benchmarks.train_size --preset qwen2.5-coder-1.5b --out FILE
    torchrun --nproc-per-node 3 -m benchmarks.train_size --preset qwen2.5-coder-7b --out FILE

In several processes each has the whole policy on a GPU of its own, or with --spread its part of it,
samples its share of the replies and takes its share of each update; seconds and memory are those of
the first. With --all-weights no adapters are trained but the model.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agent.journals.journal import Journal
from benchmarks.keeping import header, keep_json
from rewards.terms import score
from rl.config import TrainConfig, load_train
from rl.joining import joined
from rl.policy import Policy, load_policy
from rl.ranks import Ranks
from rl.tokens import END, PAD, START, TEMPLATE
from rl.trainers import Group
from sandbox.doctor import resolve_device

SIZES: Mapping[str, Mapping[str, object]] = {
    "qwen2.5-coder-1.5b": {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen2.5-coder-7b": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
"""From the models' config.json at the hub."""
CONTEXT = 32768
VOCABULARY = 16384
"""Of our tokenizer at most; the model may write any of its own rows."""
RECORDED = Path(__file__).parent / "demo"
STEPS = 500
"""Updates that hours are reckoned for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="qwen2.5-coder-1.5b", choices=sorted(SIZES))
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--groups", type=int, default=8, help="of an update")
    parser.add_argument("--new-tokens", type=int, default=512, help="sampled of each reply")
    parser.add_argument("--replies", type=int, help="sampled side by side by each process")
    parser.add_argument("--spread", action="store_true", help="as rl.spread")
    parser.add_argument("--all-weights", action="store_true", help="in the place of adapters")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    asked = Asked(given.updates, given.groups, given.new_tokens)
    config = load_train(given.preset)
    config = replace(config, rl=replace(config.rl, spread=given.spread))
    if given.replies:
        config = replace(config, sampling=replace(config.sampling, batch=given.replies))
    if given.all_weights:
        config = replace(config, lora=None, dtype="float32")
    shape = Qwen2Config(**SIZES[given.preset], max_position_embeddings=CONTEXT, rope_theta=1e6)
    with tempfile.TemporaryDirectory() as folder:
        row = run(config, shape, Path(folder), asked)
    head = {"schema_version": 1, **header("train_size"), "preset": given.preset}
    changed = {"spread": given.spread, "all_weights": given.all_weights}
    record = {**head, "asked": {**asdict(asked), **changed}, **row}
    print(json.dumps(record, indent=1))
    if given.out:
        keep_json(given.out, record)


@dataclass(frozen=True)
class Asked:
    updates: int = 2
    groups: int = 8
    """Of an update."""
    new_tokens: int = 512
    """Sampled of each reply."""


def run(config: TrainConfig, shape: Qwen2Config, folder: Path, asked: Asked) -> dict[str, Any]:
    """One policy of this shape, made, sampled, updated, saved and loaded again. Of several ranks
    only the first returns.
    """
    device = resolve_device(config.device)
    with joined(config, device) as ranks:
        return measured(ranks, config, shape, folder, asked, device)


def measured(
    ranks: Ranks,
    config: TrainConfig,
    shape: Qwen2Config,
    folder: Path,
    asked: Asked,
    device: str,
) -> dict[str, Any]:
    """By rank 0, which tells the others what to do."""
    clock = Clock(device)
    with clock("make"):
        make(shape, list(texts()), folder / "start", config, device)
    with clock("load"):
        ranks.open(folder / "start", None, folder / "trainer")
    policy = ranks.replica.policy
    rollouts = list(islice(repeated(recorded(policy, config)), asked.updates * asked.groups))
    sampling = replace(config.sampling, max_new_tokens=asked.new_tokens)
    prompts = list(islice(cycle(g.prompts[0] for g in rollouts), config.sampling.batch))
    prompts, seeds = prompts * ranks.size, range(len(prompts) * ranks.size)
    ranks.sample(prompts, replace(sampling, max_new_tokens=2), seeds)
    with clock("sample"):
        replies = ranks.sample(prompts, sampling, seeds)
    drawn = sum(len(reply.ids) for reply in replies if reply is not None)
    losses, resumed, first = [], True, trained(policy)
    for number in range(asked.updates):
        if number:
            checkpoint, held = folder / str(number), trained(policy)
            with clock("checkpoint"):
                ranks.save(checkpoint)
            del policy
            with clock("resume"):
                ranks.open(folder / "start", checkpoint, folder / "trainer")
            policy = ranks.replica.policy
            resumed = resumed and equal(held, trained(policy))
        mine = rollouts[number * asked.groups : (number + 1) * asked.groups]
        with clock(f"update {number + 1}"):
            figures = ranks.update(mine)
        losses.append(figures["loss"])
    with clock("save"):
        ranks.save(folder / "end")
    parameters, learned = policy.parameters, trained(policy)
    changing = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    del policy
    ranks.replica.close()
    with clock("load again"):
        again = load_policy(folder / "end", config.name, device, config.dtype)
    tokens, seconds = sum(map(tokens_of, mine)), clock.seconds
    return {
        "environment": {"torch": torch.__version__, "device": name_of(device)},
        "ranks": ranks.size,
        "parameters": parameters,
        "trained_parameters": changing,
        "dtype": config.dtype,
        "update": {
            "rollouts": sum(len(g.replies) for g in mine),
            "tokens": tokens,
            "replies_together": config.rl.batch or config.rl.group,
            "steps": config.rl.iterations,
        },
        "sampled": {"replies": len(prompts), "tokens": drawn},
        "sampled_tokens_per_s": round(drawn / seconds["sample"], 1),
        "trained_tokens_per_s": round(tokens / seconds[f"update {asked.updates}"], 1),
        "seconds": {key: round(value, 2) for key, value in seconds.items()},
        "peak_gib": {key: round(value / 2**30, 2) for key, value in clock.peak_bytes.items()},
        "losses": losses,
        "moved": not equal(learned, first),
        "same_after_loading": equal(learned, parts(again, learned)),
        "same_after_resuming": resumed,
        f"hours_of_{STEPS}_updates": hours(seconds, rollouts, config, asked, len(prompts)),
    }


def hours(
    seconds: Mapping[str, float],
    rollouts: Sequence[Group],
    config: TrainConfig,
    asked: Asked,
    replies: int,
) -> dict[str, float]:
    """Of so many updates like the last, without judging: a batch of so many replies lasts as long
    as its longest, which is taken to be the longest that was recorded.
    """
    update_s = seconds[f"update {asked.updates}"]
    token_s = seconds["sample"] / asked.new_tokens
    longest = max(len(reply) for group in rollouts for reply in group.replies)
    batches = math.ceil(asked.groups * config.rl.group / replies)
    sample_s = batches * min(longest, config.sampling.max_new_tokens) * token_s
    return {
        "sampling": round(STEPS * sample_s / 3600, 2),
        "updates": round(STEPS * update_s / 3600, 2),
    }


def trained(policy: Policy) -> dict[str, torch.Tensor]:
    """What updates change, by name; of what is spread this rank's part."""
    found = ((name, p.detach()) for name, p in policy.model.named_parameters() if p.requires_grad)
    held = ((name, p.to_local() if isinstance(p, DTensor) else p) for name, p in found)
    return {name: p.cpu().clone() for name, p in held}


def parts(policy: Policy, held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of a policy that is whole, those parameters, as far as rank 0 holds them."""
    found = dict(policy.model.named_parameters())
    return {name: found[name].detach()[: len(part)].cpu() for name, part in held.items()}


def equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def repeated(groups: Iterable[Group]) -> Iterator[Group]:
    """Again and again, each time under another key."""
    known = list(groups)
    for number in count():
        yield from (replace(group, key=f"{group.key} {number}") for group in known)


class Clock:
    """Seconds and, on a GPU, the most memory that was allocated, by name of a block."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.seconds: dict[str, float] = {}
        self.peak_bytes: dict[str, int] = {}

    def __call__(self, name: str) -> Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self.cuda:
            torch.cuda.synchronize()
            self.peak_bytes[self._name] = torch.cuda.max_memory_allocated()
        self.seconds[self._name] = time.monotonic() - self._began_s


def make(
    shape: Qwen2Config, known: Sequence[str], folder: Path, config: TrainConfig, device: str
) -> None:
    """A checkpoint with random weights."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(VOCABULARY, shape.vocab_size),
        special_tokens=[PAD, END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(known, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token=PAD, eos_token=END)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(config.seed)
    shape.dtype = getattr(torch, config.dtype)
    with torch.device(device):
        model = Qwen2ForCausalLM._from_config(shape)
    Policy(config.name, model, tokenizer).save(folder)


def texts() -> Iterator[str]:
    """Recorded prompts and replies."""
    with Journal(RECORDED, read_only=True) as journal:
        for task in journal.tasks():
            for attempt in journal.attempts(task.id):
                if attempt.proposal.prompt and attempt.proposal.reply:
                    yield from (m["content"] for m in json.loads(attempt.proposal.prompt))
                    yield attempt.proposal.reply


def recorded(policy: Policy, config: TrainConfig) -> Iterator[Group]:
    """Of each task the recorded replies, as many as a group has, and what they are worth."""
    with Journal(RECORDED, read_only=True) as journal:
        for task in journal.tasks():
            found = [
                (
                    json.loads(a.proposal.prompt),
                    a.proposal.reply,
                    score(a.evaluation, config.reward),
                )
                for a in journal.attempts(task.id)
                if a.proposal.prompt and a.proposal.reply
            ][: config.rl.group]
            worth = [reward.value for _, _, reward in found]
            if len(set(worth)) > 1:
                prompts = policy.prompts_ids(messages for messages, _, _ in found)
                replies = policy.replies_ids(reply for _, reply, _ in found)
                yield Group(task.id, prompts, replies, worth)


def tokens_of(group: Group) -> int:
    return sum(map(len, group.prompts)) + sum(map(len, group.replies))


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
