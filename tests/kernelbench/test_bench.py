"""A bench goes on where it stopped, reports what it has, and writes files that others read."""

import csv
import io
import json
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console

from agent.types import Measured
from kernelbench.bench import Bench
from kernelbench.bench_view import progress_line, reference_line, report_view
from kernelbench.comparison import read_bench
from kernelbench.metrics import figure
from kernelbench.results import (
    EVALUATIONS,
    REFERENCES,
    SUMMARY,
    Row,
    append_record,
    read_records,
    write_json,
)
from kernelbench.submissions import Submission
from sandbox.errors import ConfigError, InvalidReference, WarpsmithError
from sandbox.figures import Baseline, Interval
from sandbox.records import to_record
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Request, Status, Task
from tests.kernelbench.bench_records import HERE, row

TASKS = [
    Task(f"kernelbench/level1/{name}", f"# {name}", "cpu") for name in ("1_A", "2_B", "23_C", "9_D")
]
CONFIG = EvalConfig()


@dataclass
class ListedJudge:
    """Speedups by task number; others fail; "fault" is a fault of ours, "invalid" no task."""

    speedups: dict[str, float | str]
    asked: list[str] = field(default_factory=list)
    most: int = 99
    """Evaluations until it is told to end."""

    def evaluate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, Evaluation]]:
        for place, request in enumerate(requests):
            if len(self.asked) >= self.most:
                return
            name = request.task.id.rpartition("/")[2]
            self.asked.append(name)
            figure = self.speedups.get(name)
            if isinstance(figure, str):
                status = {"fault": Status.SANDBOX_ERROR, "invalid": Status.INVALID_REFERENCE}
                found = row(request.task.id, status=status[figure]).evaluation
                found = replace(found, detail=f"{request.task.id}: it says why")
            else:
                found = row(request.task.id, figure).evaluation
            ids = {"candidate_id": request.candidate.id, "config_id": request.config.id}
            yield place, replace(found, **ids)

    def prepare_many(
        self, tasks: Sequence[Task], config: EvalConfig
    ) -> Iterator[tuple[Task, Measured | WarpsmithError]]:
        for task in tasks:
            figure = self.speedups.get(task.id.rpartition("/")[2])
            invalid = InvalidReference(f"{task.id}: constant output")
            yield task, invalid if figure == "invalid" else Measured(estimate_ms=4.0)


def bench(folder: Path, names: str = "1_A 2_B 23_C", **changes) -> Bench:
    submissions = [
        Submission(Candidate(t.id, Language.TRITON, f"# kernel of {t.id}"), 0, "kernel.py")
        for t in TASKS
        if t.id.rpartition("/")[2] in names.split()
    ]
    given = {"tasks": TASKS, "config": CONFIG, "environment": HERE, "about": {"input": "x"}}
    return Bench(folder=folder, **{"submissions": submissions} | given | changes)


def test_a_second_call_goes_on_where_the_first_was_cut(tmp_path):
    first, judge = bench(tmp_path), ListedJudge({"1_A": 2.0, "23_C": 4.0}, most=2)
    first.run(judge)
    report = first.report()
    assert (judge.asked, report.waiting, report.all.tasks) == (["1_A", "2_B"], 1, 3)
    with (tmp_path / EVALUATIONS).open("a") as stream:
        stream.write('{"task_id": "kernelbench/lev')  # a kill in the middle of a line
    again, judge = bench(tmp_path), ListedJudge({"23_C": 4.0})
    again.run(judge)
    assert judge.asked == ["23_C"]
    report = again.report()
    assert (report.waiting, report.all.tasks, report.all.without_kernel) == (0, 4, 1)
    assert report.all.headline.value == pytest.approx(8 ** (1 / 4))
    assert any("evaluations.jsonl:3: not a record" in line for line in report.left_out)
    assert bench(tmp_path).pending == []


@pytest.mark.parametrize("file", ["summary.json", "results.csv", "baselines.csv"])
def test_what_no_bench_has_written_is_not_replaced(tmp_path, file):
    (tmp_path / file).write_text("[1, 2]")
    with pytest.raises(ConfigError, match=f"{file}: is no bench's, and would be lost"):
        bench(tmp_path)
    assert (tmp_path / file).read_text() == "[1, 2]"


def test_degenerate_problems_are_reported_apart(tmp_path):
    one = bench(tmp_path)
    one.run(ListedJudge({"1_A": 2.0, "2_B": 2.0, "23_C": 4.0}))
    assert (one.report().all.tasks, one.report().sound.tasks) == (4, 3)
    assert one.report().sound.headline.value == pytest.approx(4 ** (1 / 3))


def test_levels_are_reported_apart_where_there_are_several(tmp_path):
    other = Task("kernelbench/level2/1_X", "# X", "cpu")
    one = bench(tmp_path, tasks=[*TASKS, other])
    one.run(ListedJudge({"1_A": 2.0}))
    parts = one.report().parts
    assert {n: s.tasks for n, s in parts.items()} == {
        "kernelbench/level1": 4,
        "kernelbench/level2": 1,
    }
    assert (bench(tmp_path).report().parts, parts["kernelbench/level2"].correct) == ({}, 0)


def test_a_fault_of_ours_leaves_no_row_and_is_tried_again(tmp_path):
    faults: list[tuple[str, str]] = []
    one = bench(tmp_path)
    one.run(ListedJudge({"1_A": "fault", "2_B": 2.0}), on_fault=lambda *told: faults.append(told))
    assert [name for name, _ in faults] == ["kernelbench/level1/1_A sample 0"]
    assert (one.report().waiting, one.report().all.tasks) == (1, 3)
    judge = ListedJudge({"1_A": 2.0})
    bench(tmp_path).run(judge)
    assert judge.asked == ["1_A"]


def test_a_task_that_cannot_be_scored_is_in_no_figure(tmp_path):
    one = bench(tmp_path)
    one.run(ListedJudge({"1_A": 2.0, "23_C": "invalid", "9_D": "invalid"}))
    report = one.report()
    assert set(report.not_scored) == {TASKS[2].id, TASKS[3].id}
    assert set(report.not_scored.values()) == {"it says why", "constant output"}
    assert report.all.tasks == 2


def test_a_folder_used_for_fewer_tasks_is_compared_by_these_alone(tmp_path):
    bench(tmp_path).run(ListedJudge({"1_A": 2.0, "2_B": 3.0}))
    assert {r.task_id for r in read_bench(tmp_path)[0]} == {t.id for t in TASKS[:3]}
    bench(tmp_path, names="1_A", tasks=TASKS[:1]).write()
    assert [r.task_id for r in read_bench(tmp_path)[0]] == [TASKS[0].id]
    (tmp_path / SUMMARY).write_text("{")
    assert len(read_bench(tmp_path)[0]) == 3


@pytest.mark.parametrize("other", ["text", "protocol", "environment", "kernel"])
def test_a_row_of_another_question_does_not_count(tmp_path, other):
    bench(tmp_path).run(ListedJudge({"1_A": 2.0}))
    changed = {
        "text": {"tasks": [replace(t, source="# new") for t in TASKS]},
        "protocol": {"config": EvalConfig(preset="other")},
        "environment": {"environment": HERE | {"driver": "2"}},
        "kernel": {},
    }[other]
    now = bench(tmp_path, **changed)
    if other == "kernel":
        new = Candidate(TASKS[0].id, Language.TRITON, "# a new kernel")
        now = bench(tmp_path, names="")
        now.submissions = [Submission(new, 0, "k.py")]
        now.__post_init__()
    assert len(now.pending) == len(now.submissions)
    said = r"jsonl: (1 evaluation|\d+ evaluations) of other kernels, task texts, protocols"
    assert any(re.search(said, line) for line in now.left_out)


def test_nothing_is_begun_when_time_is_up_and_a_report_of_nothing_is_no_figure(tmp_path):
    one, judge = bench(tmp_path), ListedJudge({}, most=0)
    one.run(judge)
    assert judge.asked == []
    assert one.write().all is not None  # the task without a kernel is a failure already
    assert one.write().waiting == 3
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report_view(one.report()))
    assert "Partial: 3 of 4 tasks" in console.export_text()


def test_a_partial_report_is_there_from_the_first_moment_and_says_which_way_it_errs(tmp_path):
    class Looking(ListedJudge):
        def evaluate_many(self, requests):
            seen.append(json.loads((tmp_path / SUMMARY).read_text())["waiting"])
            yield from super().evaluate_many(requests)

    seen: list[int] = []
    one = bench(tmp_path)
    one.run(Looking({"1_A": 2.0}, most=1))
    assert seen == [3]
    assert "what is right waits" in one.report().partial
    one.run(ListedJudge({"1_A": 2.0}))
    assert one.report().partial == ""


@pytest.mark.parametrize("width", [80, 120])
def test_no_terminal_is_so_narrow_that_a_figure_is_cut(tmp_path, width):
    other = Task("kernelbench/level2/1_X", "# X", "cpu")
    one = bench(tmp_path, tasks=[*TASKS, other])
    one.run(ListedJudge({"1_A": 2.0, "23_C": 12.0}))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report_view(one.report()))
    text, found = console.export_text(), one.report()
    summaries = [found.all, found.sound, *found.parts.values(), *found.kinds.values()]
    figures = [figure(f, s.tasks) for s in summaries for f in (s.headline, s.headline_best)]
    assert all(words in text for words in figures)
    for summary in summaries:
        assert f"{summary.correct} of {summary.tasks} ({summary.correctness:.0%})" in text
    assert "…" not in text


@pytest.mark.parametrize(("lines", "last"), [(20, "n19"), (23, "and 3 more, in summary.json")])
def test_what_a_screen_does_not_show_is_counted(tmp_path, lines, last):
    one = bench(tmp_path, left_out=[f"n{n}" for n in range(lines)])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report_view(one.report()))
    shown = console.export_text().splitlines()
    assert shown[-1].removeprefix("left out: ") == last
    assert sum(line.startswith("left out: n") for line in shown) == 20


def test_what_is_slower_than_b_star_is_1_in_the_headline_and_itself_among_the_correct(tmp_path):
    one = bench(tmp_path)
    one.run(ListedJudge({"1_A": 1.0}))  # B* is 1.25
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report_view(one.report()))
    headline, _, correct = console.export_text().partition("correct tasks only")
    assert "over all tasks, a failure counting 1.0" in headline
    assert re.search(
        r"max\(1, vs B\*\).*all tasks [^\n]* 1\.00x \[1\.00, 1\.00\]", headline, re.DOTALL
    )
    assert re.search(r" vs B\*.*all tasks [^\n]* 0\.80x", correct, re.DOTALL)
    assert "max(1" not in correct


def test_kernelbenchs_files_hold_every_problem_in_milliseconds_and_our_ratios(tmp_path):
    one = bench(tmp_path)
    one.run(ListedJudge({"1_A": 2.0, "23_C": 1.0}))
    results = json.loads((tmp_path / "kernelbench/level1/eval_results.json").read_text())
    timing = json.loads((tmp_path / "kernelbench/timing/baseline_time_torch.json").read_text())
    assert list(results) == ["1", "2", "23", "9"]
    assert results["9"][0]["metadata"] == {"status": "no kernel"}
    assert [name.partition("_")[0] for name in timing["level1"]] == list(results)
    fields = {"sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"}
    assert all(set(entry) == fields for [entry] in results.values())
    [good], [bad] = results["1"], results["2"]
    assert (good["compiled"], good["correctness"], good["runtime"]) == (True, True, 1.0)
    assert (bad["compiled"], bad["correctness"], bad["runtime"]) == (True, False, -1.0)
    assert set(timing["level1"]) == {"1_A.py", "2_B.py", "23_C.py", "9_D.py"}
    stats = {"mean", "std", "min", "max", "num_trials", "hardware", "device"}
    assert set(timing["level1"]["1_A.py"]) == set(good["runtime_stats"]) == stats
    assert timing["level1"]["1_A.py"]["mean"] / good["runtime"] == 2.0
    assert timing["level1"]["2_B.py"]["mean"] == 4.0
    compiled = "baseline_time_torch_compile_inductor_default.json"
    compiled = json.loads((tmp_path / "kernelbench/timing" / compiled).read_text())
    assert compiled["level1"]["1_A.py"]["mean"] == pytest.approx(1.6)


@pytest.mark.parametrize("order", [(1, 2, 0), (2, 0, 1)])
def test_baselines_are_those_timed_beside_the_first_timed_sample(tmp_path, order):
    task = TASKS[0]
    kernels = [Candidate(task.id, Language.TRITON, f"# {n}") for n in range(3)]
    given = [Submission(kernel, n, "k.py") for n, kernel in enumerate(kernels)]
    for n in order:
        compiled = (None, 2.0, 4.0)[n]
        found = row(task.id, compiled, sample=n, compiled=compiled, task_hash=task.hash)
        ids = {"candidate_id": kernels[n].id, "config_id": CONFIG.id}
        kept = replace(found, evaluation=replace(found.evaluation, **ids))
        append_record(tmp_path / EVALUATIONS, kept)
    [timed] = bench(tmp_path, tasks=[task], submissions=given).timed_baselines().values()
    assert [b.speedup.value for b in timed] == [2.0]


TIMED = (
    Baseline("compile", 2.0, Interval(2.0, 1.9, 2.1)),
    Baseline("cuda_graph", None, None, "it failed"),
)


def test_kernelbenchs_files_of_what_the_folder_was_used_for_before_are_gone(tmp_path):
    other = Task("kernelbench/level2/1_E", "# E", "cpu")
    kernel = Submission(Candidate(other.id, Language.TRITON, "# kernel"), 0, "kernel.py")
    before = bench(tmp_path, tasks=[other], submissions=[kernel])
    before.run(ListedJudge({"1_E": 2.0}))
    bench(tmp_path).run(ListedJudge({}))
    files = {str(path.relative_to(tmp_path)) for path in (tmp_path / "kernelbench").rglob("*.json")}
    assert files == {
        "kernelbench/level1/eval_results.json",
        "kernelbench/timing/baseline_time_torch.json",
    }


def test_without_kernels_references_and_baselines_are_timed_and_no_figure_is_a_failure(tmp_path):
    class Timing(ListedJudge):
        def prepare_many(self, tasks, config):
            for task in tasks:
                self.asked.append(task.id)
                yield task, Measured(eager_ms=4.0, timed=TIMED, seconds={"null": 1.2345})

    other = Task("own/problem", "# own", "cpu")
    one, judge, told = bench(tmp_path, "", tasks=[*TASKS, other]), Timing({}), []
    assert one.report().waiting == 5
    one.run(judge, on_reference=lambda *each: told.append(each))
    report = one.report()
    assert judge.asked == [t.id for t in one.tasks]
    assert [left for _, left in told] == [4, 3, 2, 1, 0]
    assert (
        reference_line(told[0][0]) == "eager 4 ms, compile 2.00x [1.90, 2.10], cuda_graph it failed"
    )
    assert (report.all, report.parts, report.waiting) == (None, {}, 0)
    standing = report.baselines["compile"]
    assert (standing.tasks, standing.failed, standing.speedup.value) == (5, 0, pytest.approx(2.0))
    assert report.baselines["cuda_graph"].failed == 5
    with (tmp_path / "baselines.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert (len(rows), rows[0]["eager_ms"], rows[1]["detail"]) == (10, "4.0", "it failed")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report_view(report))
    assert "2.00x [2.00, 2.00]" in console.export_text()
    again = Timing({})
    bench(tmp_path, "", tasks=[*TASKS, other]).run(again)
    assert again.asked == []  # it goes on where it stopped
    lines = (tmp_path / REFERENCES).read_text().splitlines()
    assert json.loads(lines[0])["seconds"] == {"null": 1.234}
    timing = tmp_path / "kernelbench/timing/baseline_time_torch.json"
    assert json.loads(timing.read_text())["level1"]["1_A.py"]["hardware"] == "Test GPU"


def test_beside_kernels_references_are_estimated_and_timed_once_there_are_none(tmp_path):
    class Asking(ListedJudge):
        def prepare_many(self, tasks, config):
            configs.append((len(tasks), config.verify_only))
            return super().prepare_many(tasks, config)

    configs: list[tuple[int, bool]] = []
    bench(tmp_path).run(Asking({"1_A": 2.0}))
    bench(tmp_path).run(Asking({}))
    bench(tmp_path, "").run(Asking({}))
    bench(tmp_path, "").run(Asking({}))
    assert configs == [(3, True), (0, True), (4, False), (0, False)]


def test_what_another_kind_of_gpu_measured_is_in_no_table_with_the_rest(tmp_path):
    class Elsewhere(ListedJudge):
        def evaluate_many(self, requests):
            for place, found in super().evaluate_many(requests):
                yield place, replace(found, environment={**HERE, "gpu": "another", "walls": "full"})

    faults: list[str] = []
    one = bench(tmp_path, environment=HERE | {"gpu": "mine"})
    one.run(Elsewhere({"1_A": 2.0}), on_fault=lambda _, why: faults.append(why))
    assert (len(faults), one.rows) == (3, {})
    assert "measured with gpu 'another', and the others with 'mine'" in faults[0]
    assert "--gpu-type" in faults[0]


def test_the_csv_has_a_line_per_evaluation_and_the_summary_a_version(tmp_path):
    bench(tmp_path).run(ListedJudge({"1_A": 2.0}))
    with (tmp_path / "results.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [r["status"] for r in rows] == ["PASSED", "WRONG_VALUE", "WRONG_VALUE"]
    assert (rows[0]["speedup"], rows[0]["best_baseline"]) == ("2.0", "compile")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["schema_version"], summary["all"]["correct"]) == (1, 1)


def test_rows_survive_the_file_and_foreign_lines_are_named(tmp_path):
    path, kept = tmp_path / EVALUATIONS, row("a", 2.0)
    append_record(path, kept)
    with path.open("a") as stream:
        stream.write('[1]\n{"schema_version": 9}\n')
        stream.write(json.dumps(to_record(kept) | {"evaluation": None}) + "\nwords")
    append_record(path, kept)
    rows, complaints = read_records(path, Row)
    assert rows == [kept, kept]
    assert [line.split(":")[1] for line in complaints] == ["2", "3", "4", "5"]


def test_a_summary_is_whole_whenever_it_is_read_or_its_writer_killed(tmp_path):
    path = tmp_path / SUMMARY
    write_json(path, {"numbers": list(range(20_000))})
    fork = multiprocessing.get_context("fork")
    writer = fork.Process(target=write_on_and_on, args=(path,), daemon=True)
    writer.start()
    for _ in range(200):
        assert json.loads(path.read_text())["schema_version"] == 1
    writer.kill()
    writer.join()
    assert json.loads(path.read_text())["schema_version"] == 1


def write_on_and_on(path: Path) -> None:
    while True:
        write_json(path, {"numbers": list(range(20_000))})


def test_progress_says_what_was_found_and_how_long_it_still_takes():
    line = progress_line(row("a", 2.0), done=10, left=20, seconds=300.0)
    assert line == "a sample 0: PASSED 2.00x [1.98, 2.02] (20 left, about 10 min)"
