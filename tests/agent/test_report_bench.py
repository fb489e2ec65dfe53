"""What a report says of a bench: figures over the whole suite, by first samples."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agent.report.find import page_of, write_report
from agent.report.page import State
from agent.report.render import html, markdown
from kernelbench.bench import Bench
from kernelbench.bench_view import report_view
from kernelbench.comparison import read_bench
from kernelbench.metrics import AT_LEAST_BEST
from kernelbench.results import EVALUATIONS, REFERENCES, Reference, append_record
from kernelbench.submissions import Submission
from sandbox.errors import ConfigError
from sandbox.figures import Baseline, Interval
from sandbox.types import Candidate, EvalConfig, Language, Status, Task
from tests.agent.synthetic_run import REFERENCE
from tests.kernelbench.bench_records import HERE, row


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """Three kernels of a suite of four, as a bench that ended would leave them."""
    names = ("1_a", "2_b", "3_c", "4_d")
    tasks = [Task(f"kernelbench/level1/{n}", REFERENCE.format(name=n), "cuda") for n in names]
    scoring = Bench(
        tasks, [], EvalConfig(), HERE, tmp_path / "scored", {"input": "k", "suite": "s"}
    )
    rows = [
        row(tasks[0].id, 2.0),
        row(tasks[1].id, 0.9),
        row(tasks[2].id, status=Status.REWARD_HACK),
    ]
    for each in rows:
        append_record(scoring.folder / EVALUATIONS, each)
    scoring.rows = {(each.task_id, *each.key[1:]): each for each in rows}
    scoring.write()
    record = json.loads((scoring.folder / "summary.json").read_text())
    (scoring.folder / "summary.json").write_text(json.dumps(record | {"config_id": "config"}))
    return scoring.folder


def test_a_bench_is_reported_over_its_whole_suite(bench: Path) -> None:
    page, folder = page_of(str(bench))
    assert (page.kind, folder) == ("bench", bench)
    assert page.tiles[0].value == f"{1.8 ** (1 / 4):.2f}x"
    best = page.tiles[1]  # 0.72 against B* is 1.0 in it
    assert (best.label, best.value) == (AT_LEAST_BEST, f"{1.6 ** (1 / 4):.2f}x")
    assert [row.state for row in page.rows] == [State.WIN, State.EVEN, State.FAILED]
    assert page.fast[0].points[0] == (0.0, 0.5)
    assert [curve.name for curve in page.fast] == ["scored", "torch.compile, 2 of 4 tasks"]
    assert page.caught[0].task_id == "kernelbench/level1/3_c"
    assert f'<th class="n">{AT_LEAST_BEST}</th>' in html(page, "")


def test_one_failed_baseline_is_said_at_every_figure_against_b_star_and_blanks_none(
    tmp_path: Path,
) -> None:
    tasks = [Task(f"kernelbench/level{n}/1_a", "# a", "cuda") for n in (1, 2)]
    kernels = [Candidate(task.id, Language.TRITON, "# k") for task in tasks]
    for task, kernel, compiled in zip(tasks, kernels, (1.25, None), strict=True):
        found = row(task.id, 2.0, compiled=compiled, task_hash=task.hash)
        ids = {"candidate_id": kernel.id, "config_id": EvalConfig().id}
        failed = () if compiled else (Baseline("compile", None, None, "it failed"),)
        kept = replace(found.evaluation, baselines=(*found.evaluation.baselines, *failed), **ids)
        append_record(tmp_path / EVALUATIONS, replace(found, evaluation=kept))
    given = [Submission(kernel, 0, "k.py") for kernel in kernels]
    report = Bench(tasks, given, EvalConfig(), HERE, tmp_path, {"input": "k"}).write()
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(report_view(report))
    text = console.export_text()
    assert (
        text.count("1.60x, 1 task left out") == 4
    )  # all and only kernels, over both kinds of mean
    assert "B*, 1 task left out" in text
    page, _ = page_of(str(tmp_path))
    best = page.tiles[1]
    assert (best.value, best.interval) == ("1.60x", None)
    assert "1 task left out" in best.note
    assert list(page.fast_table) == ["eager", "B*, 1 task left out"]
    assert ["1 task left out" in subset[-1] for subset in page.subsets] == [False, False, True]


def test_a_bench_of_several_samples_says_pass_at_k_and_names_tasks_without_a_kernel(
    tmp_path: Path,
) -> None:
    tasks = [Task(f"kernelbench/level1/{n}", f"# {n}", "cuda") for n in ("1_a", "2_b")]
    kernel = Candidate(tasks[0].id, Language.TRITON, "# k")
    given = [Submission(kernel, n, "k.py") for n in range(2)]
    scoring = Bench(tasks, given, EvalConfig(), HERE, tmp_path / "several", {})
    for sample, speedup in enumerate((2.0, None)):
        found = row(tasks[0].id, speedup, sample=sample)
        ids = {"candidate_id": kernel.id, "config_id": EvalConfig().id}
        found = replace(found, task_hash=tasks[0].hash, evaluation=replace(found.evaluation, **ids))
        append_record(scoring.folder / EVALUATIONS, found)
    about = {"input": "k", "suite": "'my suite'", "only": "'1_*' '2_*'"}
    Bench(tasks, given, EvalConfig(), HERE, scoring.folder, about).write()
    page, _ = page_of(str(scoring.folder))
    assert "bench k --suite 'my suite' --only '1_*' --only '2_*'" in page.commands[0][1]
    [tile] = [tile for tile in page.tiles if tile.label == "pass@1"]
    assert (tile.value, "@2 0.50" in tile.note) == ("0.25", True)
    assert [(r.name, r.verdict) for r in page.rows] == [("1_a", "faster"), ("2_b", "no kernel")]
    # The same folder for the other task: what it was used for before is on no page.
    Bench(tasks[1:], [], EvalConfig(), HERE, scoring.folder, {}).write()
    reference = Reference(tasks[1].id, tasks[1].hash, EvalConfig().id, HERE, 2.0)
    append_record(scoring.folder / REFERENCES, reference)
    Bench(tasks[1:], [], EvalConfig(), HERE, scoring.folder, {}).write()
    page, _ = page_of(str(scoring.folder))
    assert [row.name for row in page.rows] == ["2_b"]


def test_a_task_has_its_baselines_also_where_its_first_sample_failed(tmp_path: Path) -> None:
    """So that the page's curve is over the tasks that the summary's figure is over."""
    task = Task("kernelbench/level1/1_a", "# a", "cuda")
    kernel = Candidate(task.id, Language.TRITON, "# k")
    for sample, speedup in enumerate((None, 2.0)):
        found = row(task.id, speedup, sample=sample, task_hash=task.hash)
        ids = {"candidate_id": kernel.id, "config_id": EvalConfig().id}
        kept = replace(found, evaluation=replace(found.evaluation, **ids))
        append_record(tmp_path / EVALUATIONS, kept)
    given = [Submission(kernel, n, "k.py") for n in range(2)]
    report = Bench([task], given, EvalConfig(), HERE, tmp_path, {"input": "k"}).write()
    [shown] = page_of(str(tmp_path))[0].rows
    assert (report.baselines["compile"].tasks, shown.baselines) == (1, {"compile": 1.25})
    assert (shown.state, shown.speedup) == (State.FAILED, None)


def test_a_task_with_samples_left_is_under_way_and_in_no_figure(tmp_path: Path) -> None:
    tasks = [Task(f"kernelbench/level1/{n}", f"# {n}", "cuda") for n in ("1_a", "2_b")]
    kernels = [Candidate(task.id, Language.TRITON, "# k") for task in tasks]
    given = [Submission(kernel, n, "k.py") for kernel in kernels for n in range(2)]
    for task, kernel, speedup, samples in zip(
        tasks, kernels, (2.0, None), ((0, 1), (1,)), strict=True
    ):
        for sample in samples:
            found = row(task.id, speedup, sample=sample, task_hash=task.hash)
            ids = {"candidate_id": kernel.id, "config_id": EvalConfig().id}
            found = replace(found, evaluation=replace(found.evaluation, **ids))
            append_record(tmp_path / EVALUATIONS, found)
    Bench(tasks, given, EvalConfig(), HERE, tmp_path, {"input": "k"}).write()
    page, _ = page_of(str(tmp_path))
    assert [(r.name, r.state) for r in page.rows] == [("1_a", State.WIN), ("2_b", State.RUNNING)]
    assert page.fast[0].points == [(0.0, 1.0), (2.0, 0.0)]
    assert {found.task_id for found in read_bench(tmp_path)[0]} == {tasks[0].id}


def test_a_bench_without_kernels_shows_its_baselines(tmp_path: Path) -> None:
    tasks = [Task(f"kernelbench/level1/{n}", f"# {n}", "cuda") for n in ("1_a", "2_b")]
    about = {"input": "", "suite": "s"}
    scoring = Bench(tasks, [], EvalConfig(), HERE, tmp_path / "baselines", about)
    for task, ratio in zip(tasks, (2.0, 0.5), strict=True):
        found = (Baseline("compile", 1.0, Interval(ratio, 0.9 * ratio, 1.1 * ratio)),)
        reference = Reference(task.id, task.hash, EvalConfig().id, HERE, ratio, found)
        append_record(scoring.folder / REFERENCES, reference)
    scoring = Bench(tasks, [], EvalConfig(), HERE, scoring.folder, about)
    scoring.write()
    page, _ = page_of(str(scoring.folder))
    shown = {(row.task_id, row.verdict, row.best_ms) for row in page.rows}
    assert shown == {
        (tasks[0].id, "fastest: compile", 1.0),
        (tasks[1].id, "no faster baseline", None),
    }
    assert [(t.label, t.value) for t in page.tiles] == [("compile", "1.00x")]
    assert "no kernels" in page.subtitle
    assert "fastest: compile" in markdown(page)
    assert "1_a" in html(page, "")


def test_a_bench_without_kernels_or_baselines_is_a_page_too(tmp_path: Path) -> None:
    task = Task("kernelbench/level1/1_a", "# a", "cuda")
    for _ in range(2):
        Bench([task], [], EvalConfig(), HERE, tmp_path, {"input": "", "suite": "s"}).write()
        reference = Reference(task.id, task.hash, EvalConfig().id, HERE, None, detail="hangs")
        append_record(tmp_path / REFERENCES, reference)
    page, _ = page_of(str(tmp_path))
    assert page.tiles == ()
    assert "1_a" in html(page, "")


def test_a_bench_whose_name_is_not_utf_8_is_a_page_too(tmp_path: Path) -> None:
    task = Task("file/caf\udce9", "# a", "cuda")
    for _ in range(2):
        bench = Bench(
            [task], [], EvalConfig(), HERE, tmp_path / "caf\udce9", {"input": "caf\udce9"}
        )
        bench.write()
        timed = (Baseline("compile", 1.0, Interval(2.0, 1.9, 2.1)),)
        reference = Reference(task.id, task.hash, EvalConfig().id, HERE, 2.0, timed)
        append_record(bench.folder / REFERENCES, reference)
    written = write_report(str(bench.folder), None, markdown=True)
    assert "**caf⟨U+DCE9⟩**" in written.read_text(encoding="utf-8")


def test_a_campaign_that_won_nothing_is_scored_as_failures(tmp_path: Path) -> None:
    tasks = [Task(f"builtin/{name}", f"# {name}", "cpu") for name in ("relu", "softmax")]
    Bench(tasks, [], EvalConfig(), HERE, tmp_path, {"input": "first"}, empty=True).write()
    page, _ = page_of(str(tmp_path))
    assert [(tile.label, tile.value) for tile in page.tiles] == [
        ("against eager", "1.00x"),
        (AT_LEAST_BEST, "1.00x"),
        ("correct", "0 of 2"),
    ]
    assert [(row.name, row.verdict) for row in page.rows] == [
        ("relu", "no kernel"),
        ("softmax", "no kernel"),
    ]


def test_a_bench_of_a_run_of_kernelbenchs_is_found_by_its_name(
    bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.parent)
    (bench.parent / "runs" / bench.name).mkdir(parents=True)  # its generations, and no journal
    (bench.parent / "bench").mkdir()
    bench.rename(Path("bench", bench.name))
    page, folder = page_of(bench.name)
    assert (page.kind, folder) == ("bench", Path("bench", bench.name))


def test_another_bench_is_a_curve_beside(bench: Path) -> None:
    page, _ = page_of(str(bench), [bench])
    assert page.fast[-1].points == page.fast[0].points


def test_a_bench_whose_summary_is_cut_short_is_one_line(bench: Path) -> None:
    (bench / "summary.json").write_text('{"schema_version": 1, "ta')
    with pytest.raises(ConfigError, match=r"summary\.json: not a bench's summary"):
        page_of(str(bench))
