"""What the view of one task needs: its candidates in full, compressed, read only when opened."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.journals.audit import Audit
from agent.journals.recorded import Recorded
from agent.learner import POLICY_VERSION
from agent.report.highlight import highlighted
from agent.report.texts import Texts
from sandbox.evidence import Weight
from sandbox.types import Evaluation, Task
from sandbox.words import visible

LEVEL = 6
"""Of gzip: 9 takes twice as long for 2 % less."""


@dataclass
class Allowance:
    """Characters of source that may still be highlighted on one page: lexing takes 3 us each."""

    lineage: int = 2_000_000
    """Of the best candidates and what they were made from, so that others leave them theirs."""
    others: int = 1_000_000

    def take(self, source: str, *, lineage: bool) -> bool:
        left = (self.lineage if lineage else self.others) - len(source)
        if left < 0:
            return False
        if lineage:
            self.lineage = left
        else:
            self.others = left
        return True


def pack(record: Mapping[str, Any]) -> str:
    """JSON, gzip, base64: a third of the characters, none of which means anything in HTML."""
    data = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii")


def unpack(text: str) -> dict[str, Any]:
    """What `pack` was given."""
    record: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(text)))
    return record


def task_details(
    task: Task, records: Sequence[Recorded], audit: Audit | None, best: str | None, left: Allowance
) -> dict[str, Any]:
    """JSON-ready; texts by their number in `texts`, candidates by their place in the task.

    `best` is the id of the candidate whose figures the table shows.
    """
    texts = Texts()
    first: dict[str, int] = {}
    for place, record in enumerate(records):
        first.setdefault(record.proposal.candidate.id, place)
    line = _line(best, records, first)
    wanted = {*line}
    marked = {}
    for place in [*line, *(p for p in first.values() if p not in wanted)]:
        source = records[place].proposal.candidate.source
        marked[place] = _marked(source, texts, left, lineage=place in wanted)
    reference = {
        "text": texts.add(task.source),
        "html": _marked(task.source, texts, left, lineage=True),
    }
    candidates = [
        _candidate(place, record, first, marked.get(place), texts)
        for place, record in enumerate(records)
    ]
    return {
        "id": task.id,
        "reference": reference,
        "dtype": task.dtype,
        "shapes": [shape.name for shape in task.shapes],
        "best": None if best is None else first[best],
        "lineage": line,
        "audit": None
        if audit is None
        else {"reasons": list(audit.reasons), "doubts": list(audit.doubts)},
        "candidates": candidates,
        "texts": texts.record(),
    }


def _line(best: str | None, records: Sequence[Recorded], first: Mapping[str, int]) -> list[int]:
    """The best candidate, its parents, theirs: places, breadth first, each once."""
    found: list[int] = []
    waiting = [best] if best is not None else []
    while waiting:
        place = first.get(waiting.pop(0))
        if place is not None and place not in found:
            found.append(place)
            waiting += records[place].proposal.parents
    return found


def _marked(source: str, texts: Texts, left: Allowance, *, lineage: bool) -> int | None:
    lines = highlighted(visible(source)) if left.take(source, lineage=lineage) else None
    return None if lines is None else texts.add_lines(lines)


def _candidate(
    place: int, record: Recorded, first: Mapping[str, int], marked: int | None, texts: Texts
) -> dict[str, Any]:
    """Keys whose value would be empty are left out."""
    proposal, usage = record.proposal, record.proposal.usage
    candidate = proposal.candidate
    values = {
        "n": place,
        "id": candidate.id,
        "round": record.round,
        "by": visible(proposal.proposer),
        "strategy": proposal.strategy,
        "language": candidate.language.value,
        "parents": [first[p] for p in proposal.parents if p in first],
        "version": proposal.features.get(POLICY_VERSION),
        "features": {str(k): v for k, v in proposal.features.items() if k != POLICY_VERSION},
        "same": first[candidate.id] if record.duplicate else None,
        "tokens": [usage.prompt_tokens, usage.completion_tokens] if proposal.reply else None,
        "usd": usage.cost_usd,
        "asked_s": usage.seconds or None,
        "source": texts.add(candidate.source),
        "html": marked,
        "prompt": _messages(proposal.prompt, texts),
        "reply": None if proposal.reply is None else texts.add(proposal.reply),
        "reward": None if record.reward is None else record.reward.value,
        "terms": []
        if record.reward is None
        else [[t.name, t.weight, t.value] for t in record.reward.terms],
        "search": None if record.evaluation is None else verdict(record.evaluation, texts),
        "confirm": None if record.confirmation is None else verdict(record.confirmation, texts),
    }
    return {key: value for key, value in values.items() if value not in (None, [], {}, "")}


def _messages(prompt: str | None, texts: Texts) -> list[list[Any]]:
    """Role and text of each message; a prompt that is no list of messages is one text."""
    if prompt is None:
        return []
    try:
        messages = json.loads(prompt)
        return [[str(m["role"]), texts.add(str(m["content"]))] for m in messages]
    except (ValueError, TypeError, KeyError):
        return [["", texts.add(prompt)]]


def verdict(evaluation: Evaluation, texts: Texts) -> dict[str, Any]:
    """Of one evaluation everything a reader may ask for."""
    timing, speedup = evaluation.timing, evaluation.speedup
    values = {
        "status": evaluation.status.value,
        "detail": visible(evaluation.detail),
        "speedup": None if speedup is None else [speedup.value, speedup.low, speedup.high],
        "ms": None if timing is None else timing.candidate_ms,
        "eager_ms": None if timing is None else timing.reference_ms,
        "noise": None if timing is None else timing.noise_floor,
        "floor_ms": None if timing is None else timing.floor_ms,
        "sets": None if timing is None else timing.sets,
        "pairs": []
        if timing is None
        else [[p.reference_ms, p.candidate_ms, p.rounds, p.voided] for p in timing.pairs],
        "baselines": [
            [b.name, None if b.speedup is None else b.speedup.value, visible(b.detail)]
            for b in evaluation.baselines
        ],
        "cases": [
            [c.name, c.passed, c.norm_error, c.bound, visible(c.detail)] for c in evaluation.cases
        ],
        "clean": [e.layer.value for e in evaluation.evidence if e.weight is Weight.CLEAN],
        "evidence": [
            [e.layer.value, e.weight.value, [visible(fact) for fact in e.facts]]
            for e in evaluation.evidence
            if e.weight is not Weight.CLEAN
        ],
        "kind": None if evaluation.kind is None else evaluation.kind.value,
        "precision": evaluation.precision,
        "parameters": evaluation.parameters,
        "walls": evaluation.environment.get("walls"),
        "seconds": {k: round(v, 4) for k, v in evaluation.seconds.items()},
        "logs": [
            [title, texts.add(text)]
            for title in ("build_log", "stdout", "stderr")
            if (text := getattr(evaluation, title).strip())
        ],
    }
    return {key: value for key, value in values.items() if value not in (None, [], {}, "")}
