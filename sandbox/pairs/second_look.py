"""A second look at timed outputs that are further from the reference's than is allowed.

Those carry the reference's own error, which for some inputs is larger than it was in any case: a
quotient by a sum near zero is as far off as that sum is small, and a kernel with more digits was
refused for it. So the float64 truth of those very inputs decides: within the bounds, or a multiple
of the reference's own error there, as in verification (sandbox/checking/bounds.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from sandbox.checking import compare
from sandbox.checking.differences import differences
from sandbox.checking.pool import Pool, truth_leaf
from sandbox.machine import memory
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.trees import Layout
from sandbox.observation import CaseObservation, Errors, FailureKind
from sandbox.pairs.given import Given
from sandbox.subjects.subject import Subject

logger = logging.getLogger(__name__)

Output = Callable[[int, int], torch.Tensor | None]
"""Of a set, a leaf."""
MOST = 8
"""Sets of a round; more are no tail."""
OWN_NORM = 0.02
"""Of the reference's error, beyond which hardly a digit of it says anything."""


def able(pool: Pool) -> bool:
    """Whether a call's float64 truth can be had after it: on inputs and a state that are still, or
    can be made again, what they were.
    """
    signature = pool.signature
    still = not signature.mutates and not signature.moves_state
    floating = all(leaf.floating for leaf in signature.outputs)
    return pool.oracle == "float64" and still and floating


def second_look(
    given: Given,
    parts: Sequence[range],
    case: CaseObservation,
    factor: float,
    output: Output,
    restore: Callable[[], None],
) -> CaseObservation:
    """The observation of a round on inputs as given, the sets of `parts`, without those that are
    right; `factor`: EvalConfig.reference_error_factor; `output`: a set's leaf, as the candidate
    left it when it was done, as `restore` has its slots again. It stands still.
    """
    reference, candidate, signature = given.reference, given.candidate, given.signature
    alone = reference.solo
    excused = set[int]()
    try:
        leaves = tuple(map(truth_leaf, signature.outputs))
        reference.attach("oracle", Layout(leaves, 1))
        restore()
        for index in _beyond(reference, candidate, parts, case.bounds):
            if len(excused) == MOST or not _right(given, index, case.bounds, factor, output):
                break
            excused.add(index)
    except (memory.OutOfMemoryError, torch.OutOfMemoryError) as error:
        logger.info("no second look: %s", error)
    except WorkerFailed as failed:  # no room for copies in float64, say
        if failed.failure.kind is not FailureKind.CLAIMED:
            raise
        logger.info("no second look: %s", failed)
    reference.discard("oracle")
    if reference.task.device == "cuda":
        torch.cuda.empty_cache()
    reference.solo = alone  # batches are what they were
    if not excused:
        return case
    logger.info("%d sets of a round are right, where the reference is less so", len(excused))
    restore()
    left = list(_without(parts, excused))
    return replace(case, **differences(reference, candidate, signature, left, case.bounds))


def _beyond(
    reference: Subject,
    candidate: Subject,
    parts: Sequence[range],
    bounds: Sequence[Errors],
) -> list[int]:
    """Sets that are beyond the bounds by themselves."""
    found = []
    for index in (index for part in parts for index in part):
        for leaf, bound in enumerate(bounds):
            out, truth = (side.leaf("slots", index, leaf) for side in (candidate, reference))
            if not compare.errors(out, truth, bound).within(bound):
                found.append(index)
                break
    return found


def _right(
    given: Given, index: int, bounds: Sequence[Errors], factor: float, output: Output
) -> bool:
    """Whether the candidate's outputs are within what the reference's own error allows."""
    if not given.refill():
        return False
    for leaf, (truth, bound) in enumerate(zip(_truth(given, index), bounds, strict=True)):
        out, theirs = output(index, leaf), given.reference.leaf("slots", index, leaf)
        if out is None:
            return False
        mine, own = compare.errors(out, truth), compare.errors(theirs, truth)
        if own.norm > OWN_NORM or not mine.within(bound.worst(own.times(factor))):
            return False
    return True


def _truth(given: Given, index: int) -> list[torch.Tensor]:
    """The float64 outputs of a set."""
    limit_s = given.config.run_timeout_s
    exact = {"jitter": 0.0, "seed": 0, "tf32": False, "domains": given.signature.domains}
    given.reference.request("oracle", limit_s, set=index, **exact)
    leaves = range(len(given.signature.outputs))
    return [given.reference.leaf("oracle", 0, leaf).clone() for leaf in leaves]


def _without(parts: Sequence[range], excused: set[int]) -> Iterator[range]:
    """What is left, side by side."""
    for part in parts:
        start = part.start
        for index in sorted(excused & set(part)):
            if index > start:
                yield range(start, index)
            start = index + 1
        if start < part.stop:
            yield range(start, part.stop)
