"""Generated C++ candidates, really built and run; recognition of row programs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from agent.features import cpp
from agent.features.assemble import candidate
from agent.features.cpp import default
from sandbox.types import Language, Shape, Task
from tests.agent.features_references import NAMES, proposer, shared, task, traced, worst_error

CONVOLUTION = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(3, 4, 2)
    def forward(self, x):
        return self.convolution(x)
def get_inputs():
    return [torch.rand(2, 3, 8)]
def get_init_inputs():
    return []
"""

CHANNELS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(5).eval()
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)
        self.norm.weight.data.normal_()
    def forward(self, x, y):
        return torch.nn.functional.silu(self.norm(x) + y)
def get_inputs():
    return [torch.randn(3, 5, 7, 11), torch.randn(3, 5, 7, 11)]
def get_init_inputs():
    return []
"""


def load(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "candidate.py", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _extensions(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))


@pytest.mark.parametrize("name", shared(NAMES))
def test_default_candidate_is_right_at_every_shape(name: str) -> None:
    (proposal,) = proposer().propose(task(name), [], 1)
    assert proposal.candidate.language is Language.CPP
    assert worst_error(task(name), load(proposal.candidate.source)) < 5e-6


def test_batch_norm_has_its_figures_per_channel() -> None:
    given = Task("test/channels", CHANNELS, "cpu")
    (proposal,) = proposer().propose(given, [], 1)
    assert worst_error(given, load(proposal.candidate.source)) < 5e-6


@pytest.mark.parametrize("name", ["softmax", "layer_norm_residual", "cross_entropy"])
@pytest.mark.parametrize(
    "change",
    [{"form": "tiles"}, {"form": "rows"}, {"keep": 0, "chunk": 1024}, {"vector_bits": 256}],
    ids=str,
)
def test_features_do_not_change_the_result(name: str, change: dict[str, str | int]) -> None:
    found = traced(task(name))
    features = {**default(found.programs[found.main]), **change}
    made = candidate(task(name), found, features)
    assert worst_error(task(name), load(made.source)) < 5e-6


def test_nan_and_infinity_pass_through_the_maximum() -> None:
    module = load(proposer().propose(task("row_extremes"), [], 1)[0].candidate.source)
    x = torch.zeros(37, 131)
    x[0, 7], x[1, 130], x[2] = float("nan"), float("inf"), float("-inf")
    highest = module["ModelNew"](131)(x, x, torch.zeros(37, dtype=torch.int64))[0]
    assert torch.equal(highest, x.amax(-1)) or highest[0].isnan()
    assert torch.equal(highest[1:], x.amax(-1)[1:])


def test_outputs_stay_valid_and_follow_parameters() -> None:
    model = load(proposer().propose(task("rms_norm"), [], 1)[0].candidate.source)["ModelNew"](8)
    x, t = torch.randn(3, 8), torch.zeros(3, dtype=torch.int64)
    first = model(x, x, t)
    kept = first.clone()
    with torch.no_grad():
        model.bias.mul_(2)
    assert torch.allclose(model(x.t().contiguous().t(), x, t), 2 * kept)
    assert torch.equal(first, kept)


def test_unsupported_says_which_operator() -> None:
    other = Task("test/convolution", CONVOLUTION, "cpu")
    assert proposer().unsupported(other) == "no feature template for aten.convolution"
    assert proposer().propose(other, [], 3) == []


def test_dimensions_are_told_apart_by_identity_not_by_size() -> None:
    source = task("row_sum").source.replace("x.sum(-1)", "x - x.mean(-1)")
    square = Task("test/square", source, "cpu", shapes=(Shape("s", (("ROWS", 8), ("COLS", 8))),))
    assert proposer().unsupported(square) is not None


def test_exponentials_are_vectorised(tmp_path: Any) -> None:
    found = traced(task("softmax"))
    features = default(found.programs[0])
    (tmp_path / "k.cpp").write_text(cpp.PRELUDE + cpp.kernel(found.programs[0], "k", features))
    flags = cpp.flags(features)
    built = ["g++", *flags, "-S", str(tmp_path / "k.cpp"), "-o", str(tmp_path / "k.s")]
    subprocess.run(built, check=True)
    assert "_ZGV" in (tmp_path / "k.s").read_text()
