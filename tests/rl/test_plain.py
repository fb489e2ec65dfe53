"""What a policy learns to write: plainer than the feature proposer's text, and the same program."""

import re

import pytest

from agent.features.assemble import MADE, candidate
from agent.features.proposer import FeatureProposer
from kernelbench.suite import load_tasks
from rl.plain import plain
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language
from tests.agent import cuda_emulator
from tests.agent.features_references import BOUNDS, cuda_points, task, traced, worst_error

CONFIG = EvalConfig(baselines=(), batch_ms=1.0, rounds=4, scales=(3.0,), changes=())


def kernel_of(problem):
    [proposal] = FeatureProposer().propose(problem, [], 1)
    return proposal.candidate.source


def test_what_cannot_be_told_from_the_task_is_gone():
    [problem] = load_tasks("builtin/softmax", "cpu")
    source = kernel_of(problem)
    text = plain(source)
    for word in ("features_", "out__softmax", "ROWS", "\n// Bound"):
        assert word in source
        assert word not in text
    assert text == plain(text)


def test_what_is_quoted_of_the_reference_keeps_its_names():
    quote = "// 1: v17 = torch.sin(v3) * out_x"
    lines = f"{quote}\nconst float v9 = sinf(v3);\n  // A word on it.\nout_sin[c] = v9;\n"
    text = plain(f"SOURCE = r'''\n{MADE}\n{lines}'''\nuse(SOURCE)\n")
    assert f"{quote}\nconst float v0 = sinf(v1);\nout0[c] = v0;\n" in text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.slow
def test_values_are_numbered_as_they_come(device):
    [problem] = load_tasks("builtin/residual_add_layer_norm", device)
    text = plain(kernel_of(problem))
    numbers = [int(number) for number in re.findall(r"\bv(\d+)", text)]
    assert len(set(numbers)) > 10
    assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    assert "// Made" not in text
    assert set(re.findall(r"\bout_?\w+?\b", text)) <= {"out0", "out0_row", "out0_vector"}
    assert text == plain(text)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_constants_stand_where_they_are_used(device):
    [problem] = load_tasks("builtin/residual_add_layer_norm", device)
    source = kernel_of(problem)
    lifted = r"const float v\d+ = (?:-?\d[\d.e-]*f|\(float\)columns);"
    assert re.search(lifted, source)
    text = plain(source)
    assert not re.search(lifted, text)
    assert re.search(r"v\d+ \+ 1e-05f;", text)
    assert "((float)columns)" in text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_loaded_is_called_after_its_input(device):
    [problem] = load_tasks("builtin/swiglu", device)
    text = plain(kernel_of(problem))
    for number in (0, 1):
        loaded = rf"p{number}_row( \+ c, in{number}_|\[c\];)"
        assert re.search(loaded, text)
        assert re.search(rf"[-+*/(] ?in{number}\b", text), "and used under that name"
    assert not re.search(r"p\d+_row \+ c, v\d|v\d+ = p\d+_row\[c\]", text)


def test_an_input_that_is_loaded_as_two_values_names_neither():
    lines = "const float v1 = p0_row[c];\nconst float v2 = p0_row[c];\nout = v1 + v2;\n"
    assert "out = v0 + v1" in plain(f"SOURCE = r'''\n{MADE}\n{lines}'''\nuse(SOURCE)\n")


def test_a_name_of_two_constants_stays_a_name():
    one, other = "const float v1 = 2.0f;\nout = v0 * v1;\n", "const float v1 = 3.0f;\nout = v1;\n"
    text = plain(f"SOURCE = r'''\n{MADE}\n{one}{other}'''\nuse(SOURCE)\n")
    assert [text.count(f"v0 = {value}.0f") for value in (2, 3)] == [1, 1]


def test_another_source_is_left_as_it_is():
    text = "import torch\nROWS = 3\nv17 = 2\n"
    assert plain(text) == text


@pytest.mark.parametrize("name", ["cross_entropy", "softmax", "swiglu", "mse"])
@pytest.mark.slow
def test_the_plain_kernel_computes_on_a_gpu_what_the_given_one_does(name, tmp_path):
    problem = task(name, "cuda")
    found = traced(problem)
    for point in cuda_points(found, 2):
        source = plain(candidate(problem, found, point).source)
        module = cuda_emulator.load(source, tmp_path)
        assert worst_error(problem, module) < BOUNDS["float32"], point


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross_entropy", "residual_add_layer_norm"])
def test_the_plain_kernel_passes_as_the_given_one_does(name, tmp_path):
    [problem] = load_tasks(f"builtin/{name}", "cpu")
    evaluator = LocalEvaluator("cpu", cache_dir=tmp_path)
    written = Candidate(problem.id, Language.CPP, plain(kernel_of(problem)))
    found = evaluator.evaluate(problem, written, CONFIG, to_beat=100.0)
    evaluator.close()
    assert found.passed, found.detail
