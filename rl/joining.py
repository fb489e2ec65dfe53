"""How the processes of one training become its ranks (rl/ranks.py), and what the others than rank 0
do until they end: they follow it, silently, off the cores that lanes launch from.

Whoever samples needs whole weights, which FSDP and DeepSpeed would not leave it: where all ranks
learn, a file of accelerate's that asks for either has the weights spread as `rl.spread` does
(rl/launched.py). A rank that fails ends them all; which one did, and why, is on its own stderr.
"""

from __future__ import annotations

import atexit
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from types import FrameType

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

from rl.config import GrpoConfig, TrainConfig
from rl.launched import USED
from rl.ranks import Ranks
from rl.replica import Replica
from rl.spread import refuse_older
from sandbox.errors import ConfigError
from sandbox.machine.cores import common_cores
from sandbox.machine.processes import confine

IDLE = timedelta(days=365)
"""How long a rank may wait for its next part: for as long as a campaign judges."""


@contextmanager
def joined(config: TrainConfig, device: str, *, learns: bool = True) -> Iterator[Ranks]:
    """In rank 0, all ranks, told to stop at the end. In any other does not return: it follows, and
    SystemExit ends it. Raises RankLost at the end where a rank was lost on the way. `learns`: they
    are updated too.
    """
    ranks = _made(config, device, learns)
    if ranks.size == 1:
        yield ranks
        return
    if not _state(device).is_main_process:
        try:
            _follow(ranks, device)
        finally:
            dist.destroy_process_group()
        raise SystemExit
    # Launchers pass signals on to all ranks. A campaign hears them, and finishes what is under way,
    # for which rank 0 needs the others; before and after it the end of a rank is told another way.
    ends = signal.signal(signal.SIGTERM, _unheard)
    try:
        yield ranks
    finally:
        ranks.stop(over=learns)
    if ranks.lost is not None:
        raise ranks.lost
    if not learns:  # A stage that only samples may fine-tune next.
        signal.signal(signal.SIGTERM, ends)
        _sampled.append(ranks)
        atexit.register(_leave)


def followed(config: TrainConfig, device: str) -> bool:
    """In any rank but 0, whose campaign only samples: does its parts of that, and True once rank 0
    has said so (`go_on`). What comes next all ranks do. SystemExit where rank 0 ends instead.
    """
    if _state(device).is_main_process:
        return False
    ranks = _made(config, device, learns=False)
    _follow(ranks, device)
    if not ranks.told():  # Why not, rank 0 says.
        raise SystemExit(1)
    atexit.register(_leave)
    return True


def go_on() -> None:
    """In rank 0, after a campaign that only sampled and was not interrupted: the others go on."""
    while _sampled:
        _sampled.pop().tell()


_sampled: list[Ranks] = []
"""Those that wait for a word of rank 0."""


def _state(device: str) -> PartialState:
    return PartialState(cpu=device == "cpu")  # On GPUs, makes LOCAL_RANK's the current one.


def _made(config: TrainConfig, device: str, learns: bool) -> Ranks:
    """In every rank, as often."""
    for kind in ("FSDP", "DEEPSPEED"):
        if parse_flag_from_env(f"{USED}{kind}"):
            raise ConfigError(
                f"{kind} spreads the weights, and each rank samples with all of them; expected "
                "distributed_type MULTI_GPU and, where all are too many, rl.spread in the config"
            )
    size = _state(device).num_processes
    replica = Replica(config, device, size)
    if size == 1:
        return Ranks(replica)
    if learns:
        refuse_uneven(config.rl, size)
    if config.rl.spread:
        refuse_older()
    # Not the gradients' group, whose time-out is to be minutes. And not NCCL: a rank that waits in
    # it keeps its GPU busy, on which a lane measures.
    return Ranks(replica, size, dist.new_group(backend="gloo", timeout=IDLE))


def _follow(ranks: Ranks, device: str) -> None:
    heard = {each: signal.signal(each, _unheard) for each in (signal.SIGTERM, signal.SIGINT)}
    if device == "cuda":  # off the cores that launch what lanes measure
        confine(os.getpid(), common_cores())
    try:
        with _quiet():
            ranks.follow()
    finally:
        for each, handler in heard.items():
            signal.signal(each, handler)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _unheard(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which this process's children would inherit."""


@contextmanager
def _quiet() -> Iterator[None]:
    """What trainers say, rank 0 says; errors are heard from every rank."""
    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
        warnings.catch_warnings(action="ignore"),
    ):
        yield


def refuse_uneven(rl: GrpoConfig, size: int) -> None:
    """Raises ConfigError where so many ranks would not take the step that one takes."""
    if rl.loss == "bnpo":
        raise ConfigError("loss bnpo is normalised by batch, and ranks have their own; take dapo")
    if rl.loss != "dapo" and rl.group % size:
        raise ConfigError(
            f"loss {rl.loss} is a mean over replies, and rl.group ({rl.group}) is no multiple of "
            f"{size} ranks; change either, or take dapo"
        )
