"""What the attempts say: the best so far, failures that may still be repaired, the gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from agent.prompts.render import TITLES, Scene, render_propose, render_repair
from agent.strategies.types import PROPOSE, REPAIR, TUNE, Ask
from agent.types import Attempt, Proposal
from sandbox.types import Status

COMPILE_GATE = frozenset((Status.REJECTED, Status.COMPILE_ERROR))
"""Before it: no code, or code that does not compile. Beyond it a failure is one of function."""


def best_so_far(history: Sequence[Attempt]) -> Attempt | None:
    """The passed attempt with the highest lower bound of its speedup; the earliest of equals."""
    timed = [(a.evaluation.speedup, a) for a in history if writable(a)]
    passed = [(speedup.low, attempt) for speedup, attempt in timed if speedup is not None]
    return max(passed, key=lambda pair: pair[0])[1] if passed else None


def log_speedup(attempt: Attempt) -> float | None:
    """Of the interval's lower bound, against eager; None unless it passed and was timed."""
    speedup = attempt.evaluation.speedup
    return None if speedup is None else math.log(speedup.low)


def writable(attempt: Attempt) -> bool:
    """Whether a model may be asked to change it."""
    return attempt.proposal.candidate.language in TITLES


def open_failures(
    history: Sequence[Attempt], repair_turns: int, repeats: Sequence[Proposal] = ()
) -> list[Attempt]:
    """Failures that are the candidate's fault and have had no repair turn yet: those that came
    through the compile gate first, of those the newest first.

    Equal code counts once. A repair that came back unchanged, or as another known program, was one
    too: it is among the `repeats`. Variants of a correct candidate are not repaired.
    """
    repaired = {parent for p in repeats if p.strategy.endswith(REPAIR) for parent in p.parents}
    turns_of: dict[str, int] = {}
    failed: dict[str, Attempt] = {}
    for attempt in history:
        proposal, status = attempt.proposal, attempt.evaluation.status
        turns = 0
        if proposal.strategy.endswith(REPAIR):
            repaired.update(proposal.parents)
            turns = 1 + max((turns_of.get(parent, 0) for parent in proposal.parents), default=0)
        turns_of.setdefault(proposal.candidate.id, turns)
        if proposal.strategy == TUNE:  # Other values are tried in its place.
            continue
        if writable(attempt) and status.scored and not attempt.evaluation.passed:
            failed.setdefault(proposal.candidate.id, attempt)
    newest = [
        attempt
        for candidate_id, attempt in reversed(failed.items())
        if candidate_id not in repaired and turns_of[candidate_id] < repair_turns
    ]
    return sorted(newest, key=lambda attempt: attempt.evaluation.status in COMPILE_GATE)


def repairs(scene: Scene, failed: Sequence[Attempt]) -> list[Ask]:
    """One question each: the source, its verdict and what is known about the error."""
    asked = []
    for attempt in failed:
        candidate = attempt.proposal.candidate
        its_scene = replace(scene, language=candidate.language)
        messages = render_repair(its_scene, candidate, attempt.evaluation)
        asked.append(Ask(REPAIR, candidate.language, messages, (candidate.id,)))
    return asked


def fresh(scene: Scene, n: int) -> list[Ask]:
    """The first prompt, `n` times."""
    return [Ask(PROPOSE, scene.language, render_propose(scene))] * n


def start(scene: Scene, history: Sequence[Attempt], n: int, repair_turns: int) -> list[Ask]:
    """While nothing has passed: repair what failed, and begin anew with what is left of `n`."""
    asked = repairs(scene, open_failures(history, repair_turns, scene.repeats)[:n])
    return asked + fresh(scene, n - len(asked))
