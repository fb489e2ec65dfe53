"""Problems and kernels that cannot work, as a user meets them: a clear line, no traceback."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import warpsmith
from tests.conftest import COMMAND, Done, run
from tests.doubles.openai_server import OpenAIServer

pytestmark = pytest.mark.timeout(240)
PRESET = """
baselines: []
rounds: 3
batch_ms: 0.5
max_sets: 8
min_pairs: 2
max_pairs: 2
run_timeout_s: 3
load_timeout_s: 10
memory_limit_bytes: 1073741824
"""
PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return {result}

def get_inputs():
    return [torch.randn(7, 129)]

def get_init_inputs():
    return []
"""
GOOD = PROBLEM.format(result="torch.relu(x) + 1.0")
BAD = {
    "fails": ("torch.relu(x, missing)", "NameError"),
    "leaves": ("__import__('sys').exit(0)", "SystemExit"),
    "random": ("x + torch.randn_like(x)", "stochastic"),
    "constant": ("torch.full_like(x, 3.0)", "degenerate"),
    "dependent": ("x[x > 0]", "data-dependent"),
}
"""Results of a forward, and a word of what is said about them."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is measured of the device and of the good problem, once for all."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    (tmp_path / "cache").symlink_to(cache)
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "kernel.py").write_text(GOOD.replace("Model", "ModelNew"))
    (tmp_path / "preset.yaml").write_text(PRESET)
    (tmp_path / "problems").mkdir()
    for name, (result, _) in BAD.items():
        (tmp_path / "problems" / f"{name}.py").write_text(PROBLEM.format(result=result))
    return tmp_path


REST = ("--device", "cpu", "--language", "torch", "--preset", "preset.yaml")


@pytest.fixture
def evaluate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str, str], Done]:
    """The command line in this process, with all that it and its workers print."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("WARPSMITH_CACHE", str(folder / "cache"))

    def call(problem: str, kernel: str) -> Done:
        with pytest.raises(SystemExit) as end:
            warpsmith.main(["evaluate", problem, kernel, *REST])
        return Done(int(end.value.code or 0), *capfd.readouterr())

    return call


def optimize(folder: Path, *arguments: str, url: str = "") -> Done:
    (folder / "config.yaml").write_text("evaluation: preset.yaml\nmax_candidates_per_task: 1\n")
    rest = ("--config", "config.yaml", "--name", "first", "--engine", "local", "--device", "cpu")
    variables = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    return run(folder, "optimize", *arguments, *rest, environment=variables)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("class Model", "class Other"), "no class Model(nn.Module)"),
        pytest.param("def def", "not Python", marks=pytest.mark.slow),
        pytest.param(
            "", "no class Model(nn.Module) and no def get_inputs()", marks=pytest.mark.slow
        ),
    ],
    ids=["no Model", "no Python", "empty"],
)
def test_a_file_that_is_no_problem_is_one_line_and_code_2(folder, cli, text, words):
    (folder / "bad.py").write_text(text)
    done = cli(folder, "optimize", "bad.py", "--engine", "local", "--device", "cpu")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("warpsmith: bad.py: ")
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_problems_that_cannot_be_scored_are_named_each_and_code_2(folder):
    with OpenAIServer(["no code"], cycle=True) as server:
        done = optimize(folder, "problems", "--model", "scripted", url=server.url)
    [plan] = done.err.splitlines()  # what will be asked of the model, before it is
    assert (done.code, plan.startswith("scripted: up to ")) == (2, True)
    for name, (_, words) in BAD.items():
        lines = [line for line in done.out.splitlines() if line.startswith(f"file/{name}: ")]
        assert lines, name
        assert all("invalid" in line and words in line for line in lines), lines
    assert "Traceback" not in done.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--config", "config.yaml"), "config.yaml: proposals_per_round is 0; expected at least 1"),
        (("--max-seconds", "-5"), "--max-seconds is -5; expected above 0"),
        (("--max-candidates", "-3"), "--max-candidates is -3; expected at least 1"),
        (("--max-candidates", "0"), "--max-candidates is 0; expected at least 1"),
        (("--max-requests", "-4"), "--max-requests is -4; expected at least 0"),
        (("--max-usd", "-1"), "--max-usd is -1; expected at least 0"),
        (("--max-usd", "5"), "--max-usd is for models at an endpoint; expected --model NAME"),
        (
            ("--strategy", "fsr"),
            "--strategy is for models, and none is asked; add --model NAME, or leave it out",
        ),
        (
            ("--language", "cuda"),
            "--language is for models, and none is asked; add --model NAME, or leave it out",
        ),
        (
            ("--export-requests", "r.jsonl"),
            "--export-requests is for models at an endpoint; expected --model NAME",
        ),
        (
            ("--export-requests", "none/r.jsonl", "--model", "m"),
            "--export-requests: none: no such folder; make it",
        ),
        (
            ("--import-replies", "r.jsonl"),
            "--import-replies is for models at an endpoint; expected --model NAME",
        ),
        (
            ("--ray-address", "auto", "--engine", "local"),
            "--ray-address is of a Ray cluster, and the engine is local; leave it out, or take "
            "--engine ray",
        ),
        (
            ("--train", "small"),
            "--train is for a checkpoint; expected --model local:FOLDER",
        ),
        (("--engine", "loca"), "--engine is 'loca'; expected 'ray' or 'local'"),
        (("--device", "tpu"), "--device is 'tpu'; expected 'auto', 'cpu' or 'cuda'"),
        (("--learn",), "--learn needs weights of its own; expected --model local:FOLDER"),
        (("--own-gpu",), "--own-gpu is for weights of ours; expected --model local:FOLDER"),
        (
            ("--own-gpu", "--model", "local:x", "--engine", "local"),
            "--own-gpu needs lanes in processes of their own; take engine ray",
        ),
        (("--name", ""), "run name '': expected letters, digits, '.', '_' and '-'"),
    ],
)
def test_an_option_that_cannot_be_is_one_line_and_starts_nothing(tmp_path, cli, arguments, line):
    (tmp_path / "config.yaml").write_text("proposals_per_round: 0\n")
    done = cli(tmp_path, "optimize", "builtin/softmax", *arguments)
    assert done == (2, "", f"warpsmith: {line}\n")
    assert not (tmp_path / "runs").exists()


def test_options_for_models_are_refused_before_torch_is_loaded(tmp_path):
    command = [*COMMAND, "optimize", "softmax", "--export-requests", "r.jsonl"]
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pydantic" in done.stderr
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("bench", ".", "--seconds", "-3"), "--seconds is -3; expected at least 0"),
        (("bench", ".", "--suite", "builti"), "unknown task 'builti'; did you mean 'builtin'?"),
        (("tasks", "validate", "--seconds", "-1"), "--seconds is -1; expected at least 0"),
        (("data", "tasks", "--to", "o", "--count", "-1"), "--count is -1; expected at least 1"),
        (("data", "tasks", "--to", "o", "--seed", "-1"), "--seed is -1; expected at least 0"),
        (("data", "examples", "r", "--to", "o", "--per-task", "0"), "--per-task is 0; expected at"),
        (
            ("data", "examples", "r", "--to", "o", "--made", "builtin=0"),
            "--made is 'builtin=0'; expected SUITE=COUNT, such as builtin=20",
        ),
        (
            ("data", "tasks", "--to", "o", "--kind", "row"),
            "--kind is 'row'; expected 'rows' or 'any'",
        ),
        (("extract", "m.py", "--to", "o", "--top", "0"), "--top is 0; expected at least 1"),
        (("apply", "m.py", "--library", "l", "--pairs", "1"), "--pairs is 1; expected at least 2"),
        (("prompt", "softmax", "--language", "fortran"), "--language is 'fortran'; expected 'cpp'"),
        (
            ("prompt", "softmax", "--language", "triton", "--device", "cpu"),
            "builtin/softmax runs on cpu, where triton does not",
        ),
    ],
)
def test_an_option_of_another_verb_is_one_line_too(tmp_path, cli, arguments, line):
    done = cli(tmp_path, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"warpsmith: {line}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_built_in_proposer_names_them_too(folder):
    done = optimize(folder, "problems")
    assert (done.code, done.err) == (2, "")
    for name in BAD:
        assert f"\nfile/{name}: " in done.out
    assert "Traceback" not in done.out


@pytest.mark.slow
def test_a_bad_problem_does_not_stop_a_good_one(folder):
    done = optimize(folder, "good.py", "problems/constant.py")
    assert (done.code, done.err) == (0, "")
    assert "\nfile/constant: " in done.out
    assert "1 candidates" in done.out


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        ("while True: pass", "TIMEOUT", "no answer within 3 s"),
        pytest.param(
            "import ctypes; ctypes.string_at(0)", "RUNTIME_ERROR", "SIGSEGV", marks=pytest.mark.slow
        ),
        pytest.param(
            "import sys; sys.exit(0)", "RUNTIME_ERROR", "SystemExit", marks=pytest.mark.slow
        ),
        ("hog = bytearray(b'x') * (2 << 30)", "OUT_OF_MEMORY", "the limit is 1024 MiB"),
    ],
    ids=["hangs", "segfaults", "sys.exit", "allocates"],
)
def test_a_kernel_that_ends_badly_is_a_status_and_code_1(folder, evaluate, lines, status, words):
    if status == "OUT_OF_MEMORY":  # a gigabyte's first touch may take seconds
        (folder / "preset.yaml").write_text(PRESET.replace("run_timeout_s: 3", "run_timeout_s: 60"))
    kernel = GOOD.replace("Model", "ModelNew").replace(
        "return torch", f"{lines}\n        return torch"
    )
    (folder / "kernel.py").write_text(kernel)
    done = evaluate("good.py", "kernel.py")
    assert (done.code, done.err) == (1, "")
    verdict, detail = done.out.splitlines()[:2]
    assert verdict.startswith(f"{status}  file/good  ")
    assert words in detail
    assert "harness" not in done.out


@pytest.mark.slow
def test_a_kernel_that_prints_100_mb_passes_with_its_output_cut(folder, evaluate):
    (folder / "kernel.py").write_text(
        "print('noise ' * ((100 << 20) // 6))\n" + GOOD.replace("Model", "ModelNew")
    )
    done = evaluate("good.py", "kernel.py")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("PASSED")
    assert len(done.out) < 100_000


def test_a_kernel_against_a_problem_that_cannot_be_scored_is_code_2(evaluate):
    done = evaluate("problems/random.py", "kernel.py")
    assert (done.code, done.err) == (2, "")
    verdict, detail = done.out.splitlines()
    assert verdict.startswith("INVALID_REFERENCE")
    assert "stochastic" in detail


@pytest.mark.parametrize("arguments", [(), ("--language", "cuda")])
def test_a_kernel_for_a_gpu_is_not_judged_on_the_cpu(folder, cli, arguments):
    text = GOOD if arguments else f"import triton\n{GOOD}"
    (folder / "kernel.py").write_text(text.replace("Model", "ModelNew"))
    done = cli(folder, "evaluate", "good.py", "kernel.py", "--device", "cpu", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "kernels need a GPU" in done.err


@pytest.mark.slow
def test_a_missing_compiler_is_ours_to_mend_and_not_the_kernels_fault(folder):
    (folder / "bin").mkdir()
    (folder / "kernel.py").write_text(
        "from torch.utils.cpp_extension import load_inline\n"
        "load_inline('k', ['int f() { return 1; }'], is_python_module=False,\n"
        "            no_implicit_headers=True)\n" + GOOD.replace("Model", "ModelNew")
    )
    rest = ("--device", "cpu", "--language", "cpp", "--preset", "preset.yaml")
    variables = {"PATH": str(folder / "bin")}
    done = run(folder, "evaluate", "good.py", "kernel.py", *rest, environment=variables)
    assert done.code == 2
    assert "g++" in done.out + done.err
    assert "COMPILE_ERROR" not in done.out
