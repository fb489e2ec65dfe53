"""The ranks of one training: processes that a launcher (`accelerate launch`, `torchrun`) starts,
each with a replica of the policy, or its part of one (rl/spread.py), on a device of its own.

Rank 0 runs the campaign, and hands every rank, itself among them, its part of a sampling or, where
the policy learns, of an update. The others do these parts and nothing else, so that none computes
while a lane measures on its device. One process is a world of one: its part is a call, without
torch.distributed.
Where a server samples (rl/served.py) rank 0 alone asks it, and the parts are updates. How they
become ranks is rl/joining.py's.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rl.config import SamplingConfig
from rl.policy import Sample
from rl.replica import Replica
from rl.trainers import Group
from sandbox.errors import WarpsmithError

log = logging.getLogger(__name__)

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
