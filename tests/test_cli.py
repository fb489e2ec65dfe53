"""The front door: exit codes, one clear line for what cannot be done, JSON where asked for."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

import warpsmith
from agent.commands.app import DATA, TASKS, TRAIN, VERBS
from agent.commands.output import going_on, note, say
from agent.config import load_optimize
from agent.proposing.tuner import Tuning
from agent.runs import open_run
from kernelbench.results import EVALUATIONS, append_record
from kernelbench.suite import load_task
from sandbox.errors import ConfigError
from tests.agent.scripts import campaign, script
from tests.kernelbench.bench_records import row

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    campaign(tmp_path / "runs" / "first", {"a": [script(1, speedup=2.0)], "b": []})
    return tmp_path


def test_help_breaks_no_sentence_where_the_source_does():
    for verbs in (VERBS, TASKS, DATA, TRAIN):
        for name, command in verbs.items():
            assert "\n" not in (command.__doc__ or "").strip().partition("\n\n")[0], name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks", "show", "builtin/softmx"], "did you mean 'builtin/softmax'"),
        (["tasks", "list", "--device", "tpu"], "device is 'tpu'; expected cpu, cuda or auto"),
        (["optimize", "--config", "quikstart"], "did you mean 'quickstart'"),
        (["optimize", "--config", "bad.yaml"], "unknown key 'max_round'"),
        (["optimize", "softmx", "--device", "cpu"], "did you mean 'builtin/softmax'"),
        (["optimize", "--engine", "dask"], "'ray' or 'local'"),
        (["optimize", "--name", "../up", "--device", "cpu"], "run name '../up'"),
        (["optimize", "--name", "", "--device", "cpu"], "run name ''"),
        (["replay", "first", "--name", ""], "run name ''"),
        (["optimize", "softmax", "--device", "cpu", "--model", "m"], "OPENAI_API_KEY"),
        (["evaluate", "softmax", "missing.py", "--device", "cpu"], "missing.py: cannot be read"),
        (["evaluate", "softmax", "empty.py", "--device", "cpu"], "empty.py: is empty; expected"),
        (["evaluate", "softmax", "bad.py", "--device", "cpu"], "line 1: not Python"),
        (["evaluate", "builtin", "kernel.py", "--device", "cpu"], "expected one, such as"),
        (["evaluate", "softmax", "kernel.py", "--language", "rust"], "language is 'rust'"),
        (["evaluate", "softmax", "kernel.py", "--preset", "fast"], "no evaluation preset"),
        (["show", "frist"], "did you mean 'first'"),
        (["audit", "frist"], "did you mean 'first'"),
        (["export", "frist", "--to", "out"], "did you mean 'first'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(run, cli, monkeypatch, arguments, message):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (run / "bad.yaml").write_text("max_round: 1\n")
    (run / "empty.py").write_text("\n")
    (run / "bad.py").write_text("what is this?\n")
    (run / "kernel.py").write_text("import torch\n")
    done = cli(run, *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.err.startswith("warpsmith: ")


def test_a_gpu_task_without_a_gpu_is_one_line_and_code_2(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "warpsmith.py"), "optimize", "--device", "cuda"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(r"warpsmith: no usable NVIDIA GPU.*\n", done.stderr)


def test_another_system_or_an_old_python_is_refused_in_one_line(tmp_path):
    for trick in ("sys.platform = 'darwin'", "sys.version_info = (3, 10)"):
        code = f"import sys; {trick}; import warpsmith"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 1
        assert done.stderr == "warpsmith needs Linux and Python 3.11 or newer\n"


def test_importing_the_front_door_is_light():
    heavy = "{'torch', 'ray', 'openai', 'pydantic', 'rich.table'} & set(sys.modules)"
    code = f"import sys, warpsmith; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_show_prints_the_table_and_its_json(run, cli):
    assert "2.00x [1.96, 2.04]" in cli(run, "show", "first").out
    record = json.loads(cli(run, "show", "first", "--json").out)
    assert [task["verdict"] for task in record["tasks"]] == ["win", "unsupported"]


def test_a_terminal_that_lacks_a_letter_shows_the_others(run):
    command = [sys.executable, str(ROOT / "warpsmith.py"), "show", "first"]
    environment = dict(os.environ, PYTHONIOENCODING="ascii", COLUMNS="120")
    done = subprocess.run(command, cwd=run, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run: first ? " in done.stdout
    assert "2.00x [1.96, 2.04]" in done.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_onto_a_full_disk_is_one_line_and_code_2(run, options):
    command = [sys.executable, str(ROOT / "warpsmith.py"), "show", "first", *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=run, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert re.fullmatch(
        r"warpsmith: output: cannot be used \(No space.*\); free space.*\n", done.stderr
    )


def test_an_empty_run_is_shown_as_such(run, cli):
    campaign(run / "runs" / "empty", {})
    done = cli(run, "show", "empty")
    assert (done.code, done.out) == (0, "run empty is empty: no task of it was begun\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--model", "m", "--import-replies", "none.jsonl"), "none.jsonl: cannot be read"),
        (("--model", "local:none"), "none: no such folder; expected a transformers checkpoint's"),
        (("--ray-address", "none", "--engine", "ray"), "no Ray cluster answers at none: Invalid"),
        (
            ("--ray-address", "127.0.0.1:1", "--engine", "ray"),
            "no Ray cluster answers at 127.0.0.1:1: [Errno 111] Connection refused",
        ),
    ],
)
def test_a_start_that_fails_is_one_line_and_leaves_no_run(tmp_path, cli, options, told):
    done = cli(tmp_path, "optimize", "mse", "--device", "cpu", "--name", "first", *options)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert told in done.err
    assert not (tmp_path / "runs" / "first").exists()


def test_audit_says_why_a_winner_is_believed_and_its_json(run, cli):
    assert "2.00x [1.96, 2.04]" in cli(run, "audit", "first", "--no-sources").out
    record = json.loads(cli(run, "audit", "first", "--json").out)
    assert [winner["task_id"] for winner in record["audits"]] == ["test/a"]
    assert record["schema_version"] == 1


def test_export_names_what_it_wrote(run, cli):
    files = cli(run, "export", "first", "--to", "out").out.split()
    assert files == ["out/test__a.py", "out/manifest.json"]
    assert all((run / file).is_file() for file in files)


@pytest.mark.parametrize("format", ["modelnew", "kernelbench"])
def test_export_of_a_run_without_a_win_says_why(run, cli, format):
    slow = [script(1, speedup=0.7)]
    campaign(run / "runs" / "slow", {"a": slow, "b": slow, "c": [script(1, status="TIMEOUT")]})
    done = cli(run, "export", "slow", "first", "--to", "out", "--format", format)
    assert done.code == 0
    assert done.err == "no wins in runs/slow: 2 no win, 1 none correct\n"
    assert json.loads(cli(run, "show", "slow", "--json").out)["tasks"][2]["verdict"] in done.err


def test_export_onto_files_of_the_users_is_one_clear_line(run, cli):
    (run / "out").mkdir()
    for name in ("manifest.json", "test__a.py"):
        (run / "out" / name).write_text("mine")
    done = cli(run, "export", "first", "--to", "out")
    assert (done.code, done.out) == (warpsmith.UNUSABLE, "")
    assert done.err.startswith("warpsmith: out: holds a manifest.json that no export wrote; expect")
    assert done.err.count("\n") == 1
    assert {p.read_text() for p in (run / "out").iterdir()} == {"mine"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "zip"], "format is 'zip'; expected one of modelnew, package, "),
        (["--format", "package", "--package", "a-b"], "expected a name such as tuned_kernels"),
    ],
)
def test_an_export_that_cannot_be_is_one_clear_line(run, cli, arguments, message):
    done = cli(run, "export", "first", "--to", "out", *arguments)
    assert done.code == warpsmith.UNUSABLE
    assert message in done.err
    assert not (run / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("extract", "none.py", "--to", "out"), "none.py: no such file; a model file defines"),
        (("extract", "empty.py", "--to", "out"), "empty.py: no class Model and no make_model()"),
        (("extract", "model.py", "--to", "out", "--top", "0"), "top is 0; expected at least 1"),
        (("extract", "model.py", "--to", "model.py"), "model.py: is a file; expected a folder"),
        (("extract", "model.py", "--to", "."), ".: holds other files; expected a new folder"),
        (("apply", "none.py", "--library", "lib"), "none.py: no such file"),
        (("apply", "model.py", "--library", "lib"), "lib: no folder and no installed package"),
        (("apply", "model.py", "--library", "."), ".: no library in it"),
        (("apply", "model.py", "--library", "lib", "--pairs", "1"), "is 1; expected at least 2"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_clear_line(tmp_path, cli, arguments, message):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "model.py").write_text("def make_model(): ...\ndef get_inputs(): ...\n")
    done = cli(tmp_path, *arguments, "--device", "cpu")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [("show",), ("report",), ("optimize", "--config"), ("tasks", "list"), ("bench",)]
)
def test_a_path_that_the_system_does_not_take_is_one_clear_line(tmp_path, cli, words):
    name = "x" * 300
    done = cli(tmp_path, *words, name)
    assert (done.code, done.out) == (warpsmith.UNUSABLE, "")
    assert done.err.startswith("warpsmith: ")
    assert "cannot be used (File name too long); check the path" in done.err
    assert done.err.count("\n") == 1


def test_a_file_for_requests_cannot_be_a_folder_and_no_run_is_begun(tmp_path, cli):
    words = ("--engine", "local", "--model", "m", "--name", "r", "--export-requests", ".")
    done = cli(tmp_path, "optimize", "builtin/bias_gelu", *words)
    assert done.code == warpsmith.UNUSABLE
    assert "--export-requests: .: is a folder; name a file in it" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_bench_without_evaluations_says_so(tmp_path, cli):
    (tmp_path / "bench" / "first").mkdir(parents=True)
    (tmp_path / "bench" / "first" / "summary.json").write_text("{}")
    for name in ("first", "bench/first"):
        done = cli(tmp_path, "report", name)
        assert done.code == warpsmith.UNUSABLE
        assert "bench/first: a bench that has evaluated nothing yet" in done.err


def test_a_reference_is_looked_for_where_a_summary_is_asked_for_too(run, cli):
    done = cli(run, "report", "first", "--markdown", "--reference", "none")
    assert done.code == warpsmith.UNUSABLE
    assert "none" in done.err


def test_numbers_that_are_too_small_are_refused_from_python_as_well():
    with pytest.raises(ConfigError, match="top is 0; expected at least 1"):
        warpsmith.extract("none.py", "out", top=0, device="cpu")
    with pytest.raises(ConfigError, match="pairs is 1; an interval needs at least 2"):
        warpsmith.apply("none.py", "lib", pairs=1, device="cpu")


@pytest.mark.parametrize("format", ["modelnew", "kernelbench"])
def test_only_a_library_is_revalidated(run, cli, format):
    cli(run, "export", "first", "--to", "out", "--format", format)
    done = cli(run, "revalidate", "out", "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"out: is an export of --format {format}; expected a library: warpsmith exp" in done.err


def test_a_prompt_of_a_task_that_the_run_has_not_is_refused(run, cli):
    done = cli(run, "prompt", "softmax", "--run", "first", "--device", "cpu")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "warpsmith: runs/first: the run has no task builtin/softmax; tasks: test/a, test/b\n"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("frist", "frist: no such input; did you mean 'first'?"),
        ("kernel", "kernel: no such input; did you mean 'kernels'?"),
        ("kernels/sofmax", "kernels/sofmax: no such input; did you mean 'kernels/softmx.py'?"),
        ("kernels", "kernels/softmx.py: softmx is no task of the suite; did you mean 'softmax'?"),
        (
            "kernels/softmx.py",
            "expected a folder of kernels, a KernelBench run, an export, a .json",
        ),
        ("kernels/softmx.py", "; of one, warpsmith evaluate TASK kernels/softmx.py"),
    ],
)
def test_a_bench_of_mistyped_names_says_what_was_meant(run, cli, given, told):
    (run / "kernels").mkdir()
    (run / "kernels/softmx.py").write_text("import torch\n")
    done = cli(run, "bench", given, "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert told in done.err


def test_tasks_are_listed_and_shown(tmp_path, cli):
    listed = json.loads(cli(tmp_path, "tasks", "list", "--device", "cpu", "--json").out)
    assert "builtin/softmax" in [task["id"] for task in listed]
    assert "builtin/softmax" in cli(tmp_path, "tasks", "list", "--device", "cpu").out
    assert "class Model" in cli(tmp_path, "tasks", "show", "softmax", "--device", "cpu").out


def test_doctor_says_what_is_missing_and_what_mends_it(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    done = cli(tmp_path, "doctor")
    assert done.code == 1
    assert "apt-get install g++" in done.out
    for part in ("torch", "GPU", "nvcc", "cupy", "triton", "trl", "plotly", "walls", "disk (runs)"):
        assert part in done.out


def test_doctor_shows_nvccs_version_and_not_its_build(tmp_path, cli, monkeypatch):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(
        "#!/bin/sh\n"
        "echo 'Cuda compilation tools, release 13.0, V13.0.88'\n"
        "echo Build cuda_13.0.r13.0/compiler.364247\n"
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "200")
    done = cli(tmp_path, "doctor")
    assert f"13.0 ({tmp_path}" in done.out.replace("\n", "")
    assert "compiler.364247" not in done.out


def test_validate_that_came_to_no_task_is_no_success(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    done = cli(tmp_path, "tasks", "validate", "softmax", "--device", "cpu", "--seconds", "0")
    assert done.code == 1
    assert "0 tasks: none; 1 not validated" in done.out


@pytest.mark.slow
def test_validate_names_what_cannot_be_scored_and_goes_on(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    problem = (ROOT / "kernelbench/problems/relu.py").read_text()
    (tmp_path / "good.py").write_text(problem)
    (tmp_path / "bad.py").write_text(problem.replace("torch.relu(x)", "0 * x"))
    arguments = ["tasks", "validate", str(tmp_path), "--device", "cpu", "--json", "rows.jsonl"]
    part = cli(tmp_path, *arguments, "--only", "good")
    assert part.code == 0, part.err
    done = cli(tmp_path, *arguments)
    assert done.code == 1
    assert "file/bad: degenerate" in done.err
    assert "file/good" not in done.err  # its row is there already
    assert "2 tasks: 1 sound, 1 degenerate" in done.out


def test_a_prompt_is_printed_and_nothing_is_sent(tmp_path, cli, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = cli(tmp_path, "prompt", "softmax", "--strategy", "best-of-n", "--device", "cpu")
    assert done.code == 0
    assert "##### propose" in done.out
    assert "class Model(" in done.out
    wrong = cli(tmp_path, "prompt", "softmax", "--strategy", "fsrr", "--device", "cpu")
    assert (wrong.code, "did you mean 'fsr'" in wrong.err) == (2, True)


def test_a_prompt_of_a_run_is_by_the_settings_of_that_run(tmp_path, cli):
    config = load_optimize(tasks=("softmax",), model="m", device="cpu", proposals_per_round=5)
    with open_run("first", replace(config, tuning=Tuning()), tmp_path / "runs") as journal:
        journal.record_task(load_task("softmax", "cpu"))
    done = cli(tmp_path, "prompt", "softmax", "--run", "first")
    assert "##### propose, asked 5 time(s)" in done.out
    assert "# Tunable constants" in done.out


def test_money_is_not_spent_where_nobody_can_be_asked(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        done = cli(tmp_path, "optimize", "softmax", "--device", "cpu", "--model", "gpt-5")
    assert done.code == 2
    assert "gpt-5: up to 3 requests (more for those that fail or repeat known code)" in done.err
    assert "pass --yes" in done.err
    assert not (tmp_path / "runs").exists()


def test_what_a_candidate_says_cannot_steer_the_terminal(capsys):
    note("relu: WRONG_VALUE \x1b[1A\x1b[2Krelu: PASSED 9x")
    say(["RuntimeError: \x9b2J\r", "été\t∑"])
    out, err = capsys.readouterr()
    assert err == "relu: WRONG_VALUE ⟨U+001B⟩[1A⟨U+001B⟩[2Krelu: PASSED 9x\n"
    assert out == "RuntimeError: ⟨U+009B⟩2J\nété\t∑\n"


def test_a_task_whose_name_looks_like_markup_is_shown_as_it_is(tmp_path, cli):
    name = "file/a[bold]b[x]"
    for folder, speedup in (("a", 1.0), ("b", 2.0)):
        append_record(tmp_path / folder / EVALUATIONS, row(name, speedup))
    assert name in cli(tmp_path, "compare", "a", "b").out


def test_ctrl_c_tells_what_goes_on_once_of_all_processes_of_a_launcher(monkeypatch, capsys):
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(typer.Exit) as ended, going_on("the same command"):
            raise KeyboardInterrupt
        assert ended.value.exit_code == warpsmith.INTERRUPTED
    assert capsys.readouterr().err == "to go on: the same command\n"
