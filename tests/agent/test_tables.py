"""No terminal is so narrow that a table cuts a figure or a verdict."""

import io

import pytest
from rich.console import Console

from agent.journals.journal import Journal
from agent.journals.outcome import Stage, TaskReport, reports
from agent.views.console import PLAIN_WIDTH, fitting, widened
from agent.views.tables import FIGURE_WIDTH, final_table, live_table
from tests.agent.scripts import campaign, script

LONG = "scaled_gelu_residual"
SOURCES = {
    LONG: [script(1, speedup=12.34), script(2, speedup=2.0)],
    "slow": [script(1, speedup=0.7)],
    "wrong": [script(1, status="WRONG_VALUE")],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskReport, ...]:
    folder = tmp_path_factory.mktemp("run")
    campaign(folder, SOURCES)
    with Journal(folder, read_only=True) as journal:
        return reports(journal)


def printed(make, found, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    wide, narrow = (make(found, "title", narrow=narrow) for narrow in (False, True))
    console.print(fitting(console, wide, narrow))
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "kernels_apart"), [(70, False), (80, False), (130, True)])
def test_the_final_table_tells_every_figure_and_verdict_whole(found, width, kernels_apart):
    text = printed(final_table, found, width)
    for report in found:
        assert report.verdict in text
        for figure in filter(None, (report.speedup, report.against_compile)):
            value, _, interval = str(figure).partition(" ")
            assert value in text
            assert interval in text
    assert "tried" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert ("best kernel" in text) == kernels_apart


@pytest.mark.parametrize(("width", "all_told"), [(70, False), (80, False), (130, True)])
def test_the_live_table_leaves_out_what_is_secondary(found, width, all_told):
    text = printed(live_table, found, width)
    assert all(str(r.speedup) in text and r.stage in text for r in found if r.speedup)
    assert "2/2" in text
    assert "…" not in text
    assert ("vs compile" in text) == all_told
    assert width < 80 or len(text.splitlines()) == 5 + len(found)  # a line a task


def test_a_live_table_keeps_its_form_when_the_figures_come(found):
    waiting = [TaskReport(report.task_id, Stage.WAITING) for report in found]
    before, after = (printed(live_table, rows, 120) for rows in (waiting, found))
    assert ("vs compile" in before) == ("vs compile" in after)
    assert max(len(str(report.speedup)) for report in found) <= FIGURE_WIDTH


@pytest.mark.parametrize(
    ("columns", "width"), [("", PLAIN_WIDTH), ("0", PLAIN_WIDTH), ("x", PLAIN_WIDTH), ("200", 200)]
)
def test_what_goes_to_no_terminal_is_as_wide_as_columns_says_or_wide(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert widened(Console(file=io.StringIO(), width=40)).width == width


def test_columns_does_not_decide_over_a_terminals_own_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert widened(Console(file=io.StringIO(), width=40, force_terminal=True)).width == 40
