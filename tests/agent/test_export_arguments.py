"""What operators are given: tensors of inference mode, storage that was freed, too few of them."""

from pathlib import Path

import pytest
import torch

from agent.export.runtime.operators import Custom
from tests.agent.test_export_direct import KERNEL, REFERENCE, custom, inputs


@pytest.fixture
def op(tmp_path: Path, monkeypatch) -> Custom:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return custom(tmp_path, REFERENCE, KERNEL, inputs())


@pytest.mark.parametrize("past", [True, False], ids=["past the dispatcher", "through it"])
def test_a_tensor_of_inference_mode_may_stand_beside_one_with_a_gradient(op, past):
    _, weight = inputs()
    with torch.inference_mode():
        x = torch.randn(8, 4)
    weight.requires_grad_()
    (op(x, weight) if past else op.op(x, weight, "[]")).sum().backward()
    torch.testing.assert_close(weight.grad, torch.sin(x.clone()).sum(0))
    assert op.dispatch.counts.read() == {"kernel": 1}


IMPORTED = "import torch\nSCRATCH = torch.zeros(4)"
CONSTRUCTED = "super().__init__()\n        self.scratch = torch.zeros(4)"
LATER = "self.__dict__.setdefault('scratch', torch.empty(4)).zero_()"


@pytest.mark.parametrize(
    ("made", "there", "used"),
    [
        ("import torch", IMPORTED, "SCRATCH.zero_()"),
        ("super().__init__()", CONSTRUCTED, "self.scratch.zero_()"),
        ("import torch", "import torch", LATER),
    ],
    ids=["imported", "constructed", "called"],
)
def test_a_kernel_that_was_first_called_in_inference_mode_works_outside(
    tmp_path, monkeypatch, made, there, used
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernel = KERNEL.replace(made, there).replace("return", f"{used}\n        return")
    op, (x, weight) = custom(tmp_path, REFERENCE, kernel, inputs()), inputs()
    with torch.inference_mode():
        op(x, weight)
    torch.testing.assert_close(op(x, weight), torch.sin(x) * weight)
    with torch.inference_mode():
        op(x, weight)
    op(x, weight)
    assert op.dispatch.counts.read() == {"kernel": 4}


def test_parameters_that_lie_where_freed_ones_lay_are_not_taken_for_them(tmp_path, monkeypatch):
    """As sharded training frees and fills what it gathers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x, first = torch.randn(1, 5000), torch.randn(5000)
    op = custom(tmp_path, REFERENCE, KERNEL, (x, first))
    kept, storage = first.clone(), first.untyped_storage()
    for _ in range(100):  # until the allocator gives the old place away again
        op(x, first)
        place = first.data_ptr()
        storage.resize_(0)
        others = [torch.randn(5000) for _ in range(100)]
        storage.resize_(5000 * kept.element_size())
        first.copy_(kept)
        found = [other for other in others if other.data_ptr() == place]
        if found:
            break
    torch.testing.assert_close(op(x, found[0]), torch.sin(x) * found[0])
    torch.testing.assert_close(op(x, first), torch.sin(x) * first)


@pytest.mark.parametrize("given", [0, 1])
def test_too_few_arguments_are_told_with_their_names(op, given):
    message = rf"tested takes 2 arguments \(x, weight\), not {given}"
    with pytest.raises(TypeError, match=message):
        op(*inputs()[:given])


def test_none_in_the_place_of_a_tensor_is_told_with_its_name(op):
    with pytest.raises(TypeError, match="tested: weight is None; expected a tensor"):
        op(inputs()[0], None)
