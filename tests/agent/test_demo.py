"""The recorded campaign that ships with the project: what `make demo` shows."""

from __future__ import annotations

from pathlib import Path

from agent.journals.journal import FILE, Journal
from agent.journals.recorded import Purpose
from agent.replay import replay_run
from agent.report.campaign import campaign_page
from sandbox.types import Status

DEMO = Path(__file__).parents[2] / "benchmarks" / "demo"
MOST_BYTES = 2_000_000


def test_the_demo_is_decided_again_as_it_was(tmp_path: Path) -> None:
    result, differences = replay_run(DEMO, "again", tmp_path)
    assert differences == []
    assert {row.verdict for row in result.tasks} == {"win"}
    with Journal(tmp_path / "again", read_only=True) as journal:
        assert journal.replays() == "demo"


def test_a_cheat_that_led_its_search_was_caught_when_it_was_confirmed() -> None:
    assert (DEMO / FILE).stat().st_size <= MOST_BYTES
    with Journal(DEMO, read_only=True) as journal:
        assert journal.replays() is None
        records = journal.proposals("builtin/group_norm")
        (caught,) = [r for r in records if r.confirmation and r.proposal.proposer == "red-team"]
        purposes = {m.purpose for m in journal.measurements(caught.proposal.candidate.id)}
    assert caught.evaluation is not None
    assert caught.evaluation.status is Status.PASSED
    assert caught.confirmation is not None
    assert caught.confirmation.status is Status.WRONG_VALUE
    assert purposes == {Purpose.SEARCH, Purpose.CONFIRM}


def test_its_report_names_what_was_caught() -> None:
    with Journal(DEMO, read_only=True) as journal:
        page = campaign_page(journal)
    assert {(c.task_id, c.late) for c in page.caught} == {
        ("builtin/group_norm", False),
        ("builtin/group_norm", True),
    }
    assert any(c.detail.startswith("when confirmed: timed rounds") for c in page.caught)
