"""Where an operator's graph occurs: what is skipped between its operators, and what is not."""

import pytest
import torch
from torch import nn

from agent.export.runtime import graphs, matching
from agent.export.runtime.substitution import Patch
from tests.agent.test_export_direct import custom


def graph_of(call, *given: torch.Tensor) -> torch.fx.Graph:
    class Model(nn.Module):
        def forward(self, *given):
            return call(*given)

    return graphs.decompose(graphs.trace(Model(), given, {})).graph


def occurs(pattern, call, *given: torch.Tensor) -> bool:
    """Whether the operator of `pattern` is in the model that `call` is."""
    _, fakes = graphs.fake([(g.dtype, g.shape, g.stride()) for g in given], "cpu")
    looked_for = matching.Pattern.of(graphs.decompose_call(pattern, fakes))
    return any(True for _ in matching.occurrences(looked_for, graph_of(call, *given)))


def squashed(x):
    return torch.relu(torch.sigmoid(x))


@pytest.mark.parametrize(
    "between",
    [lambda y: y.permute(-2, -1), lambda y: y.view(4, 4), lambda y: y.clone(), lambda y: y.float()],
    ids=["permute", "view", "clone", "float"],
)
def test_operators_that_change_nothing_are_skipped(between):
    assert occurs(squashed, lambda x: torch.relu(between(torch.sigmoid(x))), torch.randn(4, 4))


@pytest.mark.parametrize(
    "between",
    [lambda y: y.permute(-1, 0), lambda y: y.permute(1, 0), lambda y: y.T],
    ids=["negative", "positive", "T"],
)
def test_a_permutation_of_equal_sizes_is_not_skipped(between):
    assert not occurs(squashed, lambda x: torch.relu(between(torch.sigmoid(x))), torch.randn(4, 4))


def test_an_end_of_the_gradient_is_not_skipped():
    def stopped(x):
        return x * torch.sigmoid(x).detach()

    def silu(x):
        return x * torch.sigmoid(x)

    x = torch.randn(4, 4)
    assert occurs(silu, silu, x)
    assert occurs(stopped, stopped, x)
    assert not occurs(silu, stopped, x)
    assert not occurs(stopped, silu, x)


SWISH = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x * torch.sigmoid(x))
"""


@pytest.mark.parametrize(
    ("end", "replaced"),
    [
        (lambda y: y.permute(0, 2, 3, 1).view(2, -1), 0),
        (lambda y: (y + 1).permute(0, 2, 3, 1).view(2, -1), 0),
        (lambda y: y.permute(0, 2, 3, 1).reshape(2, -1), 1),
    ],
    ids=["view", "later view", "reshape"],
)
def test_a_view_that_contiguous_results_do_not_have_keeps_the_models_own(
    tmp_path, monkeypatch, end, replaced
):
    class Model(nn.Module):
        def forward(self, x):
            return end(torch.tanh(x * torch.sigmoid(x)))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    kernel = SWISH.replace("Model(", "ModelNew(")
    op = custom(tmp_path, SWISH, kernel, (x,), inputs=(("x", "Tensor"),), state=())
    model = Model().eval()
    patch = Patch(model, {"tested": op})
    found = model(x)
    assert len(patch.replaced) == replaced
    patch.unpatch()
    torch.testing.assert_close(found, model(x))
