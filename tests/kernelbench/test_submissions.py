"""Inputs as people have them, the broken ones included: one line each, and the rest goes on."""

import json
from pathlib import Path

import pytest

from kernelbench.submissions import read_submissions
from sandbox.errors import ConfigError
from sandbox.types import Language, Task

NAMES = ("level1/1_Square", "level1/19_ReLU", "level2/1_Conv")
TASKS = [Task(f"kernelbench/{name}", f"# {name}", "cpu") for name in NAMES]
OWN = [Task("builtin/softmax", "# s", "cpu"), Task("file/mine", "# m", "cpu")]
KERNEL = "import torch\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found(path: Path, tasks=TASKS) -> tuple[list[tuple[str, int]], list[str]]:
    read = read_submissions(path, tasks)
    named = [(s.candidate.task_id, s.sample) for s in read.submissions]
    return named, [str(problem) for problem in read.problems]


def test_a_kernelbench_run_is_read_by_its_file_names(tmp_path):
    for level, number, sample in ((2, 1, 0), (1, 19, 10), (1, 19, 2), (1, 1, 0)):
        write(tmp_path, **{f"level_{level}_problem_{number}_sample_{sample}_kernel": KERNEL})
    (tmp_path / "eval_results.json").write_text("{}")
    (tmp_path / "level_1_problem_1_sample_0_prompt.txt").write_text("a prompt")
    names, problems = found(tmp_path)
    one, relu, conv = (task.id for task in TASKS)
    assert names == [(one, 0), (relu, 2), (relu, 10), (conv, 0)]
    assert problems == []


@pytest.mark.parametrize(
    "name", ["softmax", "builtin__softmax", "builtin/softmax", "deep/er/builtin/softmax"]
)
def test_a_folder_names_its_tasks_by_file(tmp_path, name):
    assert found(write(tmp_path, **{name: KERNEL}), OWN) == ([("builtin/softmax", 0)], [])


def test_a_name_that_two_suites_have_is_one_line_and_each_can_be_named(tmp_path):
    tasks = [*OWN, Task("file/softmax", "# other", "cpu")]
    names = ("softmax", "file__softmax", "builtin/softmax")
    named, [problem] = found(write(tmp_path, **dict.fromkeys(names, KERNEL)), tasks)
    assert named == [("builtin/softmax", 0), ("file/softmax", 0)]
    assert problem == (
        f"{tmp_path}/softmax.py: is of 2 tasks; name it builtin__softmax.py or file__softmax.py"
    )


def test_a_folder_of_levels_names_its_tasks_by_path(tmp_path):
    write(tmp_path, **{"level1/19_ReLU": KERNEL, "_private": KERNEL, ".hidden/1_Square": KERNEL})
    assert found(tmp_path) == ([("kernelbench/level1/19_ReLU", 0)], [])


def test_an_unknown_problem_is_one_line(tmp_path):
    write(tmp_path, level_3_problem_7_sample_0_kernel=KERNEL, level_1_problem_1_sample_0_kernel="")
    names, [problem] = found(tmp_path)
    assert names == [(TASKS[0].id, 0)]
    assert problem.endswith("level3/7 is no task of the suite")


def test_a_duplicate_sample_is_one_line_and_the_first_is_kept(tmp_path):
    write(tmp_path, **{"a/softmax": KERNEL, "b/softmax": KERNEL + "# other\n"})
    read = read_submissions(tmp_path, OWN)
    [kept], [problem] = read.submissions, read.problems
    assert kept.origin.endswith("a/softmax.py")
    assert "builtin/softmax has a sample 0 already" in str(problem)


def test_text_that_is_no_python_is_a_submission_that_will_fail(tmp_path):
    read = read_submissions(write(tmp_path, softmax="here is your kernel:"), OWN)
    assert [s.candidate.language for s in read.submissions] == [Language.TORCH]


def test_a_file_that_is_no_text_is_one_line(tmp_path):
    (tmp_path / "softmax.py").write_bytes(b"\xff\xfe")
    assert found(tmp_path, OWN) == ([], [f"{tmp_path}/softmax.py: not UTF-8 text"])


def test_a_name_of_other_bytes_than_utf_8_can_be_written_everywhere(tmp_path):
    write(tmp_path, **{"caf\udce9/softmax": KERNEL, "caf\udce9": KERNEL})
    read = read_submissions(tmp_path, OWN)
    assert [s.origin for s in read.submissions] == [f"{tmp_path}/caf?/softmax.py"]
    assert [str(p) for p in read.problems] == [
        f"{tmp_path}/caf?.py: caf? is no task of the suite",
    ]


def test_json_lines_are_read_and_broken_ones_named(tmp_path):
    good = {"level_id": 1, "task_id": 19, "custom_code": KERNEL, "score_default": 3.0}
    lines = [
        json.dumps(good),
        json.dumps(good | {"task_id": 1, "custom_code": 3}),
        json.dumps(good | {"task_id": 77}),
        json.dumps(good),
        json.dumps(good | {"sample_id": 1}),
        "[1, 2]",
        json.dumps(good)[:40],
        json.dumps({"level_id": 1, "task_id": 1, "code": KERNEL}),
    ]
    path = tmp_path / "kernels.json"
    path.write_text("\n".join(lines))
    names, problems = found(path)
    assert names == [(TASKS[1].id, 0), (TASKS[1].id, 1)]
    words = ("2: level1/1: custom_code is 3", "3: level1/77 is no task", "4: kernelbench/level1/19")
    words = (*words, "6: expected an object", "7: not JSON, or cut short", "8: expected")
    assert len(problems) == len(words)
    for problem, word in zip(sorted(problems), words, strict=True):
        assert f"kernels.json:{word}" in problem
        assert "\n" not in problem


@pytest.mark.parametrize("code", [None, "", " \n"])
def test_a_sample_without_code_is_a_failure_and_the_next_is_not_the_first(tmp_path, code):
    lines = [
        {"level_id": 1, "task_id": 19, "custom_code": text, "sample_id": sample}
        for sample, text in enumerate((code, KERNEL))
    ]
    path = tmp_path / "kernels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert found(path) == ([(TASKS[1].id, 0), (TASKS[1].id, 1)], [])


def test_references_of_another_version_are_one_line_and_their_kernels_are_kept(tmp_path):
    tasks = [Task(f"kernelbench/level1/{n}_T", f"N = {n}\n", "cpu") for n in (1, 2, 3)]
    texts = ('"""N."""\nN =  1  # as here\n', "N = 20\n", "N = 30\n")
    path = tmp_path / "kernels.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"level_id": 1, "task_id": n, "custom_code": KERNEL, "ref_code": text})
            for n, text in enumerate(texts, start=1)
        )
    )
    names, [problem] = found(path, tasks)
    assert len(names) == 3
    assert "kernels.jsonl:2: 2 references unlike the suite's, the first of level1/2" in problem


def test_an_export_is_read_by_its_manifest(tmp_path):
    write(tmp_path, builtin__softmax=KERNEL)
    entry = {"file": "builtin__softmax.py", "task_id": "builtin/softmax", "language": "cpp"}
    entry |= {"proposer": "small-transductive@2"}
    kernels = [entry, entry | {"file": "gone.py", "task_id": "file/mine"}, {"file": 3}]
    (tmp_path / "manifest.json").write_text(json.dumps({"kernels": kernels}))
    read = read_submissions(tmp_path, OWN)
    assert [s.candidate.language for s in read.submissions] == [Language.CPP]
    assert [s.taught for s in read.submissions] == ["small-transductive@2"]
    assert ["gone.py: cannot be read" in str(p) for p in read.problems] == [True, False]


@pytest.mark.parametrize("text", ["", '{\n  "schema_version": 1,\n  "ker', "[" * 100_000])
def test_a_manifest_that_was_cut_short_is_told_as_damaged(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    names, [problem] = found(tmp_path, OWN)
    assert names == []
    assert "manifest.json: is damaged, or was never JSON: " in problem


@pytest.mark.parametrize("text", ["{", "[]", '{"kernels": 3}'])
def test_a_broken_manifest_gives_no_submissions(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    assert found(tmp_path, OWN)[0] == []


def test_no_input_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="expected a folder of kernels"):
        read_submissions(tmp_path / "missing", OWN)
    (tmp_path / "kernels.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"kernels\.yaml: is none that can be read; expected"):
        read_submissions(tmp_path / "kernels.yaml", OWN)
