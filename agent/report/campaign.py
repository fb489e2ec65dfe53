"""A page from a campaign's journal, finished or under way: what it found, and how.

The headline counts a task's confirmed win, measured after it was selected, and 1.0 for every other
task: eager would be kept there. So it is what `warpsmith bench` says of the same run's winners.
Figures of the search alone (best so far) are selected ones, and called so.
"""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent.config import protocol_of, validate
from agent.confirm import promising
from agent.journals.audit import audit
from agent.journals.journal import COMMAND, Journal
from agent.journals.outcome import Stage, report
from agent.journals.recorded import Recorded
from agent.journals.spending import Spending, total
from agent.journals.timings import EVENT, call_lines, device_name, evaluations, pulse_of
from agent.learner import LEARN
from agent.report.details import Allowance, pack, task_details
from agent.report.figures import (
    baseline_curves,
    by_stage,
    dollars,
    duration,
    fast_table,
    headline_tiles,
)
from agent.report.history import Step, progress, steps, training
from agent.report.page import Caught, Curve, Page, Row, State, Tile, counted, fast_curve
from agent.report.rows import row_of
from agent.views.progress import NO_MODEL
from kernelbench.metrics import Score, Summary, score_of, summarise
from kernelbench.submissions import TRANSDUCTIVE
from sandbox.errors import ConfigError
from sandbox.types import EvalConfig, Status, Task
from sandbox.words import number_of, visible


@dataclass
class Gathered:
    """What is kept of each task while the next is read: its candidates are not."""

    rows: list[Row] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    caught: list[Caught] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds."""
    devices: Counter[str] = field(default_factory=Counter)
    proposers: Counter[str] = field(default_factory=Counter)
    environments: Counter[tuple[tuple[str, str], ...]] = field(default_factory=Counter)
    spent: Spending = field(default_factory=Spending)
    left: Allowance = field(default_factory=Allowance)


def campaign_page(journal: Journal, references: Sequence[Curve] = ()) -> Page:
    """Everything the journal says now; `references` are further fast_p curves to draw."""
    found = Gathered()
    for number, task in enumerate(journal.tasks()):
        _gather(found, number, task, journal)
    counted_ids = [r.task_id for r in found.rows if r.state is not State.LEFT_OUT]
    summary = summarise(counted_ids, found.scores) if counted_ids else None
    config = journal.last_start() or {}
    telling, others = training(journal)
    return Page(
        title=journal.folder.name,
        kind="campaign",
        subtitle=_subtitle(found, config, journal),
        notices=_notices(found, config),
        tiles=_tiles(found, summary, journal),
        rows=tuple(found.rows),
        fast=(*_fast(found.rows, found.scores), *references),
        fast_table=fast_table(summary),
        progress=progress(found.steps, len(counted_ids)),
        statuses=dict(found.statuses.most_common()),
        stages=_stages(found, journal),
        time_notes=_time_notes(journal),
        training=telling,
        training_more=others,
        caught=tuple(found.caught),
        environment=dict(found.environments.most_common(1)[0][0]) if found.environments else {},
        commands=_commands(journal),
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        details=found.details,
        footnotes=FOOTNOTES,
    )


FOOTNOTES = (
    "A win is confirmed: measured again after it was selected, in at least three fresh pairs of "
    "processes, on inputs the kernel had never seen, and in agreement with the search.",
    "The headline is the geometric mean over all tasks; a task without a confirmed win counts 1.0. "
    "Its interval is a bootstrap over tasks (95 %, 10 000 resamples, fixed seed). B* is the "
    "fastest of eager and the baselines timed beside it; in the headline a win that is slower than "
    "B* counts 1.0 against it: B* would be kept.",
    "Best so far follows single measurements by which candidates were selected: it flatters, and "
    "only the confirmed figures are results.",
)


def _gather(found: Gathered, number: int, task: Task, journal: Journal) -> None:
    records = journal.proposals(task.id)
    stage, _, reason = (journal.last_event("stage", task.id) or Stage.WAITING).partition(" ")
    known = report(task.id, Stage(stage), records, budget=len(records), reason=reason)
    best = None if known.best is None else known.best.proposal.candidate.id
    audited = None
    if known.best is not None and best is not None and promising(known.best.evaluation):
        audited = audit(known, task.hash, records, journal.measurements(best))
    doubts = 0 if audited is None else len(audited.doubts)
    found.rows.append(row_of(known, records, journal.measured(task.id), doubts))
    if known.confirmed and known.confirmation is not None:
        found.scores.append(score_of(task.id, 0, known.confirmation))
    details = task_details(task, records, audited, best, found.left)
    found.details.append(pack(details))
    found.spent += total(records)
    found.steps += steps(number, records)
    found.caught += _caught(records)
    # Replies that came by one request have its seconds alike.
    requests = {(r.round, r.proposal.prompt, r.proposal.usage.seconds) for r in records}
    _add(found.stages, {"proposing": sum(seconds for _, _, seconds in requests)})
    for record in records:
        found.proposers[record.proposal.proposer] += 1
        if record.evaluation is not None:
            found.statuses[record.evaluation.status.value] += 1
    for evaluation in evaluations(records):
        found.devices[device_name(evaluation)] += 1
        found.environments[tuple(sorted(evaluation.environment.items()))] += 1
        _add(found.stages, evaluation.seconds)


def _add(sums: dict[str, float], seconds: Mapping[str, float]) -> None:
    for stage, value in seconds.items():
        if stage != "total":
            sums[stage] = sums.get(stage, 0.0) + value


WRONG = (Status.WRONG_VALUE, Status.WRONG_SHAPE, Status.WRONG_DTYPE)


def _caught(records: Sequence[Recorded]) -> list[Caught]:
    caught = []
    for place, record in enumerate(records):
        found = record.evaluation
        for each in (found, record.confirmation):
            if each is None:
                continue
            late = each is not found and each.status in WRONG
            if late or each.status is Status.REWARD_HACK:
                candidate = record.proposal.candidate
                layers = tuple(str(e.layer) for e in each.suspicions)
                detail = visible(f"when confirmed: {each.detail}" if late else each.detail)
                caught.append(Caught(candidate.task_id, candidate.id, place, detail, layers, late))
                break
    return caught


def _fast(rows: Sequence[Row], scores: Sequence[Score]) -> list[Curve]:
    """Of what the run found, of the search alone while that is more, and of the baselines."""
    counting = [r for r in rows if r.state is not State.LEFT_OUT]
    confirmed = {s.task_id: s.speedup for s in scores}
    curves = [fast_curve("confirmed wins", [confirmed.get(r.task_id) for r in counting])]
    correct = [None if r.speedup is None else r.speedup.value for r in counting]
    if sum(c is not None for c in correct) > len(confirmed):
        curves.append(fast_curve("best correct kernels", correct))
    return curves + baseline_curves(counting, len(counting))


def _tiles(found: Gathered, summary: Summary | None, journal: Journal) -> tuple[Tile, ...]:
    tiles = list[Tile]()
    if summary is not None:
        note = (
            f"geometric mean over {number_of(summary.tasks, 'task')}, 1.0 without a confirmed win"
        )
        tiles += headline_tiles(summary, note)
    states = Counter(row.state for row in found.rows)
    wins = states[State.WIN] + states[State.APART]
    others = [
        (states[State.APART], "not by a kernel"),
        (states[State.CLAIM], "not confirmed"),
        (states[State.EVEN], "no faster"),
        (states[State.FAILED], "none correct"),
        (states[State.UNTRIED], "not tried"),
        (states[State.RUNNING], "under way"),
    ]
    tiles.append(Tile("confirmed wins", f"{wins} of {len(found.rows)}", counted(others)))
    tried = sum(found.statuses.values())
    passed = found.statuses[Status.PASSED.value]
    late = sum(each.late for each in found.caught)
    cheats = len(found.caught) - late
    parts = [(passed, "correct"), (cheats, "caught cheating"), (late, "refused when confirmed")]
    caught = counted(parts)
    tiles.append(Tile("candidates", f"{tried:,}", caught))
    tiles.append(_cost(found.spent, journal))
    return tuple(tiles)


def _cost(spent: Spending, journal: Journal) -> Tile:
    """Money where it is known, else time."""
    wall_s = _wall_seconds(journal)
    parts = [f"{duration(spent.lane_seconds)} on devices"]
    if spent.replies:
        tokens = spent.prompt_tokens + spent.completion_tokens
        parts.append(f"{number_of(spent.replies, 'reply')}, {tokens:,} tokens")
    if spent.usd is not None:
        return Tile("cost", dollars(spent.usd), ", ".join([duration(wall_s), *parts]))
    label = "time" if journal.replays() is None else "replayed in"
    return Tile(label, duration(wall_s), ", ".join(parts))


def _wall_seconds(journal: Journal) -> float:
    """Over all calls of the run."""
    return float(sum(json.loads(pulse)["elapsed_s"] for pulse in journal.last_of_calls(EVENT)))


def _subtitle(found: Gathered, config: Mapping[str, Any], journal: Journal) -> tuple[str, ...]:
    devices = [f"{name}" for name, _ in found.devices.most_common(3)]
    who = [NO_MODEL if p == "features" else p for p, _ in found.proposers.most_common(3)]
    strategy = (config.get("strategy") or {}).get("kind", "")
    protocol = _protocol(config.get("evaluation") or {})
    span = journal.span()
    asked = {p for p in found.proposers if p != "features"}
    return tuple(
        filter(
            None,
            (
                " + ".join(devices),
                " + ".join(map(visible, who)),
                f"strategy {strategy}" if asked and strategy else "",
                f"protocol {protocol}" if protocol else "",
                "" if span is None else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(span[0])),
            ),
        )
    )


def _protocol(evaluation: Mapping[str, Any]) -> str:
    """In words; of a run whose settings this version no longer reads what its preset was called."""
    try:
        return protocol_of(validate(EvalConfig, evaluation, "evaluation")) if evaluation else ""
    except ConfigError:
        return str(evaluation.get("preset", ""))


def _notices(found: Gathered, config: Mapping[str, Any]) -> tuple[str, ...]:
    rows = found.rows
    running = sum(row.state is State.RUNNING for row in rows)
    said = []
    if not rows:
        said.append("Nothing is recorded yet: the run has begun and no task is prepared.")
    if running:
        said.append(
            f"Partial: {running} of {number_of(len(rows), 'task')} not finished; a task counts 1.0 "
            "until its win is confirmed."
        )
    if config.get("learn"):
        said.append("Learned here: the policy learned from the tasks that these figures are about.")
    taught = sorted(name for name in found.proposers if TRANSDUCTIVE in name)
    if taught:
        said.append(
            f"Transductive: {', '.join(taught)} was taught tasks that others are scored on."
        )
    return tuple(said)


def _stages(found: Gathered, journal: Journal) -> dict[str, float]:
    events = journal.seconds_by_kind()
    extra = {"prepare": events.get("prepare", 0.0), "learning": events.get(LEARN, 0.0)}
    return by_stage(found.stages | {k: s for k, s in extra.items() if s}, first=["proposing"])


def _time_notes(journal: Journal) -> tuple[str, ...]:
    """Of every call that evaluated anything."""
    calls = [pulse_of(json.loads(pulse)) for pulse in journal.last_of_calls(EVENT)]
    if not any(pulse.elapsed_s for pulse in calls):
        return ()
    if (replayed := journal.replays()) is not None:
        return (f"A replay of {replayed}: evaluations, and their seconds, are that run's.",)
    return tuple(call_lines(calls))


def _commands(journal: Journal) -> tuple[tuple[str, str], ...]:
    name = shlex.quote(journal.folder.name)
    given = [
        ("started as" if number == 0 else "gone on as", visible(_typed(json.loads(command))))
        for number, command in enumerate(dict.fromkeys(journal.events(COMMAND)))
    ]
    return (
        *given,
        ("the same again, by another name", f"warpsmith optimize --config runs/{name}/config.yaml"),
        ("its decisions, without a device", f"warpsmith replay {name}"),
        ("its kernels", f"warpsmith export {name} --to kernels"),
    )


def _typed(words: Sequence[str]) -> str:
    """A command line, with the console script for whatever path it was started by."""
    name = Path(words[0]).name
    return shlex.join(["warpsmith" if name == "warpsmith.py" else name, *words[1:]])
