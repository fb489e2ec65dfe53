"""Operators where sizes are symbolic: the shapes they promise are those they return."""

import importlib
import sys

import pytest
import torch
import torch.nn.functional as F

from agent.export.artefact import gather
from agent.export.package import export_package
from tests.agent.export_library import cpp_campaign

NAME = "symbolic_kernels"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("symbolic")
    gathered = gather([cpp_campaign(folder / "run", row_losses="speedup=3")])
    export_package(gathered, folder / "out", NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.syspath_prepend(str(folder / "out" / "source"))
        yield importlib.import_module(NAME)
    for name in [n for n in sys.modules if n.partition(".")[0] == NAME]:
        del sys.modules[name]


def inputs(rows=24):
    return torch.randn(rows, 10, requires_grad=True), torch.randint(0, 10, (rows,))


@pytest.mark.slow
def test_a_loss_of_every_row_passes_opcheck(kernels):
    op = kernels.operator("row_losses")
    logits, targets = inputs()
    wanted = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(op(logits, targets), wanted)
    torch.library.opcheck(op.op, (logits, targets, op.operator.init))
    assert kernels.counts()["row_losses"]["kernel"] > 1


def test_a_loss_of_every_row_stays_one_where_any_number_of_rows_is_compiled_for(kernels):
    layer = kernels.layer("row_losses")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (24, 7):
        logits, targets = inputs(rows)
        wanted = F.cross_entropy(logits, targets, reduction="none")
        found = compiled(logits, targets)
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(loss.sum(), logits) for loss in (found, wanted)]
        torch.testing.assert_close(*gradients)
