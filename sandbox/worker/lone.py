"""A worker's side of a call that is alone in its "go": it stands by for the bell
(sandbox/subjects/bell.py), and brings the call's inputs to their place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from sandbox.subjects.bell import Bell
from sandbox.subjects.scrambling import Scrambler


def stand_by(
    bell: Bell,
    ticket: int,
    place: torch.Tensor,
    scrambled: torch.Tensor | None,
    call: Callable[[], None],
) -> None:
    """Until the bell rings; then the call's inputs are made out, into `place`. Before that the same
    and a `call` on other inputs go on again and again.
    """
    make_out = making_out(bell, place, scrambled)
    gc.disable()

    def keep_warm() -> None:
        make_out(0)  # to no avail: what it takes is not there
        call()

    make_out(bell.stand_by(ticket, keep_warm))


def making_out(
    bell: Bell, place: torch.Tensor, scrambled: torch.Tensor | None
) -> Callable[[int], object]:
    """What brings a rung call's inputs to their place, once there is the key: out of the bell, or
    else of where they lie scrambled; all (bytes,) uint8.
    """
    if bell.given.numel():
        return lambda key: place.copy_(bell.given, non_blocking=True)
    assert scrambled is not None
    # An arena on a GPU is of whole pages: larger than the set.
    given = scrambled[: len(place)].view(torch.int64)
    scrambler, own = Scrambler(len(given), given.device), place.view(torch.int64)
    return lambda key: scrambler.scramble(given, key, own)
