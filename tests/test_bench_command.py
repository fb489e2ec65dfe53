"""`warpsmith bench` and `warpsmith compare` as a user calls them, on two built-in tasks."""

import json
from pathlib import Path

import pytest

from agent.scoring import bench_name, kernels_of
from kernelbench.submissions import read_submissions
from tests.agent.scripts import campaign, make_task, script

pytestmark = pytest.mark.timeout(200)
PRESET = """\
baselines: []
rounds: 3
batch_ms: 0.5
max_sets: 8
min_pairs: 2
max_pairs: 2
run_timeout_s: 20
load_timeout_s: 20
"""
KERNEL = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return {result}
"""
PROBLEM = (
    KERNEL.replace("ModelNew", "Model")
    + """

def get_inputs():
    return [torch.randn(64, 129)]


def get_init_inputs():
    return []
"""
)
SUITE = ("--suite", "relu", "--suite", "reverse", "--suite", "sigmoid")
REST = (*SUITE, "--device", "cpu", "--preset", "preset.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "preset.yaml").write_text(PRESET)
    (tmp_path / "kernels").mkdir()
    for name, text in {
        "relu": KERNEL.format(result="x.clamp(min=0)"),
        "reverse": KERNEL.format(result="x"),
        "rellu": KERNEL.format(result="x"),
    }.items():
        (tmp_path / "kernels" / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_folder_is_scored_reported_and_gone_on_with(cli, folder):
    code, out, err = cli(folder, "bench", "kernels", *REST)
    assert code == 0, err
    assert "builtin/relu sample 0: PASSED" in err
    assert "builtin/reverse sample 0: WRONG_VALUE" in err
    assert "rellu is no task of the suite" in out
    assert "1 of 3 (33%)" in out
    summary = json.loads((folder / "bench/kernels/summary.json").read_text())
    assert (summary["all"]["tasks"], summary["all"]["without_kernel"]) == (3, 1)
    code, out, err = cli(folder, "bench", "kernels", *REST, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["all"] == summary["all"]
    assert len((folder / "bench/kernels/evaluations.jsonl").read_text().splitlines()) == 2
    code, out, err = cli(folder, "compare", "bench/kernels", "bench/kernels")
    assert (code, out.partition(":")[0]) == (0, "B differs from A only by noise")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "missing", *REST), "no such input; expected a folder of kernels"),
        (("bench", "", *REST), "the input is ''; expected a folder of kernels"),
        (("bench", "kernels", *REST, "--gpu-type", "H100"), "the device is the CPU"),
        (("bench", "kernels", "--suite", "rellu", "--device", "cpu"), "did you mean"),
        (("bench", "kernels", "--suite", "builti", "--device", "cpu"), "did you mean 'builtin'?"),
        (("compare", "kernels", "kernels"), "no evaluations; expected a folder"),
        (("bench", "nothing", *REST), "nothing: no kernel for "),
        (("bench", "half.jsonl", *REST), "half.jsonl:1: not JSON, or cut short"),
        (("show", "kernels"), "kernels: not a run (no journal.sqlite in it)"),
        (("show", "frist"), "frist: no such run"),
        (("report", "nothing"), "nothing: not a run"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(cli, folder, arguments, message):
    (folder / "nothing").mkdir()
    (folder / "half.jsonl").write_text('{"task": "builtin/relu", "sour')
    code, _, err = cli(folder, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
    assert not (folder / "bench").exists()


@pytest.mark.slow
def test_tasks_are_chosen_by_patterns_and_the_report_says_so(cli, folder):
    (folder / "kernels/sigmoid.py").write_text(KERNEL.format(result="torch.sigmoid(x)"))
    code, _, err = cli(folder, "bench", "kernels", *REST, "--only", "re*", "--seconds", "0")
    assert code == 0, err
    summary = json.loads((folder / "bench/kernels/summary.json").read_text())
    assert (summary["tasks"], summary["about"]["only"]) == (2, "'re*'")
    [left] = [line for line in summary["left_out"] if "no task of the suite" in line]
    assert left.startswith("kernels/rellu.py"), "sigmoid is one that was not chosen"
    code, _, err = cli(folder, "bench", "kernels", *REST, "--only", "softmax")
    assert (code, err.partition(";")[0]) == (2, "warpsmith: --only softmax: no such task")


@pytest.mark.slow
def test_kernels_that_need_a_gpu_are_not_scored_on_the_cpu(cli, folder):
    """Not a failure of theirs, and no reason to leave the others."""
    cuda = KERNEL.replace("import torch\n", "import cupy\n", 1).format(result="x")
    (folder / "kernels/sigmoid.py").write_text(cuda)
    (folder / "kernels/reverse.py").unlink()
    (folder / "problems").mkdir()
    for name in ("relu", "sigmoid", "tanh"):
        problem = PROBLEM.format(result=f"torch.{name}(x)")
        (folder / "problems" / f"{name}.py").write_text(problem)
    rest = ("--suite", "problems", "--device", "cpu", "--preset", "preset.yaml")
    code, _, err = cli(folder, "bench", "kernels", *rest)
    assert code == 0, err
    assert "file/sigmoid sample 0: not scored: cuda kernels need a GPU" in err
    summary = json.loads((folder / "bench/kernels/summary.json").read_text())
    assert (summary["waiting"], summary["all"]["tasks"]) == (1, 2)
    (folder / "kernels/relu.py").unlink()
    done = cli(folder, "bench", "kernels", *rest)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "cuda kernels need a GPU" in done.err


def test_a_campaigns_winners_are_an_input_by_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    source = script(1, speedup=2.5) + "class ModelNew: ...\n"
    Path("runs").mkdir()
    campaign(Path("runs/first"), {"win": [source], "slow": [script(1, speedup=0.7)]})
    tasks = [make_task("win"), make_task("slow")]
    for given in ("first", "runs/first", "runs/first/journal.sqlite"):
        assert bench_name(given) == "first"
        read = read_submissions(kernels_of(given, Path("out")), tasks)
        [winner] = read.submissions
        assert (winner.candidate.task_id, winner.sample) == ("test/win", 0)
        assert winner.candidate.source.endswith(source)
        assert read.problems == ()
    assert kernels_of("kernels", Path("out")) == Path("kernels")


@pytest.mark.slow
def test_a_campaign_without_a_winner_is_scored_as_failures(cli, folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("runs").mkdir()
    campaign(Path("runs/first"), {"slow": [script(1, speedup=0.7)]})
    code, out, err = cli(folder, "bench", "first", *REST)
    assert code == 0, err
    assert "0 of 3 (0%)" in out


def test_inputs_of_two_names_do_not_share_a_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for version in ("kernels.v1", "kernels.v2"):
        Path(version).mkdir()
        assert bench_name(version) == version
    Path("h100.json").touch()
    assert bench_name("h100.json") == "h100"


ROWS = """
import torch
from torch import nn

batch_size = {rows}
shape = (batch_size, 129)


class Model(nn.Module):
    def forward(self, x):
        return torch.{name}(x)


def get_inputs():
    return [torch.randn(*shape)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_problems_that_do_not_fit_are_scored_at_a_smaller_batch_and_apart(cli, folder, monkeypatch):
    """Real workers on a device of 1 MiB: a set of 1024 rows and its outputs take 4.5 times that."""
    monkeypatch.setattr("sandbox.prepare.free_bytes", lambda _: 1 << 20)
    (folder / "problems").mkdir()
    for name, rows in {"relu": 64, "sigmoid": 1024, "tanh": 1024, "sin": 1024}.items():
        text = ROWS.format(rows=rows, name=name)
        text = text.replace("batch_size", "M") if name == "sin" else text
        (folder / "problems" / f"{name}.py").write_text(text)
    kernels = {
        "relu": "x.clamp(min=0)",
        "sigmoid": "torch.sigmoid(x)",
        "tanh": "torch.tanh(x.view(1024, 129))",
        "sin": "torch.sin(x)",
    }
    for old in (folder / "kernels").glob("*.py"):
        old.unlink()
    for name, result in kernels.items():
        (folder / "kernels" / f"{name}.py").write_text(KERNEL.format(result=result))
    rest = ("--suite", "problems", "--device", "cpu", "--preset", "preset.yaml")
    code, _, err = cli(folder, "bench", "kernels", *rest)
    assert code == 0, err
    summary = json.loads((folder / "bench/kernels/summary.json").read_text())
    assert set(summary["not_scored"]) == {"file/sigmoid", "file/tanh", "file/sin"}
    assert "one input set needs 4 MiB" in summary["not_scored"]["file/sigmoid"]
    whole = summary["all"]
    code, out, err = cli(folder, "bench", "kernels", *rest, "--fit-memory")
    assert code == 0, err
    assert "file/sigmoid sample 0 at batch_size 128 of 1024: PASSED" in err
    assert "file/tanh sample 0 at batch_size 128 of 1024: RUNTIME_ERROR" in err
    assert "Scaled: 2 of 4 tasks" in out
    summary = json.loads((folder / "bench/kernels/summary.json").read_text())
    assert summary["all"] == whole
    assert (summary["scaled_figures"]["tasks"], summary["scaled_figures"]["correct"]) == (2, 1)
    assert "not scaled: get_inputs() reads no constant" in summary["not_scored"]["file/sin"]
    code, _, err = cli(folder, "bench", "kernels", *rest, "--fit-memory")
    assert (code, err) == (0, "")
    code, out, err = cli(folder, "bench", *rest, "--fit-memory")
    assert code == 0, err
    assert "file/sigmoid at batch_size 128 of 1024: eager" in err
