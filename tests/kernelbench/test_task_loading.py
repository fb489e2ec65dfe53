from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelbench.builtin import builtin_names
from kernelbench.checkout import checkout_version
from kernelbench.hub import tasks_from_rows
from kernelbench.selection import parse_selection
from kernelbench.suite import list_tasks, load_suite, load_tasks, spec_of
from sandbox.errors import ConfigError, TaskError
from sandbox.types import Shape

PROBLEM = '''"""First line.

More."""
raise SystemExit("a loader must not execute a problem")
N = 8
class Model: ...
def get_inputs(): ...
def get_init_inputs(): ...
'''
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(params=["KernelBench", "KernelBench/KernelBench"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A made-up repository in one of upstream's two layouts."""
    for level, name in [
        (1, "2_B"),
        (1, "19_ReLU"),
        (1, "100_C"),
        (2, "1_D"),
        (3, "1_E"),
        (4, "1_F"),
    ]:
        write(tmp_path / request.param / f"level{level}" / f"{name}.py", PROBLEM)
    write(tmp_path / request.param / "level1" / "notes.py", "not a problem")
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def ids(spec: str) -> list[str]:
    return [task.id for task in load_tasks(spec, "cpu")]


# Built-in


def test_builtin_loads_every_problem_for_either_device() -> None:
    assert ids("builtin") == [f"builtin/{name}" for name in builtin_names()]
    assert len(builtin_names()) >= 25
    assert {task.device for task in load_tasks("builtin", "cuda")} == {"cuda"}


@pytest.mark.parametrize("spec", ["softmax", "builtin/softmax"])
def test_one_problem_is_found_with_or_without_its_suite(spec: str) -> None:
    assert ids(spec) == ["builtin/softmax"]


@pytest.mark.parametrize("spec", ["softmx", "builtin/softmx", "builtn/softmax", "Softmax"])
def test_a_misspelt_name_gets_the_nearest(spec: str) -> None:
    with pytest.raises(TaskError, match=f"unknown task '{spec}'; did you mean 'builtin/softmax'?"):
        load_tasks(spec, "cpu")


@pytest.mark.parametrize("spec", ["", "builtin/", "kernelbench/level1/19_ReLU"])
def test_an_unknown_task_lists_the_forms(spec: str) -> None:
    with pytest.raises(TaskError, match="expected builtin/NAME, kernelbench:PATH"):
        load_tasks(spec, "cpu")


def test_an_unknown_device_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="device is 'gpu'; expected 'cpu' or 'cuda'"):
        load_tasks("softmax", "gpu")


def test_dtype_follows_the_device_unless_overridden() -> None:
    assert load_tasks("rms_norm", "cuda")[0].dtype == "bfloat16"
    assert load_tasks("rms_norm", "cpu")[0].dtype == "float32"
    assert load_tasks("rms_norm", "cuda", dtype="float16")[0].dtype == "float16"
    with pytest.raises(TaskError, match="dtype is 'fp16'; expected one of float32, float16"):
        load_tasks("rms_norm", "cuda", dtype="fp16")


def test_a_task_may_refuse_tf32() -> None:
    assert load_tasks("ordinary_least_squares", "cuda")[0].exact_float32
    assert not load_tasks("matmul", "cuda")[0].exact_float32


def test_list_tasks_says_what_each_is() -> None:
    (summary,) = list_tasks("softmax", "cpu")
    assert (summary.id, summary.about) == ("builtin/softmax", "Softmax of every row.")
    assert (summary.dtype, len(summary.shapes)) == ("float32", 2)


# KernelBench


def test_a_checkout_gives_levels_one_to_three_in_order(checkout: Path) -> None:
    level1 = ["2_B", "19_ReLU", "100_C"]
    expected = [*(f"level1/{n}" for n in level1), "level2/1_D", "level3/1_E"]
    assert ids(f"kernelbench:{checkout}") == [f"kernelbench/{e}" for e in expected]
    assert ids(f"kernelbench:{checkout / 'KernelBench'}") == ids(f"kernelbench:{checkout}")


@pytest.mark.parametrize("part", ["19", "19_ReLU", "3-99", "19_ReLU.py"])
def test_a_checkout_problem_is_selected_by_number_or_name(checkout: Path, part: str) -> None:
    assert ids(f"kernelbench:{checkout}:level1/{part}") == ["kernelbench/level1/19_ReLU"]


def test_a_checkout_task_is_float32_at_its_given_shape(checkout: Path) -> None:
    (task,) = load_tasks(f"kernelbench:{checkout}:level2", "cuda")
    assert (task.dtype, task.shapes, task.source) == ("float32", (Shape("given"),), PROBLEM)
    (half,) = load_tasks(f"kernelbench:{checkout}:level2", "cuda", dtype="bfloat16")
    assert half.dtype == "bfloat16"


def test_level_four_is_refused(checkout: Path) -> None:
    with pytest.raises(TaskError, match="level4 needs Hugging Face models"):
        load_tasks(f"kernelbench:{checkout}:level4", "cpu")


def test_a_path_may_hold_colons(tmp_path: Path) -> None:
    write(tmp_path / "a:b" / "KernelBench" / "level1" / "1_A.py", PROBLEM)
    assert ids(f"kernelbench:{tmp_path}/a:b") == ["kernelbench/level1/1_A"]
    assert ids(f"kernelbench:{tmp_path}/a:b:level1/1") == ["kernelbench/level1/1_A"]


def test_a_level_folder_is_answered_with_the_right_spec(checkout: Path) -> None:
    (level,) = checkout.glob("**/level2")
    with pytest.raises(TaskError, match=f"write kernelbench:{level.parent}:level2"):
        load_tasks(f"kernelbench:{level}", "cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("kernelbench:", "needs a path"),
        ("kernelbench:{}/none", "none is not a folder; expected the root of a KernelBench"),
        ("kernelbench:{}", "has no level1 folder"),
        ("{}/none.py", "none.py: no such file"),
        ("{}", "holds no problem files"),
    ],
)
def test_a_wrong_path_says_what_is_expected(spec: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=message):
        load_tasks(spec.format(tmp_path), "cpu")


@pytest.mark.parametrize("state", ["detached", "loose", "packed"])
def test_checkout_version_is_the_commit_of_head(checkout: Path, state: str) -> None:
    write(checkout / ".git" / "HEAD", COMMIT if state == "detached" else "ref: refs/heads/main\n")
    if state == "loose":
        write(checkout / ".git" / "refs" / "heads" / "main", f"{COMMIT}\n")
    if state == "packed":
        lines = f"# pack-refs with: peeled\n{'f' * 40} refs/heads/old\n{COMMIT} refs/heads/main\n"
        write(checkout / ".git" / "packed-refs", lines)
    assert checkout_version(checkout) == COMMIT
    assert checkout_version(checkout / "KernelBench") == COMMIT


def test_checkout_version_of_a_worktree_is_its_own(checkout: Path, tmp_path: Path) -> None:
    git = tmp_path / "elsewhere" / "worktrees" / "w"
    write(git / "HEAD", "ref: refs/heads/topic")
    write(git / "commondir", "../..")
    write(tmp_path / "elsewhere" / "refs" / "heads" / "topic", COMMIT)
    write(checkout / ".git", f"gitdir: {git}\n")
    assert checkout_version(checkout) == COMMIT


def test_checkout_version_is_none_without_a_repository(checkout: Path) -> None:
    assert checkout_version(checkout) is None


def test_a_repository_further_out_does_not_lend_its_commit(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "HEAD", COMMIT)
    vendored = tmp_path / "third_party" / "bench"
    write(vendored / "KernelBench" / "level1" / "1_A.py", PROBLEM)
    assert checkout_version(vendored) is None


# Hugging Face


def test_data_set_rows_become_tasks_with_the_checkout_ids() -> None:
    rows = [
        {"code": PROBLEM, "level": 1, "name": "19_ReLU", "problem_id": 19},
        {"code": PROBLEM, "level": 1, "name": "2_B.py", "problem_id": 2},
    ]
    tasks = tasks_from_rows(rows, "hf:x", parse_selection("level1"), "cpu", None)
    assert [t.id for t in tasks] == ["kernelbench/level1/2_B", "kernelbench/level1/19_ReLU"]


def test_a_data_set_with_other_columns_is_refused() -> None:
    with pytest.raises(TaskError, match=r"columns are \['text'\]; expected code, level, name"):
        tasks_from_rows([{"text": ""}], "hf:x", parse_selection(""), "cpu", None)


def test_a_missing_datasets_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"pip install -e '\.\[train\]'") as caught:
        load_tasks("hf:ScalingIntelligence/KernelBench:level1/19", "cpu")
    assert "\n" not in str(caught.value)


# Files


def test_each_task_of_a_spec_has_a_spec_of_its_own(tmp_path: Path, checkout: Path) -> None:
    for folder, name in (("mine", "relu"), ("mine", "tanh"), ("level2", "1_D")):
        write(tmp_path / "own" / folder / f"{name}.py", PROBLEM)
    files = [str(tmp_path / "own" / name) for name in ("mine", "mine/relu.py", "level2")]
    suites = [f"kernelbench:{checkout}", f"kernelbench:{checkout}:level1/2,19"]
    for spec in (*files, *suites, "builtin/relu", "synthetic:rows:3"):
        for id in ids(spec):
            assert ids(spec_of(spec, id)) == [id]
    hub = spec_of("hf:ScalingIntelligence/KernelBench@v1:level1", "kernelbench/level1/19_ReLU")
    assert hub == "hf:ScalingIntelligence/KernelBench@v1:level1/19_ReLU"


def test_a_folder_gives_its_problem_files_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "_private"):
        write(tmp_path / f"{name}.py", PROBLEM)
    assert ids(str(tmp_path)) == ["file/a", "file/b"]
    assert ids(str(tmp_path / "a.py")) == ["file/a"]


@pytest.mark.parametrize(
    ("folder", "name", "id"),
    [
        ("KernelBench/level1", "19_ReLU", "file/level1/19_ReLU"),
        ("level3", "1_MLP", "file/level3/1_MLP"),
        ("level1", "relu", "file/relu"),
        ("mine", "19_ReLU", "file/19_ReLU"),
        ("level10", "19_ReLU", "file/19_ReLU"),
    ],
)
def test_a_file_that_lies_as_kernelbenchs_do_keeps_its_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, id: str
) -> None:
    path = write(tmp_path / folder / f"{name}.py", PROBLEM)
    assert ids(str(path)) == ids(str(path.parent)) == [id]
    (tmp_path / "link").symlink_to(path.parent)
    assert ids(str(tmp_path / "link")) == [id]
    monkeypatch.chdir(path.parent)
    assert ids(".") == ids(path.name) == [id]


def test_a_file_may_list_shapes_and_a_dtype_for_every_device(tmp_path: Path) -> None:
    text = PROBLEM + 'SHAPES = [{"name": "small", "N": 4}]\nDTYPE = "float16"\n'
    (task,) = load_tasks(str(write(tmp_path / "p.py", text)), "cuda")
    assert (task.shapes, task.dtype) == ((Shape("small", (("N", 4),)),), "float16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_inputs(): ...", r"no class Model\(nn.Module\) and no def get_init_inputs\(\); a"),
        ("class Model: ...\ndef get_inputs(): ...", r"p.py: no def get_init_inputs\(\); a problem"),
        ("class Model(", r"p.py: not Python: .* \(line 1\)"),
        (PROBLEM + "SHAPES = [dict(N=1)]", "SHAPES must be a literal"),
        (PROBLEM + "SHAPES = []", "SHAPES lists dicts such as"),
        (PROBLEM + "SHAPES = [{'N': 1}]", "needs a 'name'"),
        (PROBLEM + "SHAPES = [{'name': 'x', 'M': 1}]", "SHAPES sets 'M', no module constant"),
        (PROBLEM + "SHAPES = [{'name': 'x', 'N': '1'}]", "SHAPES sets N to '1', no number"),
        (PROBLEM + "SHAPES = {'gpu': []}", "SHAPES has no entry 'cpu'"),
        (PROBLEM + "DTYPE = 'int8'", "dtype is 'int8'; expected one of float32"),
    ],
)
def test_a_file_outside_the_contract_is_a_task_error(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=message):
        load_tasks(str(write(tmp_path / "p.py", text)), "cpu")


def test_a_file_that_is_no_text_is_a_task_error(tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="not UTF-8 text"):
        load_tasks(str(path), "cpu")


def test_two_problems_of_one_name_are_refused_and_one_named_twice_is_one(tmp_path: Path) -> None:
    problem = "from torch import nn\nclass Model(nn.Module): ...\ndef get_inputs(): ...\n"
    for folder, extra in (("old", ""), ("new", "# changed\n"), ("copy", "")):
        (tmp_path / folder).mkdir()
        text = problem + "def get_init_inputs(): ...\n" + extra
        (tmp_path / folder / "relu.py").write_text(text)
    old, new, copy = (str(tmp_path / folder) for folder in ("old", "new", "copy"))
    assert len(load_suite([old, copy, old], "cpu")) == 1
    with pytest.raises(ConfigError, match=r"file/relu differs between .*old and .*new"):
        load_suite([old, new], "cpu")
