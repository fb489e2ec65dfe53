"""A program for several processes: each a rank of one training, on the CPU, with a toy policy."""

import contextlib
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from accelerate import PartialState
from torch.distributed.tensor import DTensor

from agent.learner import Rollout
from agent.prompts.message import Message
from agent.proposing.scripted import scripted_evaluation
from rl.config import GrpoConfig, LoraConfig, SamplingConfig, ShapeConfig, TrainConfig
from rl.grpo import GrpoLearner
from rl.joining import joined
from rl.policy import new_policy
from rl.ranks import Ranks
from rl.replica import Replica
from rl.spread import full
from sandbox.errors import WarpsmithError
from sandbox.types import Candidate, EvalConfig, Language, Status

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])
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
    "spread": replace(CONFIG, rl=replace(CONFIG.rl, spread=True)),
    "spread small batches": replace(CONFIG, rl=replace(CONFIG.rl, spread=True, batch=1)),
    "spread kl": replace(CONFIG, rl=replace(CONFIG.rl, spread=True, beta=0.5)),
    "spread adam": replace(
        CONFIG, optimizer="adamw_torch", rl=replace(CONFIG.rl, spread=True, learning_rate=0.01)
    ),
    "spread adapters": replace(
        CONFIG, lora=LoraConfig(rank=2, alpha=4), rl=replace(CONFIG.rl, spread=True)
    ),
}


def rollouts(config: TrainConfig, version: int = 0) -> list[Rollout]:
    """Of three groups: a whole one, one with a fault of ours, one that is not full."""
    size = config.rl.group
    return [
        *(_rollout(PROMPTS[0], place, version) for place in range(size)),
        *(_rollout(PROMPTS[1], place, version, fault=place == 1) for place in range(size)),
        *(_rollout(PROMPTS[1], place, version) for place in (3, 2, 0)),
    ]


def _rollout(prompt: str, place: int, version: int, fault: bool = False) -> Rollout:
    status = (Status.PASSED, Status.REWARD_HACK, Status.WRONG_VALUE)[place % 3]
    reply = REPLIES[place]
    judged = scripted_evaluation(
        Candidate("t", Language.CPP, reply),
        EvalConfig(),
        Status.SANDBOX_ERROR if fault else status,
        1.0 + place,
    )
    return Rollout("t", prompt, reply, version, judged)


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


def learned_twice(folder: Path, config: TrainConfig, ranks: Ranks, stops: bool) -> object:
    """What ranks hold after two updates, between which the run `stops` and goes on, or not."""
    learner = GrpoLearner(folder, folder.parent / "start", config, "cpu", ranks)
    learner.learn(rollouts(config))
    if stops:
        learner = GrpoLearner(folder, folder.parent / "start", config, "cpu", ranks)
    learner.learn(rollouts(config, 1))
    return {"weights": ranks._each([fingerprint] * ranks.size), "held": ranks._each([held] * 2)}


def held(replica: Replica) -> tuple[int, int]:
    """Numbers of the weights that a rank has between its parts, and of what its optimizer keeps."""

    def own(tensor: torch.Tensor) -> int:
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel()

    states = replica.optimizer.state.values()
    kept = [value for state in states for value in state.values() if torch.is_tensor(value)]
    return sum(map(own, replica.policy.model.parameters())), sum(map(own, kept))


def fingerprint(replica: Replica) -> tuple[int, float, float]:
    """Version, sum and sum of squares of all weights."""
    weights = [full(p.detach()) for p in replica.policy.model.parameters()]
    flat = torch.cat([tensor.double().flatten() for tensor in weights])
    return replica.policy.version, float(flat.sum()), float(flat.square().sum())


class Rank:
    """A process of this program, with the ends of its pipes. It is forked from one that has
    imported what it needs, which takes each process of its own several seconds.
    """

    def __init__(self, variables: Mapping[str, str], words: Sequence[str]) -> None:
        pipes = [FORKS.Pipe(duplex=False) for _ in range(3)]
        (stdin, given), *printed = pipes
        mine = [given, *(reader for reader, _ in printed)]
        theirs = [stdin, *(writer for _, writer in printed)]
        self._process = FORKS.Process(target=run, args=(variables, theirs, words))
        self._process.start()
        for end in theirs:
            end.close()
        modes = ("w", "r", "r")
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(os.dup(end.fileno()), mode) for end, mode in zip(mine, modes, strict=True)
        )
        for end in mine:
            end.close()
        self.kill, self.pid = self._process.kill, self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def communicate(self, given: str = "", timeout: float | None = None) -> tuple[str, str]:
        """What it prints until its end, less than a pipe holds."""
        with contextlib.suppress(BrokenPipeError), self.stdin:
            self.stdin.write(given)
        self.wait(timeout)
        with self.stdout, self.stderr:
            return self.stdout.read(), self.stderr.read()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutError(f"rank {self.pid} has not ended within {timeout} s")
        return self.returncode


def launched(*words: str, size: int = 2) -> list[Rank]:
    """So many processes that know each other, as launchers start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size))
    return [Rank(common | mine, words) for mine in own]


def run(variables: Mapping[str, str], pipes: Sequence[Connection], words: Sequence[str]) -> None:
    """In a rank."""
    os.environ.update(variables)
    torch.set_num_threads(1)
    for place, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), place)
        pipe.close()
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", 1)
    try:
        main(*words)
    except WarpsmithError as error:
        sys.exit(str(error))


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
        elif command in ("straight", "stopped"):
            print(json.dumps(learned_twice(folder / command, config, ranks, command == "stopped")))
        else:
            ranks.open(folder / "start", None, folder)
            print("ready")
            sys.stdin.readline()
            ranks.sample([[1, 2]] * 2, config.sampling, [0, 1])
