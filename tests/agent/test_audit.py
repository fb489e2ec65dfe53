"""What an audit says of a run: the reasons and the doubts behind each winner."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent.confirm import upheld
from agent.engines.engine import LocalEngine
from agent.journals.audit import Measured, RunAudit, audit_run, doubts, measured_of, reasons
from agent.journals.journal import Journal, Measurement
from agent.journals.recorded import Purpose
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.proposing.scripted import scripted_evaluation
from agent.types import FIRST_TURN, Attempt, Proposal, Turn
from agent.views.audit_view import show_audit
from sandbox.building.build import build
from sandbox.evaluator import LocalEvaluator
from sandbox.figures import Interval
from sandbox.records import from_record, to_record
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task
from tests.agent.scripts import campaign, candidate, make_task, script

WINNER = script(3, speedup=2.5)
SOURCES = {
    "win": [script(1, speedup=1.5), script(2, status="WRONG_VALUE"), WINNER],
    "slow": [script(1, speedup=0.7)],
    "unsupported": [],
}
SCRIPTED_DOUBT = "walls: not recorded; full is what isolates"


def audited(folder: Path) -> RunAudit:
    with Journal(folder, read_only=True) as journal:
        return audit_run(journal)


def printed(audit: RunAudit, *, width: int = 200, **options: bool) -> str:
    terminal = width < 200
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    show_audit(console, audit, **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_terminal_is_so_narrow_that_a_figure_is_cut(tmp_path: Path, width: int) -> None:
    campaign(tmp_path / "run", SOURCES, proposals_per_round=1)
    audit = audited(tmp_path / "run")
    text = printed(audit, width=width, sources=False)
    [winner] = audit.audits
    for m in winner.measured:
        for words in (str(m.speedup), m.status, m.purpose, f"{m.cases_passed}/{m.cases}"):
            assert words in text
    assert all(name in text for name in ("norm error", "precision", "parameters", "eager ms"))
    assert "…" not in text


def test_a_terminal_breaks_lines_between_words_and_keeps_names_and_hashes_whole(
    tmp_path: Path,
) -> None:
    campaign(tmp_path / "run", SOURCES, proposals_per_round=1)
    audit = audited(tmp_path / "run")
    [winner] = audit.audits
    reason = "nothing against it from " + ", ".join(f"layer {i}" for i in range(30))
    audit = replace(audit, audits=(replace(winner, reasons=(reason,)),))
    lines = printed(audit, width=80, sources=False).splitlines()
    assert max(map(len, lines)) <= 80
    [first] = [i for i, line in enumerate(lines) if line.startswith("  + ")]
    after = [line for line in lines[first + 1 :] if line.startswith("    ")]
    assert " ".join([lines[first][4:], *(line[4:] for line in after)]) == reason
    cells = {cell for line in lines for cell in line.replace(",", " ").split()}
    for origin in winner.lineage:
        told = {origin.candidate_id, f"{origin.speedup:.2f}x", *origin.parents}
        assert told | {str(origin.prompt_sha256)[:16], *origin.strategy.split()} <= cells


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_of_a_source_is_cut(tmp_path: Path, width: int) -> None:
    campaign(tmp_path / "run", SOURCES)
    audit = audited(tmp_path / "run")
    source = "def forward(x):\n    return " + " + ".join(["x"] * 100) + "\n"
    audit = replace(audit, audits=(replace(audit.audits[0], source=source),))
    assert printed(audit, width=width).endswith(f"\n{source}")


def test_a_winner_is_shown_with_its_evaluations_origin_and_source(tmp_path: Path) -> None:
    campaign(tmp_path / "run", SOURCES, proposals_per_round=1)
    audit = audited(tmp_path / "run")
    [winner] = audit.audits
    assert (winner.task_id, winner.verdict) == ("test/win", "win")
    assert winner.candidate_id == candidate("win", WINNER).id
    assert [m.purpose for m in winner.measured] == ["search", "confirm"]
    assert winner.doubts == (SCRIPTED_DOUBT,)
    parent = candidate("win", script(1, speedup=1.5)).id
    assert [o.candidate_id for o in winner.lineage] == [winner.candidate_id, parent]
    prompt = hashlib.sha256(b"2 attempts so far").hexdigest()
    assert winner.lineage[0].prompt_sha256 == prompt
    assert winner.source_sha256 == hashlib.sha256(WINNER.encode()).hexdigest()
    assert audit.others == {"test/slow": "no win", "test/unsupported": "unsupported"}
    [triton] = audit.coverage
    assert (triton.tried, triton.passed, triton.wins) == (4, 3, 1)
    assert audit.statuses == {"PASSED": 3, "WRONG_VALUE": 1}
    text = printed(audit)
    for words in (
        winner.candidate_id,
        parent,
        prompt[:16],
        "2.50x [2.45, 2.55]",
        "confirm",
        WINNER,
    ):
        assert words.strip() in text, words


def test_sources_can_be_left_out(tmp_path: Path) -> None:
    campaign(tmp_path / "run", SOURCES)
    assert WINNER.splitlines()[1] not in printed(audited(tmp_path / "run"), sources=False)


def test_a_confirmation_that_disagrees_is_a_doubt(tmp_path: Path) -> None:
    campaign(tmp_path / "run", {"win": [WINNER]}, confirm=False)
    assert any("not confirmed" in d for d in audited(tmp_path / "run").audits[0].doubts)
    less = scripted_evaluation(candidate("win", WINNER), EvalConfig(), Status.PASSED, 2.0)
    with Journal(tmp_path / "run") as journal:
        journal.record_evaluation(make_task("win"), less, purpose=Purpose.CONFIRM)
    [winner] = audited(tmp_path / "run").audits
    assert "the confirmation gives 0.80 times the speedup of the search" in winner.doubts


def passed(speedup: float = 2.0, **changes: Any) -> dict[str, Any]:
    """The record of a scripted evaluation with walls."""
    found = scripted_evaluation(candidate("win", WINNER), EvalConfig(), Status.PASSED, speedup)
    record: dict[str, Any] = to_record(replace(found, environment={"walls": "full"}))
    return record | changes


def measured(*records: dict[str, Any], purposes: Sequence[str] = ("search", "confirm")):
    pairs = zip(purposes, records, strict=True)
    return [measured_of(Measurement(purpose, 0.0, record)) for purpose, record in pairs]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "WRONG_VALUE"}, "confirmation ended as WRONG_VALUE"),
        ({"environment": {"walls": "weak"}}, "walls: weak"),
        ({"environment": {"walls": "full", "gpu": "B"}}, "evaluations differ in gpu"),
        ({"parameters": "seed"}, "matched by seed"),
        (
            {"evidence": [{"layer": "tree", "weight": "suspicious", "facts": ["7 threads"]}]},
            "tree: 7",
        ),
        ({"evidence": [{"layer": "launch floor", "weight": "proof", "facts": []}]}, "launch floor"),
        ({"findings": [{"layer": "roof", "suspicious": True, "detail": "fast"}]}, "roof: fast"),
    ],
)
def test_each_weakness_of_the_confirmation_is_a_doubt(change: dict[str, Any], words: str) -> None:
    assert doubts(measured(passed(), passed())) == []
    assert any(words in d for d in doubts(measured(passed(), passed(**change))))


@pytest.mark.parametrize(("low", "pairs", "words"), [(0.9, 3, "reaches 1"), (1.9, 2, "2 process")])
def test_a_weak_figure_is_a_doubt(low: float, pairs: int, words: str) -> None:
    record = passed()
    record["timing"]["speedup"]["low"] = low
    record["timing"]["pairs"] = record["timing"]["pairs"][:pairs]
    assert any(words in d for d in doubts(measured(record, record)))


def interval(value: float, low: float, high: float) -> dict[str, float]:
    return to_record(Interval(value, low, high))


@pytest.mark.parametrize(
    ("search", "confirmation", "doubted"),
    [
        ((13.1, 11.9, 14.5), (9.2, 7.0, 12.2), False),
        ((2.0, 1.8, 2.2), (1.2, 1.1, 1.5), True),
    ],
)
def test_a_confirmation_is_doubted_where_it_would_not_have_been_accepted(
    search, confirmation, doubted
):
    records = [passed(), passed()]
    for record, figure in zip(records, (search, confirmation), strict=True):
        record["timing"] = record["timing"] | {"speedup": interval(*figure)}
    said = [d for d in doubts(measured(*records)) if "times the speedup of the search" in d]
    first, second = (from_record(Evaluation, record) for record in records)
    assert bool(said) is doubted
    assert upheld(first, second) is not doubted


def test_evidence_of_any_layer_is_shown_as_it_was_recorded() -> None:
    layers = [
        {"layer": "provenance", "weight": "clean", "facts": ["own kernels: 97 % of device time"]},
        {"layer": "flags", "weight": "noted", "facts": ["cudnn.benchmark: False -> True"]},
    ]
    found = measured(passed(), passed(evidence=layers, kind="custom kernel"))
    assert [e.layer for e in found[1].evidence] == ["provenance", "flags"]
    assert doubts(found) == []
    assert any("provenance, flags" in reason for reason in reasons(found))


def test_a_record_of_an_older_version_is_read_as_far_as_it_goes() -> None:
    old = {"status": "PASSED", "config_id": "c"}
    [found] = measured(old, purposes=["search"])
    assert isinstance(found, Measured)
    assert (found.speedup, found.pairs, found.evidence) == (None, 0, ())
    assert "not confirmed" in doubts([found])[0]
    assert doubts([]) == ["no evaluation is recorded"]


SLOW = """
import time

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        time.sleep(0.03)
        return torch.relu(x) + 2.0 * x


def get_inputs():
    return [torch.randn(7, 129)]


def get_init_inputs():
    return []
"""
"""Slow by sleeping, which a busy machine hardly changes."""
QUICK = SLOW.replace("class Model(", "class ModelNew(").replace("0.03", "0.003")
WRONG = QUICK.replace("2.0 * x", "2.1 * x")
REAL = EvalConfig(
    preset="test",
    baselines=(),
    rounds=4,
    batch_ms=90.0,
    max_sets=8,
    min_pairs=3,
    max_pairs=3,
    run_timeout_s=20,
    load_timeout_s=20,
)


@dataclass(frozen=True)
class Listed:
    """Proposes two PyTorch rewrites, one of them wrong."""

    name: str = "listed"
    wants_measured: bool = False

    def unsupported(self, task: Task) -> str | None:
        return None

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        sources = (WRONG, QUICK)[len(history) : len(history) + n]
        return [Proposal(Candidate(task.id, Language.TORCH, s), self.name) for s in sources]


@pytest.mark.slow
@pytest.mark.alone
def test_a_real_campaigns_winner_is_audited(tmp_path: Path) -> None:
    engine = LocalEngine(partial(LocalEvaluator, "cpu", cache_dir=tmp_path / "cache"), build)
    folder = tmp_path / "run"
    folder.mkdir()
    try:
        with Journal(folder) as journal:
            task = Task("test/slow", SLOW, "cpu")
            run_campaign([task], [Listed()], engine, journal, CampaignConfig(evaluation=REAL))
    finally:
        engine.close()
    audit = audited(folder)
    [winner] = audit.audits
    assert winner.verdict == "win (rewrite)", printed(audit)
    confirmation = winner.measured[-1]
    assert confirmation.purpose == "confirm"
    assert confirmation.pairs == 3
    assert confirmation.walls in ("full", "unprivileged", "weak")
    assert confirmation.cases == confirmation.cases_passed > 3
    assert confirmation.precision == "float32"
    assert any("every timed output was compared" in reason for reason in winner.reasons)
    assert not [d for d in winner.doubts if "confirmation ended" in d or "pairs" in d]
    assert audit.statuses == {"PASSED": 1, "WRONG_VALUE": 1}
    assert "sleep(0.003)" in printed(audit)
    json.dumps(to_record(audit))
