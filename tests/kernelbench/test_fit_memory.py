"""A task that has no room is taken at a smaller batch where that is asked for, and kept apart."""

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console

from agent.report.find import page_of
from agent.report.page import State
from agent.report.render import html, markdown
from agent.types import Measured
from kernelbench.bench import Bench
from kernelbench.bench_view import Progress, report_view
from kernelbench.comparison import compare, read_bench
from kernelbench.results import EVALUATIONS, REFERENCES, Reference, Row, read_records
from kernelbench.scaling import Scaling
from kernelbench.submissions import Submission
from sandbox.errors import Shortage, WarpsmithError
from sandbox.figures import Baseline, Interval
from sandbox.judging.invalid import NoRoom
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Request, Status, Task
from tests.kernelbench.bench_records import HERE, row

PROBLEM = "{name} = {size}\ndef get_inputs():\n    return [torch.rand({name}, 8)]\n# {task}\n"
CONFIG = EvalConfig()


def task(name: str, size: int = 16, constant: str = "batch_size") -> Task:
    source = PROBLEM.format(name=constant, size=size, task=name)
    return Task(f"kernelbench/level1/{name}", source, "cuda")


TASKS = [task("1_small"), task("2_large", 100), task("3_product", 100, "M"), task("4_right")]


@dataclass
class Room:
    """Judges what has at most so many rows; every kernel that is not named wrong is right."""

    rows: int = 32
    wrong: tuple[str, ...] = ()
    shortage: bool = False
    """What has no room is a fault of ours."""
    most: int = 99
    asked: list[tuple[str, int]] = field(default_factory=list)

    def size(self, of: Task) -> int:
        found = re.match(r"\w+ = (\d+)", of.source)
        assert found is not None
        return int(found[1])

    def evaluate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, Evaluation]]:
        for place, request in enumerate(requests):
            if len(self.asked) >= self.most:
                return
            name, size = request.task.id.rpartition("/")[2], self.size(request.task)
            self.asked.append((name, size))
            found = row(request.task.id, None if name in self.wrong else 2.0).evaluation
            if size > self.rows:
                status = Status.SANDBOX_ERROR if self.shortage else Status.INVALID_REFERENCE
                found = row(request.task.id, status=status).evaluation
                found = replace(found, no_room=True, detail=f"{request.task.id}: {size} are many")
            ids = {"candidate_id": request.candidate.id, "config_id": request.config.id}
            yield place, replace(found, **ids)

    def prepare_many(
        self, tasks: Sequence[Task], config: EvalConfig
    ) -> Iterator[tuple[Task, Measured | WarpsmithError]]:
        for each in tasks:
            self.asked.append((each.id.rpartition("/")[2], self.size(each)))
            kind = Shortage if self.shortage else NoRoom
            if self.size(each) > self.rows:
                yield each, kind(f"{each.id}: {self.size(each)} are many")
            else:
                timed = (Baseline("compile", 2.0, Interval(2.0, 1.9, 2.1)),)
                yield each, Measured(eager_ms=4.0, timed=timed)


def bench(folder: Path, fit: bool = True, *, samples: int = 1, tasks=TASKS, **changes) -> Bench:
    submissions = [
        Submission(Candidate(t.id, Language.TRITON, f"# kernel {sample} of {t.id}"), sample, "k.py")
        for t in tasks
        for sample in range(samples)
    ]
    about = {"input": "k", "suite": "s", "fit_memory": "yes" if fit else ""}
    given = {"tasks": tasks, "config": CONFIG, "environment": HERE, "about": about}
    return Bench(submissions=submissions, folder=folder, fit_memory=fit, **given | changes)


def text(of: Bench) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report_view(of.report()))
    return console.export_text()


def records(folder: Path, kind: type = Row) -> list:
    name = EVALUATIONS if kind is Row else REFERENCES
    return read_records(folder / name, kind)[0]


def test_without_the_option_what_has_no_room_is_skipped_with_the_reason(tmp_path):
    one, judge = bench(tmp_path, fit=False), Room()
    one.run(judge)
    report = one.report()
    assert report.not_scored == {TASKS[1].id: "100 are many", TASKS[2].id: "100 are many"}
    assert (report.scaled, report.scaled_figures, report.all.tasks) == ({}, None, 2)
    assert {r.scaled for r in records(tmp_path)} == {None}


def test_a_task_is_halved_until_it_has_room_and_its_record_says_at_what_size(tmp_path):
    one, judge = bench(tmp_path), Room()
    one.run(judge)
    assert [size for name, size in judge.asked if name == "2_large"] == [100, 50, 25]
    found = [r for r in records(tmp_path) if r.task_id == TASKS[1].id]
    assert [r.scaled and str(r.scaled) for r in found] == [
        None,
        "batch_size 50 of 100",
        "batch_size 25 of 100",
    ]
    assert len({r.task_hash for r in found}) == 3
    assert [r.evaluation.status.value for r in found][-1] == "PASSED"
    assert one.report().scaled == {TASKS[1].id: "batch_size 25 of 100"}
    line = json.loads((tmp_path / EVALUATIONS).read_text().splitlines()[-1])
    assert line["scaled"] == {"constant": "batch_size", "whole": 100, "used": 25}


def test_figures_are_those_without_the_option_and_scaled_tasks_have_their_own(tmp_path):
    whole, fitted = bench(tmp_path / "whole", fit=False), bench(tmp_path / "fitted")
    for each in (whole, fitted):
        each.run(Room(wrong=("4_right",)))
    before, after = whole.report(), fitted.report()
    for name in ("all", "sound", "kinds", "parts", "baselines", "without_kernel"):
        assert getattr(before, name) == getattr(after, name), name
    assert (after.all.tasks, after.all.correct) == (2, 1)
    assert (after.scaled_figures.tasks, after.scaled_figures.headline.value) == (1, 2.0)
    files = sorted(p.relative_to(whole.folder) for p in whole.folder.glob("kernelbench/**/*.json"))
    assert files
    for name in files:
        assert (whole.folder / name).read_text() == (fitted.folder / name).read_text()


def test_whoever_reads_a_scaled_figure_reads_that_it_is_one(tmp_path):
    said: list[str] = []
    one = bench(tmp_path)
    one.run(Room(), on_row=Progress(said.append).row)
    assert any("2_large sample 0 at batch_size 25 of 100: PASSED" in line for line in said)
    assert any("no room; next at batch_size 50 of 100" in line for line in said)
    shown = text(one)
    assert "Scaled: 1 of 4 tasks" in shown
    assert "scaled: kernelbench/level1/2_large: batch_size 25 of 100" in shown
    with (tmp_path / "results.csv").open() as stream:
        table = {r["task"]: r for r in csv.DictReader(stream)}
    assert table[TASKS[1].id]["scaled"] == "batch_size 25 of 100"
    assert table[TASKS[0].id]["scaled"] == ""
    page, _ = page_of(str(tmp_path))
    [mine] = [r for r in page.rows if r.state is State.SCALED]
    assert (mine.task_id, mine.verdict) == (TASKS[1].id, "faster at batch_size 25 of 100")
    assert page.fast[0].note == "2 tasks"
    assert "torch.compile" in {curve.name for curve in page.fast}  # of as many tasks
    assert any(line.startswith("Scaled: 1 of 4 tasks") for line in page.notices)
    assert "--fit-memory" in page.commands[0][1]
    assert '"pill scaled"' in html(page, "")
    assert "faster at batch_size 25 of 100" in markdown(page)
    assert "| scaled tasks | **2.00x** | scaled to fit memory, and in no figure" in markdown(page)


def test_where_nothing_can_be_scaled_or_nothing_is_small_enough_the_row_says_so(tmp_path):
    one = bench(tmp_path)
    one.run(Room(rows=0))
    reasons = one.report().not_scored
    assert reasons[TASKS[1].id] == "1 are many; nor has it room at batch_size 1 of 100"
    why = "100 are many; not scaled: get_inputs() reads no constant named batch_size, batch, bs, b"
    assert reasons[TASKS[2].id] == why
    assert one.report().scaled == {}
    with (tmp_path / "results.csv").open() as stream:
        table = {r["task"]: r for r in csv.DictReader(stream)}
    assert "not scaled: get_inputs() reads no constant" in table[TASKS[2].id]["detail"]
    page, _ = page_of(str(tmp_path))
    told = {r.task_id: (r.state, r.verdict) for r in page.rows}
    assert told[TASKS[1].id] == (State.LEFT_OUT, "no room at batch_size 1 of 100")
    assert told[TASKS[2].id] == (State.LEFT_OUT, "no room, not scaled")
    assert {r.reason for r in page.rows if r.task_id == TASKS[2].id} == {why}
    assert f"not scored: {TASKS[2].id}: {why}" in text(one).replace("\n", " ").replace("  ", " ")


def test_a_kernel_that_fails_at_a_smaller_size_may_be_made_for_the_whole_one(tmp_path):
    one = bench(tmp_path)
    one.run(Room(wrong=("2_large", "4_right")))
    with (tmp_path / "results.csv").open() as stream:
        detail = {r["task"]: r["detail"] for r in csv.DictReader(stream)}
    assert "at batch_size 25 of 100: a kernel made for the whole size" in detail[TASKS[1].id]
    assert "made for" not in detail[TASKS[3].id]
    assert one.report().scaled_figures.correct == 0


def test_a_second_call_goes_on_at_the_size_that_was_found(tmp_path):
    bench(tmp_path).run(Room(most=5))  # the four tasks, and one more
    judge = Room()
    bench(tmp_path).run(judge)
    assert judge.asked == [("2_large", 25)]
    again, judge = bench(tmp_path), Room(rows=1)
    again.run(judge)
    assert (judge.asked, again.report().waiting) == ([], 0)


def test_samples_of_a_task_are_of_one_size_whenever_they_were_evaluated(tmp_path):
    bench(tmp_path, samples=2).run(Room())
    judge = Room(rows=100)  # there is more room by now
    later = bench(tmp_path, samples=3)
    later.run(judge)
    assert ("2_large", 25) in judge.asked
    assert ("2_large", 100) not in judge.asked
    assert later.report().scaled_figures.pass_at["2"].tasks == 1
    less = bench(tmp_path, samples=4)
    less.run(Room(rows=20))
    assert {str(r.scaled) for r in less.at_size() if r.task_id == TASKS[1].id} == {
        "batch_size 12 of 100"
    }
    assert less.report().waiting == 0


def test_a_folder_with_scaled_rows_is_what_it_was_without_the_option(tmp_path):
    bench(tmp_path).run(Room())
    judge, plain = Room(), bench(tmp_path, fit=False)
    plain.run(judge)
    report = plain.report()
    assert judge.asked == [("2_large", 100)]  # its reference, for KernelBench's files
    assert set(report.not_scored) == {TASKS[1].id, TASKS[2].id}
    assert (report.scaled, report.all.tasks) == ({}, 2)
    assert any("2 evaluations of problems scaled to fit memory" in s for s in report.left_out)
    assert {r.scaled for r in read_bench(tmp_path)[0]} == {None}
    page, _ = page_of(str(tmp_path))
    assert State.SCALED not in {r.state for r in page.rows}
    again, judge = bench(tmp_path), Room()
    again.run(judge)
    assert (judge.asked, len(again.report().scaled)) == ([], 1)


def test_a_skip_recorded_without_the_option_is_scaled_with_it(tmp_path):
    bench(tmp_path, fit=False).run(Room())
    judge = Room()
    bench(tmp_path).run(judge)
    assert judge.asked == [("2_large", 50), ("2_large", 25)]


def test_our_own_shortage_leads_to_a_smaller_size_and_leaves_no_row(tmp_path):
    faults: list[str] = []
    one = bench(tmp_path)
    one.run(Room(shortage=True), on_fault=lambda _, why: faults.append(why))
    assert faults[0].endswith("100 are many; next at batch_size 50 of 100")
    assert [str(r.scaled) for r in records(tmp_path) if r.task_id == TASKS[1].id] == [
        "batch_size 25 of 100"
    ]
    judge = Room(shortage=True)
    bench(tmp_path).run(judge)
    assert {name for name, _ in judge.asked} == {"3_product"}  # a fault is tried again


def test_baselines_alone_are_timed_at_the_size_that_has_room(tmp_path):
    one, judge = bench(tmp_path, samples=0), Room()
    told: list[Reference] = []
    one.run(judge, on_reference=lambda reference, _: told.append(reference))
    report = one.report()
    assert report.scaled == {TASKS[1].id: "batch_size 25 of 100"}
    assert report.baselines["compile"].tasks == 2  # of the whole ones
    assert list(report.not_scored) == [TASKS[2].id]
    assert any(r.detail.startswith("no room; next at batch_size 50") for r in told)
    with (tmp_path / "baselines.csv").open() as stream:
        sizes = {r["task"]: r["scaled"] for r in csv.DictReader(stream)}
    assert sizes == {TASKS[0].id: "", TASKS[1].id: "batch_size 25 of 100", TASKS[3].id: ""}
    timing = json.loads((tmp_path / "kernelbench/timing/baseline_time_torch.json").read_text())
    assert set(timing["level1"]) == {"1_small.py", "4_right.py"}
    page, _ = page_of(str(tmp_path))
    [mine] = [r for r in page.rows if r.state is State.SCALED]
    assert mine.verdict == "fastest: compile at batch_size 25 of 100"
    found = {r.task_hash: r.scaled for r in records(tmp_path, Reference)}
    assert found[one.hashes[TASKS[1].id]] == Scaling("batch_size", 100, 25)
    judge = Room()
    bench(tmp_path, samples=0).run(judge)
    assert judge.asked == []


def test_a_comparison_says_how_many_tasks_are_scaled_and_pairs_only_equal_sizes(tmp_path):
    for name, rows in (("a", 32), ("b", 32), ("c", 64)):
        bench(tmp_path / name).run(Room(rows))
    a, b, c = (read_bench(tmp_path / name)[0] for name in "abc")
    found = compare(a, b)
    assert (found.tasks, found.scaled) == (3, 1)
    assert "over 3 tasks, 1 of them scaled to fit memory" in found.verdict
    other = compare(a, c)
    assert (other.tasks, other.scaled) == (2, 0)
    assert other.left_out[0] == (
        f"{TASKS[1].id}: at batch_size 25 of 100 in A, at batch_size 50 of 100 in B"
    )


@pytest.mark.parametrize("fit", [False, True])
def test_a_task_without_a_kernel_is_never_scaled(tmp_path, fit):
    one = bench(tmp_path, fit)
    one.submissions = [s for s in one.submissions if "2_large" not in s.candidate.task_id]
    one.__post_init__()
    one.run(Room())
    assert set(one.report().not_scored) == {TASKS[1].id, TASKS[2].id}
    assert one.report().scaled == {}
