"""Generated C++ candidates, really built and run; recognition of row programs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from agent.features import cpp
from agent.features.assemble import candidate, without_header
from agent.features.cpp import default
from agent.features.emit import quoted
from sandbox.types import Language, Shape, Task
from tests.agent.features_references import (
    GROUPED,
    NAMES,
    NORMS,
    chained,
    grouped,
    pooled,
    proposer,
    shared,
    strided,
    task,
    traced,
    worst_error,
)

SORT = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sort(x)[0]
def get_inputs():
    return [torch.rand(2, 8)]
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

PRODUCT = """
import torch
LENGTH = 6
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(24, 17)
        self.convolution = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = torch.nn.LayerNorm(17)
        self.layers = torch.nn.Sequential(torch.nn.Linear(24, 17), torch.nn.LayerNorm(17))
    def forward(self, x, y, image):
        return {body}
def get_inputs():
    return [torch.randn(5, LENGTH, 24), torch.randn(5, 24, 17), torch.randn(2, 3, 9, LENGTH)]
def get_init_inputs():
    return []
"""
FOLLOWED = {
    "linear of three dimensions": "torch.nn.functional.gelu(self.linear(x)) * 0.5",
    "normalised": "self.norm(self.linear(x))",
    "batched": "torch.relu(torch.bmm(x, y)) - 0.1",
    "broadcast": "torch.tanh(torch.matmul(x, self.linear.weight.t()))",
    "convolution": "torch.relu(self.convolution(image)) + 1.0",
    "parameters in a sequence": "torch.relu(self.layers[0](x)) * 2.0",
    "two": "torch.sigmoid(torch.bmm(x, y)) * self.linear(x)",
    "in place": "torch.bmm(x, y).relu_() * 2.0",
}
ALONE = "no feature template for a product that nothing follows"
LEFT = {
    "self.linear(x)": ALONE,
    "torch.bmm(x, y)": ALONE,
    "self.convolution(image)": ALONE,
    "(lambda h: (h.view(-1), h.relu_())[0] * 1.5)(torch.bmm(x, y))": "no feature template for a w",
    "torch.addmm(self.linear.bias, x.flatten(0, 1), self.linear.weight.t(), alpha=2.0).relu()": (
        "no feature template for aten.addmm with factors"
    ),
}


def product(body: str) -> Task:
    shapes = (Shape("one", (("LENGTH", 6),)), Shape("other", (("LENGTH", 11),)))
    return Task("test/product", PRODUCT.format(body=body), "cpu", shapes=shapes)


def load(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(source, "candidate.py", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _extensions(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))


@pytest.mark.parametrize("name", shared(NAMES))
@pytest.mark.slow
def test_default_candidate_is_right_at_every_shape(name: str) -> None:
    (proposal,) = proposer().propose(task(name), [], 1)
    assert proposal.candidate.language is Language.CPP
    assert worst_error(task(name), load(proposal.candidate.source)) < 5e-6


def test_batch_norm_has_its_figures_per_channel() -> None:
    given = Task("test/channels", CHANNELS, "cpu")
    (proposal,) = proposer().propose(given, [], 1)
    assert worst_error(given, load(proposal.candidate.source)) < 5e-6


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.slow
def test_channels_are_normalised_in_groups(name: str) -> None:
    """Read as often as eager does it: once for the figures, and once with each channel's own."""
    (proposal,) = proposer().propose(grouped(name), [], 1)
    assert len(traced(grouped(name)).programs) == GROUPED[name][2]
    assert worst_error(grouped(name), load(proposal.candidate.source)) < 5e-6


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("self.norm(x + self.bias)", "a broadcast within the reduced dimensions"),
        ("self.norm(x) + F.group_norm(x, 3)", "a dimension that is split in two ways"),
        ("torch.chunk(x, 2, 1)[0] + self.norm(x)[:, :6]", "slices other than equal parts"),
    ],
)
def test_groups_that_are_no_program_are_told(body: str, words: str) -> None:
    source = NORMS.format(norm="nn.GroupNorm(4, 12)", body=body)
    assert words in str(proposer().unsupported(Task("test/groups", source, "cpu")))


def test_a_batchs_own_figures_are_told_apart_from_an_instances() -> None:
    source = NORMS.format(norm="nn.BatchNorm2d(12, track_running_stats=False)", body="self.norm(x)")
    words = str(proposer().unsupported(Task("test/batch", source, "cpu")))
    assert "reductions along dimensions apart" in words


def test_on_the_cpu_reductions_along_a_leading_dimension_are_left_alone() -> None:
    words = str(proposer().unsupported(strided("sum", "cpu")))
    assert "in C++ for reductions along a leading dimension" in words


def test_on_the_cpu_too_programs_stand_between_products() -> None:
    problem = chained("two layers", "cpu")
    found = traced(problem)
    assert [made.before for made in found.products] == [0, 1]
    made = candidate(problem, found, default(found.programs[found.main]))
    assert worst_error(problem, load(made.source)) < 5e-6


def test_on_the_cpu_poolings_are_left_alone() -> None:
    assert "in C++ for pooling" in str(proposer().unsupported(pooled("largest", "cpu")))


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


@pytest.mark.parametrize("change", [{"tile": 16, "wide": 8}, {"tile": 128}], ids=str)
def test_tiles_of_transposed_operands_do_not_change_the_result(change: dict[str, int]) -> None:
    found = traced(task("transposed"))
    assert [p.inner for p in found.programs] == ["x0.shape[1]"]
    made = candidate(task("transposed"), found, {**default(found.programs[0]), **change})
    assert worst_error(task("transposed"), load(made.source)) < 5e-6


TURNED = {
    "a batch": ("x.transpose(1, 2).contiguous() + 1.0", True),
    "heads": ("x.reshape(5, LENGTH, 4, 6).permute(0, 3, 1, 2).contiguous() * 2.0", False),
    "both ways": ("x.permute(1, 2, 0).contiguous() + x.permute(1, 0, 2).contiguous().sum()", False),
    "with its bias": ("torch.relu(y.transpose(1, 2).contiguous() + self.linear.weight)", True),
    "channels last": ("image.permute(0, 2, 3, 1).contiguous() * 0.5", True),
    "back": ("x.transpose(1, 2).transpose(1, 2) * 3.0", False),
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.slow
def test_transposed_matrices_of_a_batch_are_right_or_refused(name: str) -> None:
    body, transposes = TURNED[name]
    given = product(body)
    if proposer().unsupported(given) is not None:
        assert not transposes
        return
    found = traced(given)
    assert any(p.inner for p in found.programs) is transposes
    source = proposer().propose(given, [], 1)[0].candidate.source
    assert worst_error(given, load(source)) < 5e-6


QUOTING = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, v1):
        v1 = torch.softmax(x, dim=-1) * v1
        v1 = torch.relu(v1)
        v1 = torch.sin(v1 + len("\\n"))
        v1 = torch.cos(v1 + len('\"\"\"'))
        return v1
def get_inputs():
    return [torch.rand(6, 40), torch.rand(6, 40)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_kernel_quotes_the_statements_above_what_they_became(device: str) -> None:
    [proposal] = proposer().propose(Task("t", QUOTING, device), [], 1)
    source = proposal.candidate.source
    assert quoted(source) == ["1: v1 = torch.softmax(x, dim=-1) * v1", "2: v1 = torch.relu(v1)"]
    relu = source.index("// 2: ")
    assert source.index("< 0 ? 0") > relu > source.rindex("* v", 0, relu) > source.index("// 1: ")
    assert "//=" not in source
    body = without_header(source)
    assert "torch.relu" not in body
    assert "< 0 ? 0" in body


BRANCHES = """
import torch
LENGTH = 6
class Model(torch.nn.Module):
    def forward(self, x):
        if x.shape[-1] > 8:
            wide = torch.relu(x)
            return wide
        return torch.relu(x)
def get_inputs():
    return [torch.randn(3, LENGTH)]
def get_init_inputs():
    return []
"""


def test_shapes_that_run_other_statements_with_equal_operators_have_one_kernel() -> None:
    shapes = (Shape("6"), Shape("16", (("LENGTH", 16),)))
    (proposal,) = proposer().propose(Task("t", BRANCHES, "cpu", shapes=shapes), [], 1)
    assert quoted(proposal.candidate.source) == ["1: return torch.relu(x)"]


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
    other = Task("test/sort", SORT, "cpu")
    assert proposer().unsupported(other) == "no feature template for aten.sort"
    assert proposer().propose(other, [], 3) == []


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_follows_a_product_is_one_kernel(name: str) -> None:
    given = product(FOLLOWED[name])
    found = traced(given)
    assert len(found.programs) == 1
    assert len(found.products) == 1 + (name == "two")
    source = proposer().propose(given, [], 1)[0].candidate.source
    assert worst_error(given, load(source)) < 5e-6


@pytest.mark.parametrize("body", LEFT)
def test_products_that_are_left_to_the_library(body: str) -> None:
    why = proposer().unsupported(product(body))
    assert why is not None
    assert why.startswith(LEFT[body])


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


CHUNKED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        first, second = x.chunk(2, -1)
        return torch.tanh(first) - second * 2.0
def get_inputs():
    return [torch.randn({shape})]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("shape", ["64", "1, 64", "3, 64"])
def test_parts_of_what_has_no_rows_are_told_apart(shape: str) -> None:
    given = Task("test/chunked", CHUNKED.format(shape=shape), "cpu")
    source = proposer().propose(given, [], 1)[0].candidate.source
    assert worst_error(given, load(source)) < 5e-6
