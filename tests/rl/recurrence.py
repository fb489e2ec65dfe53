"""A task, kernels for it, and a policy that knows them: a campaign that learns to win on it.

Asked for the task alone, the policy writes a slow right kernel or a wrong one, either in half of
the cases; a fast one only where another is shown, which is so from the first update on. Its
tokenizer has each of these files as a token or two, so that it has only to know which to write.
"""

import random
from dataclasses import replace
from pathlib import Path

import torch

from agent.config import load_optimize
from agent.prompts.message import Message
from agent.prompts.render import Scene, fenced, render_contrast, render_propose
from agent.proposing.scripted import scripted_evaluation
from agent.types import Attempt, Measured, Proposal
from kernelbench.suite import load_tasks
from rewards import speedup
from rl.config import load_train
from rl.policy import Policy, new_policy
from sandbox.doctor import describe
from sandbox.figures import Interval
from sandbox.types import Candidate, Language, Status

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):  # (ROWS, STEPS) float32
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = state * 0.75 + x[:, step]
            states.append(state)
        return torch.stack(states, 1)

def get_inputs():
    return [torch.randn(128, 256)]

def get_init_inputs():
    return []
"""
"""Some 800 small operations in eager, one loop in C++: a factor that hides most noise."""

FAST = r'''import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cstdint>

extern "C" void decayed(const float* x, float* out, int64_t rows, int64_t steps) {
  for (int64_t row = 0; row < rows; ++row, x += steps, out += steps) {
    float state = 0.0f;
    for (int64_t i = 0; i < steps; ++i) {
      state = state * 0.75f + x[i];
      out[i] = state;
    }
  }
}
"""

LIBRARY = ctypes.CDLL(
    load_inline(
        name="decayed",
        cpp_sources=[SRC],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O2"],
    )
)
LIBRARY.decayed.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
LIBRARY.decayed.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        LIBRARY.decayed(x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
        return out
'''
FASTER = [FAST.replace("-O2", level) for level in ("-O1", "-O2", "-O3")]
"""Equally fast. The policy answers the slow one with the first, and any of these with the others:
where a machine's noise has just changed a confirmation may not agree with the search, and only a
kernel after it is promoted.
"""
SLOW = FAST.replace(
    """    float state = 0.0f;
    for (int64_t i = 0; i < steps; ++i) {
      state = state * 0.75f + x[i];
""",
    """    for (int64_t i = 0; i < steps; ++i) {
      float state = 0.0f;
      for (int64_t j = 0; j <= i; ++j) state = state * 0.75f + x[j];
""",
)
"""Right, and a third as fast as eager: it begins every sum anew."""
WRONG = FAST.replace("state * 0.75f", "state")

UNSEEN = -100
"""Label of a token that is no part of the loss (torch.nn.functional.cross_entropy)."""

# Three pairs where they are clear, up to eight where the scheduler wakes some candidates late: in a
# search as well, whose interval would else hold 1 for good.
CAMPAIGN = """
device: cpu
engine: local
proposals_per_round: 16
max_candidates_per_task: 20
evaluation:
  preset: quick
  baselines: []
  changes: []
  scales: [3.0]
  rounds: 6
  single_share: 0.4
  batch_ms: 5
  search_batch_ms: 5
  search_pairs: 8
  max_pairs: 8
"""
TRAIN = """
model: new
name: toy
shape: {vocabulary: 800, hidden: 64, layers: 2, heads: 4, feed_forward: 128, context: 1024}
device: cpu
tasks: [recurrence.py]
held_out: {families: 0.0, tasks: 0.0}
campaign: learn.yaml
exemplars: 1
sampling: {temperature: 1.0, top_p: 0.9, max_new_tokens: 120, batch: 16}
rl: {group: 8, learning_rate: 1.0e-4}
reward: {kind: milestones}
"""
SCENES = 8
"""Of each kind of prompt: they differ in what was measured, so that no figure means anything."""
STEPS = 40
"""A scene each. By then a prompt's only reply has 96 %, and of two each has nearly half."""
LEARNING_RATE = 1e-2
Known = list[tuple[list[Message], str]]
"""Prompts, and what the policy answers."""


def write(folder: Path) -> None:
    """The task, the configs, and a policy that knows what it is to know."""
    (folder / "recurrence.py").write_text(PROBLEM)
    (folder / "learn.yaml").write_text(CAMPAIGN)
    (folder / "toy.yaml").write_text(TRAIN)
    scenes = _scenes(folder, random.Random(1))
    replies = [reply(source) for known in scenes for _, source in known]
    messages = [m for known in scenes for prompt, _ in known for m in prompt]
    fixed = [m["content"] for m in messages if m["role"] == "system"]
    asked = [m["content"] for m in messages if m["role"] != "system"]
    config = load_train(str(folder / "toy.yaml"))
    policy = new_policy([*replies, *fixed], config.shape, config.name, config.seed, asked)
    _fit(policy, scenes)
    policy.save(folder / "policy")


def reply(source: str) -> str:
    return f"{fenced(source, 'python')}\n"


def _scenes(folder: Path, dice: random.Random) -> list[Known]:
    [task] = load_tasks(str(folder / "recurrence.py"), "cpu")
    evaluation = load_optimize(str(folder / "learn.yaml")).evaluation
    scenes = []
    for _ in range(SCENES):
        measured = Measured(
            copy_bytes_s=dice.uniform(1e9, 1e11),
            matmul_flops={"float32": dice.uniform(1e10, 1e12)},
            cache_bytes=32 << 20,
        )
        scene = Scene(task, Language.CPP, describe("cpu"), measured, evaluation)
        slow = _shown(scene, SLOW, dice.uniform(0.05, 0.95), dice)
        fast = _shown(scene, dice.choice(FASTER), dice.uniform(5.0, 500.0), dice)
        scenes.append(
            [
                (render_propose(scene), SLOW),
                (render_propose(scene), WRONG),
                (render_contrast(scene, [slow]), FASTER[0]),
                (render_contrast(scene, [fast]), FASTER[1]),
                (render_contrast(scene, [fast]), FASTER[2]),
            ]
        )
    return scenes


def _shown(scene: Scene, source: str, factor: float, dice: random.Random) -> Attempt:
    """An exemplar whose figures are made up: the campaign's are measured."""
    assert scene.policy is not None
    candidate = Candidate(scene.task.id, Language.CPP, source)
    judged = scripted_evaluation(candidate, scene.policy, Status.PASSED, factor)
    assert judged.timing is not None
    eager_ms, width = dice.uniform(1.0, 99.0), dice.uniform(1.1, 9.0)
    timing = replace(
        judged.timing,
        reference_ms=eager_ms,
        candidate_ms=eager_ms / factor,
        speedup=Interval(factor, factor / width, factor * width),
    )
    judged = replace(judged, timing=timing)
    return Attempt(Proposal(candidate, "toy"), judged, speedup.reward(judged))


def _fit(policy: Policy, scenes: list[Known]) -> None:
    """By heart, without TRL, whose import costs seconds: what it does is shown in the campaign."""
    batches = [_batch(policy, known) for known in scenes]
    optimizer = torch.optim.AdamW(policy.model.parameters(), weight_decay=0.0)
    policy.model.train()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / STEPS)
        policy.model(**batches[step % SCENES]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _batch(policy: Policy, known: Known) -> dict[str, torch.Tensor]:
    """What the model is called with, (prompts, tokens) int64 each; the loss is of replies alone."""
    pairs = [
        (policy.prompt_ids(prompt), policy.reply_ids(reply(source))) for prompt, source in known
    ]
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    batch: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for prompt, answer in pairs:
        left = width - len(prompt) - len(answer)
        batch["input_ids"].append(prompt + answer + [policy.tokenizer.pad_token_id] * left)
        batch["attention_mask"].append([1] * (width - left) + [0] * left)
        batch["labels"].append([UNSEEN] * len(prompt) + answer + [UNSEEN] * left)
    return {name: torch.tensor(rows) for name, rows in batch.items()}
