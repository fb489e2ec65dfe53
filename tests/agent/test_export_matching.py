"""Where an operator's graph occurs: what is skipped between its operators, and what is not."""

import pytest
import torch
from torch import nn

from agent.export.runtime import graphs, matching


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
