"""What a user sees: lines without a terminal, a table in one."""

import io
import json

import pytest
from rich.console import Console

from agent.journals.journal import Journal
from agent.journals.outcome import CampaignResult, Stage, TaskReport
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.proposing.scripted import scripted_evaluation
from agent.report.page import State
from agent.report.rows import state_of
from agent.views.progress import (
    CampaignView,
    Header,
    evaluation_lines,
    evaluation_record,
    report_record,
    show_result,
)
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import candidate, local_engine, make_task, proposer, script

SOURCES = {
    "win": [script(1, speedup=1.2), script(2, speedup=2.0)],
    "slow": [script(1, speedup=0.7)],
    "none": [],
}
HEADER = Header("first", "ray", 2, "features", "cpu")


def shown(folder, *, terminal: bool) -> tuple[str, list[str]]:
    """Everything printed, and the names of verdicts."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=150, color_system=None)
    engine = local_engine()
    tasks = [make_task(name) for name in SOURCES]
    with (
        Journal(folder) as journal,
        CampaignView(console, lambda: HEADER, [t.id for t in tasks], None) as view,
    ):
        config = CampaignConfig(proposals_per_round=1)
        result = run_campaign(tasks, [proposer(SOURCES)], engine, journal, config, view.update)
    engine.close()
    show_result(console, result, str(HEADER))
    return out.getvalue(), [row.verdict for row in result.tasks]


def test_equal_reasons_are_told_once_with_the_number_of_tasks():
    over = "max_seconds (1) is over"
    rows = [TaskReport(f"t/{i}", Stage.STOPPED, reason=over) for i in range(3)]
    rows += [TaskReport(f"t/{i}", Stage.UNSUPPORTED, reason="no rows") for i in (3, 4)]
    rows += [TaskReport("t/5", Stage.STOPPED, reason="its own"), TaskReport("t/6", Stage.DONE)]
    console = Console(file=io.StringIO(), width=150)
    show_result(console, CampaignResult(tuple(rows), 1.0, over), "header")
    lines = console.file.getvalue().splitlines()
    assert lines[-4:] == [
        f"3 tasks stopped: {over}",
        "2 tasks unsupported (t/3, t/4): no rows",
        "t/5: stopped: its own",
        "0 candidates, 0 wins, 1 s",
    ]


def test_the_log_of_a_stopped_campaign_tells_why_once():
    console = Console(file=io.StringIO(), width=150)
    with CampaignView(console, lambda: HEADER, ["a", "b", "c"], None) as view:
        view.update(TaskReport("a", Stage.STOPPED, reason="interrupted"))
        view.update(TaskReport("b", Stage.STOPPED, reason="interrupted"))
        view.update(TaskReport("c", Stage.STOPPED, tried=1, budget=3, reason="interrupted"))
    lines = console.file.getvalue().splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == ["a", "c"]
    assert [line.endswith("(interrupted)") for line in lines] == [True, False]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_server_or_a_kernel_says_cannot_steer_the_terminal(terminal):
    """An escape could erase a verdict, or write another one over it."""
    console = Console(file=io.StringIO(), width=150, force_terminal=terminal, color_system=None)
    said = "500: \x1b[2J\x1b[1;1Ht/1: win\x07\u202e"
    row = TaskReport("t/0", Stage.STOPPED, reason=said)
    with CampaignView(console, lambda: HEADER, ["t/0"], None) as view:
        view.update(row)
        view.note(said)
    show_result(console, CampaignResult((row,), 1.0, None), "header")
    text = console.file.getvalue()
    assert not any(character in text for character in ("\x1b[2J", "\x1b[1;1H", "\x07", "\u202e"))
    assert text.count("500: ⟨U+001B⟩[2J") >= 2


def test_a_live_view_ends_on_a_line_of_its_own_for_what_the_terminal_says_of_ctrl_c():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    with CampaignView(console, lambda: HEADER, ["a"], None) as view:
        view.note("drawn below this")
        drawn = console.file.getvalue()
    assert "waiting" in drawn
    assert drawn.endswith("\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_table_shows_every_task_with_intervals_and_verdict(tmp_path, terminal):
    text, verdicts = shown(tmp_path, terminal=terminal)
    assert verdicts == ["win", "no win", "unsupported"]
    for words in ("engine: ray, 2 lanes", "no model", "2.00x [1.96, 2.04]", "1.60x [1.53, 1.67]"):
        assert words in text
    assert "test/none: unsupported: scripted: the script has no line" in text
    assert "3 candidates, 1 win" in text


def test_what_passed_untimed_is_called_correct(tmp_path):
    config = CampaignConfig(EvalConfig(verify_only=True), confirm=False, search_figures=True)
    engine, task = local_engine(), make_task("win")
    with Journal(tmp_path) as journal:
        result = run_campaign([task], [proposer(SOURCES)], engine, journal, config)
    engine.close()
    [row] = result.tasks
    assert (row.verdict, state_of(row)) == ("2 correct, not timed", State.EVEN)


def test_a_fault_of_ours_is_told_and_no_verdict_on_kernels(tmp_path):
    engine, console = local_engine(), Console(file=io.StringIO(), width=150)
    sources = {"a": [script(i, status="SANDBOX_ERROR") for i in (1, 2)]}
    with Journal(tmp_path) as journal:
        result = run_campaign(
            [make_task("a")], [proposer(sources)], engine, journal, CampaignConfig()
        )
    engine.close()
    [row] = result.tasks
    assert (row.verdict, state_of(row)) == ("none judged", State.UNTRIED)
    show_result(console, result, "header")
    assert "test/a: 2 candidates not judged: scripted SANDBOX_ERROR" in console.file.getvalue()


def test_without_a_terminal_each_round_is_one_line(tmp_path):
    text, _ = shown(tmp_path, terminal=False)
    lines = [line for line in text.splitlines() if line.startswith("test/win:")]
    assert [line.split(",")[0] for line in lines[:2]] == [
        "test/win: round 1",
        "test/win: round 2",
    ]
    assert lines[2].startswith("test/win: win, 2/6 candidates, best 2.00x [1.96, 2.04] vs eager")


def test_one_lane_and_a_model_are_named_so():
    header = str(Header("r", "local", 1, "gpt-x", "cuda"))
    assert header == "run: r · engine: local, 1 lane · model: gpt-x · device: cuda"
    unstarted = str(Header("r", "ray", None, "features", "cpu"))
    assert unstarted == "run: r · engine: ray · no model · device: cpu"


def test_an_evaluation_as_json_has_status_speedup_and_interval_on_top():
    passed = scripted_evaluation(candidate("a", "x"), EvalConfig(), Status.PASSED, 2.0)
    record = json.loads(json.dumps(evaluation_record(passed)))
    assert (record["status"], record["speedup"]) == ("PASSED", 2.0)
    assert record["interval"] == pytest.approx([1.96, 2.04])
    failed = scripted_evaluation(candidate("a", "x"), EvalConfig(), Status.TIMEOUT, 2.0)
    assert evaluation_record(failed)["speedup"] is None
    assert evaluation_lines(failed)[1] == "scripted TIMEOUT"


def test_a_report_as_json_can_be_written(tmp_path):
    from agent.journals.outcome import reports

    shown(tmp_path, terminal=False)
    with Journal(tmp_path, read_only=True) as journal:
        records = json.loads(json.dumps([report_record(r) for r in reports(journal)]))
    assert [r["verdict"] for r in records] == ["win", "no win", "unsupported"]
    assert records[0]["best"]["source"] == SOURCES["win"][1]
