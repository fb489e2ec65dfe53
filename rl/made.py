"""Kernels of the feature proposer as training examples, taken as made.

16 cores made 3,000 in 42 s, where judging one takes a GPU half a second. What share of them is
right is for campaigns to say; self-supervised rounds, which follow, keep what passes alone.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.prompts.message import Message
from agent.prompts.render import Scene, render_contrast, render_propose
from agent.types import Attempt, Measured, Proposal
from kernelbench.similarity import Known, Shape
from kernelbench.suite import load_tasks
from rewards.types import Reward
from rl.data import (
    Example,
    composition_of,
    family_of,
    plainly,
    reply_of,
    scene_of,
    size_of,
    statements_of,
)
from sandbox.errors import ConfigError
from sandbox.graph import Arg, Ref, trace_ahead, trace_all
from sandbox.types import Evaluation, Language, Task, digest

CHUNK = 16
"""Tasks that a process is handed at once, and traces in one go."""
Wanted = tuple[Task, int]
"""With how many kernels of it."""
CONTRASTED = 4
"""Of so many tasks one has a contrast too: those are three times as long as a proposal. With one of
two, and as many steps, held-out replies of either kind were less likely (105 and 109 nats a reply,
not 96 and 104, benchmarks/results/cpu_contrasts.json)."""
SHORT, MOST = 3, 3
"""Statements of a reference from which each further one brings as many kernels again, and how many
times as many are the most. Of long chains there are many and a suite has few: with one kernel a
task 27 of 37 greedy replies to tasks of five operators were wrong, of 58 to those of four seven
(small policy, after SFT and later, benchmarks/results/h200_train_demo.json, h100_train_demo.json).
"""


def made_examples(
    specs: Mapping[str, int],
    like: Path,
    evaluated: Known | None = None,
    exemplars: int = 0,
) -> Iterator[Example]:
    """For each task of these suites that the proposer covers, as many kernels of it as its suite is
    to have (of a long one up to MOST times as many), features drawn by chance, asked for as on the
    machine of the run in `like`; not for tasks too like the evaluated ones. One task
    of `CONTRASTED` also teaches the form of a contrast with up to so many `exemplars`, which have
    the figures of kernels that the run measured, drawn by chance.
    """
    with Journal(like, read_only=True) as journal:
        scenes = (scene_of(journal, task) for task in journal.tasks())
        machine = next((scene for scene in scenes if scene.measured is not None), None)
        figures = [
            attempt.evaluation
            for task in journal.tasks()
            for attempt in journal.attempts(task.id)
            if attempt.evaluation.speedup is not None
        ]
    if machine is None:
        raise ConfigError(f"{like}: a run that measured nothing tells of no machine; name another")
    device = machine.task.device
    known = evaluated or Known()
    tasks = [(task, count) for spec, count in specs.items() for task in load_tasks(spec, device)]
    lesson = _Lesson(machine, exemplars, figures, known)
    if len(tasks) <= CHUNK:  # another process would import for seconds
        yield from lesson.of_each(tasks)[0]
        return
    processes = min(len(os.sched_getaffinity(0)), len(tasks) // CHUNK)
    with ProcessPoolExecutor(processes, get_context("spawn"), _alone) as pool:
        for found, met in pool.map(lesson.of_each, _batched(tasks, CHUNK)):
            known.met |= met
            yield from found


def _batched(tasks: Sequence[Wanted], count: int) -> list[Sequence[Wanted]]:
    return [tasks[first : first + count] for first in range(0, len(tasks), count)]


def _alone() -> None:
    """A process of the pool: its parent hears Ctrl-C, and it ends with its parent however that
    does.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


@dataclass(frozen=True)
class _Lesson:
    """What all tasks' examples have in common."""

    machine: Scene
    exemplars: int
    figures: Sequence[Evaluation]
    """Of kernels that passed and were timed."""
    known: Known
    """What the tasks must not be too like."""

    def of_each(self, listed: Sequence[Wanted]) -> tuple[list[Example], set[Shape]]:
        """With the references that were too like what is known."""
        tasks = [(task, n) for task, n in listed if self.known.too_alike(task.source) is None]
        trace_ahead([task for task, _ in tasks])
        found = [e for task, count in tasks for e in self.of(task, count * times_of(task))]
        return found, self.known.met

    def of(self, task: Task, count: int) -> list[Example]:
        """`count` proposals, and of one task in `CONTRASTED` a contrast of further ones; fewer
        where the feature proposer has no more. The same for equal arguments.
        """
        dice = random.Random(digest(f"contrast {task.id}"))
        most = min(self.exemplars, len(self.figures))
        contrasted = most > 0 and dice.randrange(CONTRASTED) == 0
        shown_count = dice.randint(1, most) if contrasted else 0
        wanted = count + (shown_count + 1 if contrasted else 0)
        # By chance: of two defaults a policy learns nothing that rewards could choose among.
        proposals = FeatureProposer(order="random").propose(task, [], wanted)
        if not proposals:
            return []
        scene = self.scene(task, proposals[0].candidate.language)

        def example(kind: str, asked: list[Message], proposal: Proposal) -> Example:
            reply, family = reply_of(proposal, kind), family_of(task)
            same = composition_of(task), size_of(task)
            return Example(task.id, family, *same, kind, asked, reply, None, "")

        asked = render_propose(scene)
        found = [example("propose", asked, proposal) for proposal in proposals[:count]]
        if len(proposals) == wanted > count:
            *shown, answer = proposals[count:]
            drawn = sorted(dice.sample(self.figures, shown_count), key=_speed)
            exemplars = [plainly(_told(p, e)) for p, e in zip(shown, drawn, strict=True)]
            found.append(example("contrast", render_contrast(scene, exemplars), answer))
        return found

    def scene(self, task: Task, language: Language) -> Scene:
        """As a campaign would ask: what was measured of other tasks is not this one's."""
        measured = self.machine.measured
        assert measured is not None
        floor_ms = _floor_ms(task, measured)
        measured = replace(measured, eager_ms=None, baselines_ms={}, floor_ms=floor_ms)
        return replace(self.machine, task=task, language=language, measured=measured)


def times_of(task: Task) -> int:
    """As many kernels as of a short task, this many times."""
    statements = statements_of(task)
    return min(MOST, max(1, statements - SHORT + 1))


def _told(proposal: Proposal, figure: Evaluation) -> Attempt:
    """As if this had been measured of it: how figures are told is to be learned, not these."""
    candidate = proposal.candidate
    evaluation = replace(figure, task_id=candidate.task_id, candidate_id=candidate.id)
    return Attempt(proposal, evaluation, Reward(None))


def _speed(figure: Evaluation) -> float:
    return figure.speedup.low if figure.speedup is not None else 0.0


def _floor_ms(task: Task, measured: Measured) -> float | None:
    """What moving inputs and outputs once takes; no batch of calls fits a GPU's caches."""
    if task.device == "cpu" or measured.copy_bytes_s is None:
        return None
    graph = trace_all(task)[0]
    known = {node.name: node for node in graph.nodes}
    names = [node.name for node in graph.nodes if node.op == "input"] + _refs(graph.result)
    metas = [known[name].meta for name in names]
    moved = sum(meta.numel * getattr(torch, meta.dtype).itemsize for meta in metas)
    return float(moved / measured.copy_bytes_s * 1e3)


def _refs(result: Arg) -> list[str]:
    if isinstance(result, tuple):
        return [name for each in result for name in _refs(each)]
    return [result.node] if isinstance(result, Ref) else []
