"""What training a model of a preset's size takes: weights drawn at random, rollouts as recorded.

A model that knows nothing writes nothing that could be rewarded. So the shapes are real and the
contents are not: the published configuration with random weights, a byte-level tokenizer of the
recorded texts, and updates on the prompts, replies and verdicts of a recorded campaign. Measured
are sampling, contrastive GRPO steps, memory, and that a checkpoint gives the same policy again.

    python -m benchmarks.train_size --preset qwen2.5-coder-1.5b --out FILE
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agent.journal import Journal
from benchmarks.keeping import header, keep_json
from rewards.terms import score
from rl.config import TrainConfig, load_train
from rl.grpo import with_adapters
from rl.policy import Policy, load_policy
from rl.tokens import END, PAD, START, TEMPLATE
from rl.trainers import Group, optimizer_of, update
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
"""Of our tokenizer; the model's other rows are never written."""
RECORDED = Path(__file__).parent / "demo"
STEPS = 500
"""That hours are reckoned for: CUDA-L1 names no number."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", default="qwen2.5-coder-1.5b", choices=sorted(SIZES))
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--groups", type=int, default=4, help="of an update")
    parser.add_argument("--new-tokens", type=int, default=512, help="sampled of each reply")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    config = load_train(given.preset)
    with tempfile.TemporaryDirectory() as folder:
        row = run(
            config,
            Qwen2Config(**SIZES[given.preset], max_position_embeddings=CONTEXT, rope_theta=1e6),
            Path(folder),
            updates=given.updates,
            groups=given.groups,
            new_tokens=given.new_tokens,
        )
    record = {**header("train_size"), "preset": given.preset, **row}
    print(json.dumps(record, indent=1))
    if given.out:
        keep_json(given.out, record)


def run(
    config: TrainConfig,
    shape: Qwen2Config,
    folder: Path,
    *,
    updates: int,
    groups: int,
    new_tokens: int,
) -> dict[str, Any]:
    """One policy of this shape, made, sampled, updated, saved and loaded again."""
    device = resolve_device(config.device)
    clock = Clock(device)
    with clock("make"):
        make(shape, list(texts()), folder / "start", config)
    with clock("load"):
        policy = load_policy(folder / "start", config.name, device, config.dtype)
        policy = with_adapters(policy, config)
        optimizer = optimizer_of(policy, config, folder / "trainer")
    rollouts = list(recorded(policy, config))[: updates * groups]
    sampling = replace(config.sampling, max_new_tokens=new_tokens)
    prompts = [group.prompts[0] for group in rollouts]
    asked = [prompts[i % len(prompts)] for i in range(config.sampling.batch)]
    with clock("sample"):
        replies = policy.sample(asked, sampling, range(len(asked)))
    drawn = sum(len(reply.ids) for reply in replies if reply is not None)
    trained, losses = [], []
    for number in range(updates):
        mine = rollouts[number * groups : (number + 1) * groups]
        with clock(f"update {number + 1}"):
            figures = update(policy, mine, optimizer, config, folder / "trainer")
        losses.append(figures["loss"])
        trained.append(sum(map(tokens_of, mine)))
    with clock("save"):
        policy.save(folder / "end")
    example = rollouts[0]
    before = policy.log_probabilities(example.prompts[0], example.replies[0])
    parameters = policy.parameters
    learned = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    del policy, optimizer
    with clock("load again"):
        again = load_policy(folder / "end", config.name, device, config.dtype)
    after = again.log_probabilities(example.prompts[0], example.replies[0])
    seconds = clock.seconds
    a_reply = sum(map(tokens_of, rollouts)) / sum(len(g.replies) for g in rollouts)
    step_s = seconds[f"update {updates}"]
    sampled_s = seconds["sample"] / len(asked) * config.rl.group * groups
    sampled_s *= mean_reply(rollouts) / max(1, drawn / len(asked))
    return {
        "environment": {"torch": torch.__version__, "device": name_of(device)},
        "parameters": parameters,
        "trained_parameters": learned,
        "dtype": config.dtype,
        "rollouts_of_an_update": [sum(len(g.replies) for g in rollouts[:groups])],
        "tokens_of_a_rollout": round(a_reply),
        "sampled": {"replies": len(asked), "tokens": drawn},
        "sampled_tokens_per_s": round(drawn / seconds["sample"], 1),
        "trained_tokens_per_s": round(trained[-1] / step_s, 1),
        "seconds": {key: round(value, 2) for key, value in seconds.items()},
        "peak_gib": {key: round(value / 2**30, 2) for key, value in clock.peak_bytes.items()},
        "losses": losses,
        "same_after_loading": math.isclose(sum(before), sum(after), rel_tol=1e-3),
        f"hours_of_{STEPS}_steps": {
            "updates": round(STEPS * step_s / 3600, 2),
            "sampling, as recorded replies are long": round(STEPS * sampled_s / 3600, 2),
            "judging": "not measured here",
        },
    }


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


def make(shape: Qwen2Config, known: Sequence[str], folder: Path, config: TrainConfig) -> None:
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
    model = Qwen2ForCausalLM(shape).to(getattr(torch, config.dtype))
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


def mean_reply(groups: Sequence[Group]) -> float:
    """Tokens of a reply."""
    lengths = [len(reply) for group in groups for reply in group.replies]
    return sum(lengths) / len(lengths)


def name_of(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else device


if __name__ == "__main__":
    main()
