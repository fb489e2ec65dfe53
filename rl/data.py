"""Verified kernels of journals as training examples, on disk as a Hugging Face dataset.

Three kinds, all asked by the prompts that campaigns use: `propose` (reference -> kernel), `repair`
(failed source and its verdict -> the repair that passed) and `contrast` (exemplars of distinct
buckets -> a kernel faster than all of them). Equal code of a task counts once per kind. Whole
families (references calling the same operators) and whole compositions (references that differ in
names and constants alone) are held out, told by hashes, so that more data never moves a task; so
are some sizes, by name. Tasks too like an evaluation suite's are left out.
"""

from __future__ import annotations

import ast
import math
import os
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, disable_progress_bars, load_from_disk

from agent.features.assemble import without_header
from agent.features.emit import quoted
from agent.journals.journal import Journal
from agent.prompts.message import Message
from agent.prompts.render import Scene, fenced, render_contrast, render_propose, render_repair
from agent.strategies.contrastive import Contrastive, buckets
from agent.strategies.lineage import writable
from agent.strategies.types import REPAIR
from agent.types import Attempt, Proposal
from kernelbench.similarity import Known, operators_of, shape_of
from kernelbench.suite import load_tasks
from rewards.terms import SECTIONS
from rl.config import SPLITS, HeldOut, Split, TrainConfig, refuse_evaluated
from rl.plain import plain
from sandbox.errors import ConfigError
from sandbox.records import from_record
from sandbox.types import EvalConfig, Language, Task, digest

TRAIN = "train"


@dataclass(frozen=True)
class Example:
    task_id: str
    family: str
    composition: str
    """Of its task, as composition_of tells it."""
    size: str
    kind: str
    messages: list[Message]
    reply: str
    speedup: float | None
    """Lower bound against eager, as measured in the run; None where nothing was timed."""
    run: str
    """That verified it; empty for a kernel taken as made (rl/made.py)."""


def examples_of(
    journal: Journal, config: TrainConfig, evaluated: Known | None = None
) -> Iterator[Example]:
    """Every verified kernel of a run, in each kind it can serve, with exemplars as the config's
    campaigns show them; but those on tasks too like the evaluated ones.
    """
    for task in journal.tasks():
        if evaluated is not None and evaluated.too_alike(task.source) is not None:
            continue
        history, told = journal.attempts(task.id), scene_of(journal, task)
        passed = [a for a in history if a.evaluation.passed and writable(a)]
        for attempt in passed:
            scene = replace(told, language=attempt.proposal.candidate.language)
            for kind, messages in _prompts(scene, attempt, history, passed, config):
                yield Example(
                    task.id,
                    family_of(task),
                    composition_of(task),
                    size_of(task),
                    kind,
                    messages,
                    reply_of(attempt.proposal, kind),
                    _speed(attempt),
                    journal.folder.name,
                )


def _prompts(
    scene: Scene,
    attempt: Attempt,
    history: Sequence[Attempt],
    passed: Sequence[Attempt],
    config: TrainConfig,
) -> Iterator[tuple[str, list[Message]]]:
    yield "propose", render_propose(scene)
    proposal = attempt.proposal
    if proposal.strategy.endswith(REPAIR):
        parents = [a for a in history if a.proposal.candidate.id in proposal.parents]
        for parent in parents[:1]:
            yield "repair", render_repair(scene, parent.proposal.candidate, parent.evaluation)
    speed = _speed(attempt)
    slower = [a for a in passed if speed is not None and (_speed(a) or math.inf) < speed]
    strategy = contrastive_of(config)
    found = buckets(slower, strategy.bucket_width)
    if found:
        dice = random.Random(digest([config.seed, proposal.candidate.id]))
        shown = [plainly(a) for a in strategy.shown(found, dice)]
        yield "contrast", render_contrast(scene, shown)


def contrastive_of(config: TrainConfig) -> Contrastive:
    """How a policy is shown exemplars, in its campaigns and in what it is taught before them."""
    return Contrastive(
        exemplars=config.exemplars,
        selection=config.selection,
        bucket_width=config.bucket_width,
        temperature=config.temperature,
    )


def reply_of(proposal: Proposal, kind: str) -> str:
    """What the policy is to write: the reply as it was given, or one around a kernel that no model
    wrote: first the reference's statements as the kernel numbers them, so that two that are alike
    are told apart, then the features it was made of, as its reasons.
    """
    if proposal.reply is not None and (kind != "contrast" or SECTIONS[-1] in proposal.reply):
        return proposal.reply
    source = plain(proposal.candidate.source)
    code = fenced(source, "python")
    chosen = ", ".join(f"{k} {v}" for k, v in proposal.features.items() if isinstance(v, int | str))
    why = f"One pass over memory; {chosen}." if chosen else "One pass over memory."
    steps = "".join(f"{step}\n" for step in quoted(source))
    if kind != "contrast":
        return f"{steps}{why}\n\n{code}\n"
    analysis, design, implementation = SECTIONS
    return (
        f"{analysis}\nMemory traffic and how it is cut into work limit them.\n\n"
        f"{design}\n{steps}{why}\n\n{implementation}\n{code}\n"
    )


def family_of(task: Task) -> str:
    """The operators that the reference calls, sorted: equal for tasks that differ in size only."""
    return " ".join(sorted(operators_of(task.source))) or task.id


def composition_of(task: Task) -> str:
    """Equal for references that differ in names, constants and sizes alone."""
    return digest(shape_of(task.source))


def size_of(task: Task) -> str:
    """The name of the shape that is timed."""
    return task.shapes[0].name


def split_of(task: Task, held_out: HeldOut) -> Split:
    return held_out.split(composition_of(task), family_of(task), size_of(task))


def teaches(composition: str, family: str, size: str) -> set[str]:
    """What a policy has seen that was trained on such a task (Policy.taught)."""
    return {composition, _family(family), f"size {size}"}


def withheld(task: Task, split: Split) -> set[str]:
    """What of it a policy must not have seen that is judged by it as held out: nothing of this."""
    if split == "held_out_size":
        return {f"size {size_of(task)}"}
    family = {_family(family_of(task))} if split == "held_out_family" else set()
    return {composition_of(task), *family}


def _family(family: str) -> str:
    return f"family {digest(family)}"


def statements_of(task: Task) -> int:
    """Of the reference's `forward`: of a synthetic task one for each operator."""
    found = (n for n in ast.walk(ast.parse(task.source)) if isinstance(n, ast.FunctionDef))
    return next((len(n.body) for n in found if n.name == "forward"), 0)


def dataset_of(
    runs: Iterable[Path],
    config: TrainConfig,
    per_task: int | None,
    evaluated: Known | None = None,
    made: Iterable[Example] = (),
) -> DatasetDict:
    """Of the verified kernels of these runs' folders, less those on tasks too like the evaluated
    ones, and of others that were `made`; raises ConfigError where none is left.
    """
    found: list[Example] = []
    for run in runs:
        with Journal(run, read_only=True) as journal:
            found += examples_of(journal, config, evaluated)
    found += made
    refuse_evaluated((e.task_id for e in found), config.transductive)
    return build_dataset(found, config.held_out, per_task)


def known_of(suites: Sequence[str], device: str) -> Known:
    """The references of these suites, to compare others with."""
    tasks = [task for spec in suites for task in load_tasks(spec, device)]
    return Known.of([(task.id, task.source) for task in tasks])


def scene_of(journal: Journal, task: Task) -> Scene:
    """What a campaign's prompts say beside their own task: machine, precision, measurements."""
    config = journal.config() or {}
    policy = from_record(EvalConfig, config["evaluation"]) if "evaluation" in config else None
    measured = journal.measured(task.id)
    return Scene(task, Language.CUDA, journal.facts(), measured, policy)


def build_dataset(
    examples: Iterable[Example], held_out: HeldOut, per_task: int | None = None
) -> DatasetDict:
    """Fastest first, distinct, split; raises ConfigError where nothing is left to train on."""
    best = sorted(examples, key=lambda e: -(e.speedup or 0.0))
    seen: set[str] = set()
    kept: dict[str, list[Example]] = {split: [] for split in SPLITS}
    count: dict[tuple[str, str], int] = {}
    for example in best:
        key = digest([example.task_id, example.kind, without_header(example.reply)])
        place = (example.task_id, example.kind)
        if key in seen or (per_task is not None and count.get(place, 0) >= per_task):
            continue
        seen.add(key)
        count[place] = count.get(place, 0) + 1
        kept[held_out.split(example.composition, example.family, example.size)].append(example)
    if not kept[TRAIN]:
        raise ConfigError(
            f"none of {len(best)} verified kernels is left to train on: give runs with winners, or "
            "hold out less"
        )
    return DatasetDict(
        {name: Dataset.from_list([asdict(e) for e in rows]) for name, rows in kept.items() if rows}
    )


def save_dataset(dataset: DatasetDict, folder: Path) -> None:
    """Under another name first: a folder of that name is complete."""
    refuse_existing(folder)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    disable_progress_bars()  # Three of them, also into a file.
    dataset.save_to_disk(partial)
    os.replace(partial, folder)


def refuse_existing(folder: Path) -> None:
    """Raises ConfigError where no data set can be written."""
    if folder.exists():
        raise ConfigError(f"{folder}: exists already; name another folder")


def load_examples(folder: Path) -> list[Example]:
    """Those to train on; raises ConfigError where the folder holds no such data."""
    try:
        found = load_from_disk(str(folder))
    # Of files that say otherwise than they did, and of no rows, its reader raises the latter.
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = "damaged" if (folder / "dataset_dict.json").is_file() else "no"
        raise ConfigError(
            f"{folder}: {what} training data; `warpsmith data examples` makes it"
        ) from error
    if not isinstance(found, DatasetDict) or TRAIN not in found:
        raise ConfigError(f"{folder}: has no split {TRAIN!r}")
    wanted = {f.name for f in fields(Example)}
    if set(found[TRAIN].column_names) != wanted:
        raise ConfigError(
            f"{folder}: made by another version of `warpsmith data examples`; make it again"
        )
    rows = list(found[TRAIN])
    wrong = next((number for number, row in enumerate(rows) if not _is_example(row)), None)
    if wrong is not None:
        raise ConfigError(
            f"{folder}: row {wrong} of {TRAIN} is no example; `warpsmith data examples` makes it "
            "again"
        )
    examples = [Example(**row) for row in rows]
    return [replace(e, messages=[Message(**m) for m in e.messages]) for e in examples]


def _is_example(row: Mapping[str, Any]) -> bool:
    """Whether it has text where an Example has."""
    texts, messages = [row[f.name] for f in fields(Example) if f.type == "str"], row["messages"]
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        return False
    texts += [message.get(key) for message in messages for key in ("role", "content")]
    return bool(messages) and all(isinstance(text, str) for text in texts)


def plainly(attempt: Attempt) -> Attempt:
    """As a policy's own attempts will look in its prompts."""
    candidate = attempt.proposal.candidate
    plainer = replace(candidate, source=plain(candidate.source))
    return replace(attempt, proposal=replace(attempt.proposal, candidate=plainer))


def _speed(attempt: Attempt) -> float | None:
    speedup = attempt.evaluation.speedup
    return None if speedup is None else speedup.low
