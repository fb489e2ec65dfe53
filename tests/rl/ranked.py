"""A program for several processes: each a rank of one training, on the CPU, with a toy policy."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState

from agent.learner import Rollout
from agent.prompts.message import Message
from agent.scripted import scripted_evaluation
from rl.config import GrpoConfig, LoraConfig, SamplingConfig, ShapeConfig, TrainConfig
from rl.grpo import GrpoLearner
from rl.policy import new_policy
from rl.ranks import Ranks, joined
from rl.replica import Replica
from sandbox.errors import WarpsmithError
from sandbox.types import Candidate, EvalConfig, Language, Status

ROOT = Path(__file__).parents[2]
SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=2, heads=2, feed_forward=32, context=128)
PROMPTS = [json.dumps([Message(role="user", content=text)]) for text in ("faster", "faster yet")]
REPLIES = ("a b c", "d e", "f", "a d f b", "c c c")
CONFIG = TrainConfig(
    device="cpu",
    optimizer="sgd",  # Adam's first steps are of one size whatever the gradient: noise would show.
    sampling=SamplingConfig(max_new_tokens=8, batch=4),
    rl=GrpoConfig(group=4, learning_rate=0.5, iterations=2, max_grad_norm=1.0),
)
GRADIENTS_S = 15
"""Time-out of the processes' own group, in which gradients are averaged."""
CASES: Mapping[str, TrainConfig] = {
    "two steps": CONFIG,
    "small batches": replace(CONFIG, rl=replace(CONFIG.rl, batch=1)),
    "leave-one-out": replace(
        CONFIG, rl=replace(CONFIG.rl, advantage="leave-one-out", scale="none")
    ),
    "mean over replies": replace(CONFIG, rl=replace(CONFIG.rl, loss="grpo", scale="batch")),
    "kl": replace(CONFIG, rl=replace(CONFIG.rl, beta=0.5)),
    "adapters": replace(CONFIG, lora=LoraConfig(rank=2, alpha=4)),
    "odd groups": replace(CONFIG, rl=replace(CONFIG.rl, group=5)),
}


def rollouts(config: TrainConfig) -> list[Rollout]:
    """Of three groups: a whole one, one with a fault of ours, one that is not full."""
    size = config.rl.group
    return [
        *(_rollout(PROMPTS[0], place) for place in range(size)),
        *(_rollout(PROMPTS[1], place, fault=place == 1) for place in range(size)),
        *(_rollout(PROMPTS[1], place) for place in (3, 2, 0)),
    ]


def _rollout(prompt: str, place: int, fault: bool = False) -> Rollout:
    status = (Status.PASSED, Status.REWARD_HACK, Status.WRONG_VALUE)[place % 3]
    reply = REPLIES[place]
    judged = scripted_evaluation(
        Candidate("t", Language.CPP, reply),
        EvalConfig(),
        Status.SANDBOX_ERROR if fault else status,
        1.0 + place,
    )
    return Rollout("t", prompt, reply, 0, judged)


def start(folder: Path) -> Path:
    new_policy([*REPLIES, *PROMPTS], SHAPE, "toy", seed=1).save(folder / "start")
    return folder / "start"


def trained(folder: Path, config: TrainConfig, ranks: Ranks | None = None) -> dict[str, object]:
    """What a sampling and an update came to."""
    learner = GrpoLearner(folder, folder.parent / "start", config, "cpu", ranks)
    asked = [json.loads(prompt) for prompt in PROMPTS * 3]
    before = learner.ranks._each([fingerprint] * learner.ranks.size)
    replies = learner.model.complete_each(asked, "t 0")
    lesson = learner.learn(rollouts(config))
    assert lesson is not None
    return {
        "replies": [None if r is None else r.text for r in replies],
        "before": before,
        "weights": learner.ranks._each([fingerprint] * learner.ranks.size),
        "version": lesson.version,
        "groups": lesson.groups,
    }


def fingerprint(replica: Replica) -> tuple[int, float, float]:
    """Version, sum and sum of squares of all weights."""
    flat = torch.cat([p.detach().double().flatten() for p in replica.policy.model.parameters()])
    return replica.policy.version, float(flat.sum()), float(flat.square().sum())


def launched(*words: str, ranks: int = 2) -> list[subprocess.Popen[str]]:
    """This program in so many processes that know each other, as launchers start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1"}
    start = partial(
        subprocess.Popen[str],
        [sys.executable, "-m", "tests.rl.ranked", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks))
    return [start(env=os.environ | common | mine) for mine in own]


def configured(case: str, url: str = "") -> TrainConfig:
    """With the address of a server that samples, where there is one."""
    config = CASES[case]
    if not url:
        return config
    return replace(config, sampling=replace(config.sampling, engine="vllm-server", base_url=url))


def main(command: str, path: str, case: str = "two steps", url: str = "") -> None:
    folder, config = Path(path), configured(case, url)
    PartialState(cpu=True, timeout=timedelta(seconds=GRADIENTS_S))
    with joined(config, "cpu") as ranks:
        if command == "train":
            print(json.dumps(trained(folder / "two", config, ranks)))
        else:
            ranks.open(folder / "start", None, folder)
            print("ready")
            sys.stdin.readline()
            ranks.sample([[1, 2]] * 2, config.sampling, [0, 1])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except WarpsmithError as error:
        sys.exit(str(error))
