"""The ranks of one training: processes that a launcher (`accelerate launch`, `torchrun`) starts,
each with a replica of the policy, or its part of one (rl/spread.py), on a device of its own.

Rank 0 runs the campaign, and hands every rank, itself among them, its part of a sampling or, where
the policy learns, of an update. The others do these parts and nothing else, so that none computes
while a lane measures on its device. One process is a world of one: its part is a call, without
torch.distributed.
Where a server samples (rl/served.py) rank 0 alone asks it, and the parts are updates.
Whoever samples needs whole weights, which accelerate's FSDP and DeepSpeed would not leave it: they
are refused. A rank that fails ends them all; which one did, and why, is on its own stderr.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from operator import methodcaller
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

from rl.config import GrpoConfig, SamplingConfig, TrainConfig
from rl.policy import Sample
from rl.replica import Replica
from rl.spread import refuse_older
from rl.trainers import Group
from sandbox.cores import common_cores
from sandbox.errors import ConfigError, WarpsmithError
from sandbox.processes import confine

log = logging.getLogger(__name__)

IDLE = timedelta(days=365)
"""How long a rank may wait for its next part: for as long as a campaign judges."""
STOP_S = 10.0
"""In which a rank that waits hears that it is to stop; one that hangs is the launcher's to end."""
Part = Callable[[Replica], Any]
"""What one rank does next; picklable."""


class RankLost(WarpsmithError):
    """A rank failed or has ended, and the others cannot go on without it."""


class Ranks:
    """All of them, as rank 0 uses them."""

    lost: RankLost | None = None

    def __init__(self, replica: Replica, size: int = 1, group: Any = None) -> None:
        """`group`: of torch.distributed, for the parts alone; none where there is one rank."""
        self.replica, self.size, self._group = replica, size, group
        self._lock = threading.Lock()
        """Proposers ask from threads of their own."""

    @property
    def here(self) -> int:
        """Those on this machine, by its launcher's word: on its first GPUs."""
        return min(self.size, int(os.environ.get("LOCAL_WORLD_SIZE", self.size)))

    @property
    def context(self) -> int:
        return self.replica.policy.context

    def load(self, folder: Path) -> None:
        """Weights that are only sampled."""
        self._each([methodcaller("load", folder)] * self.size)

    def open(self, start: Path | str, newest: Path | None, scratch: Path) -> None:
        """Weights that are updated."""
        self._each([methodcaller("open", start, newest, scratch)] * self.size)

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Sample | None]:
        """As a policy samples, a share in every rank: a reply is that of its own seed, wherever."""
        size = self.size
        parts = [
            methodcaller("sample", prompts[rank::size], sampling, seeds[rank::size])
            for rank in range(size)
        ]
        samples: list[Sample | None] = [None] * len(prompts)
        for rank, share in enumerate(self._each(parts)):
            samples[rank::size] = share
        return samples

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """One update of all replicas, which are at rest again when it returns."""
        figures: dict[str, float] = self._each([methodcaller("update", groups)] * self.size)[0]
        return figures

    def save(self, folder: Path) -> None:
        """A checkpoint, of what all have together."""
        self._each([methodcaller("save", folder)] * self.size)

    def _each(self, parts: Sequence[Part]) -> list[Any]:
        """What every rank's part came to. Raises RankLost where one failed, and from then on."""
        if self._group is None:
            return [parts[0](self.replica)]
        with self._lock:
            if self.lost is not None:
                raise self.lost
            # Until all have answered: whatever is raised here leaves others amid their parts.
            self.lost = self._loss()
            found: list[Any] = [None] * self.size
            try:
                dist.scatter_object_list([None], list(parts), 0, self._group)
                mine = self._own(parts[0])
                dist.gather_object(mine, found, 0, self._group)
            except RuntimeError as error:  # torch's, for a device and for a rank that is gone
                raise self.lost from error
            self.lost = None
        return found

    def _own(self, part: Part) -> Any:
        try:
            return part(self.replica)
        except RuntimeError:
            log.exception("rank 0 failed, or another did in the midst of it")
            raise

    def _loss(self) -> RankLost:
        return RankLost(
            f"one of {self.size} ranks failed or has ended (its own lines and the launcher's tell "
            "why); the same command goes on from the newest checkpoint"
        )

    def stop(self, *, over: bool = True) -> None:
        """Let the others end; where they cannot hear it, they do with this process. `over`: nothing
        else is done together.
        """

        def tell() -> None:
            with self._lock:
                if self.lost is None:
                    try:
                        dist.scatter_object_list([None], [None] * self.size, 0, self._group)
                        if over:
                            dist.destroy_process_group()
                    except RuntimeError:
                        self.lost = self._loss()

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        thread.join(STOP_S)

    def tell(self) -> None:
        """In rank 0, to the others that follow no more: what comes next all do."""
        dist.scatter_object_list([None], [True] * self.size, 0, self._group)

    def told(self) -> bool:
        """In any other: whether rank 0 said so, or has ended."""
        told: list[bool | None] = [None]
        try:
            dist.scatter_object_list(told, None, 0, self._group)
        except RuntimeError:
            return False
        return bool(told[0])

    def follow(self) -> None:
        """In any rank but 0: do each part, until told to stop. Raises RankLost where rank 0 ends
        without a word.
        """
        told: list[Part | None] = [None]
        while True:
            with _rank_0():
                dist.scatter_object_list(told, None, 0, self._group)
            if told[0] is None:
                return
            done = told[0](self.replica)
            with _rank_0():
                dist.gather_object(done, None, 0, self._group)


@contextmanager
def _rank_0() -> Iterator[None]:
    """What it says, or hears; raises RankLost where it is gone."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost("rank 0 has ended") from error


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
        if parse_flag_from_env(f"ACCELERATE_USE_{kind}"):
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
