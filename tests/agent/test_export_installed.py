"""The wheel in an environment of its own, without Warpsmith: what a user of the library does."""

import json
from pathlib import Path

import pytest

from agent.export.artefact import gather
from agent.export.package import export_package
from tests.agent.export_library import cpp_campaign
from tests.agent.export_venv import install, run_python

USE = """
import importlib.util, json, sys, threading
import torch
import installed_kernels as kernels

assert importlib.util.find_spec("sandbox") is importlib.util.find_spec("warpsmith") is None
assert "site-packages" in kernels.__file__
op = kernels.operator("bias_relu")
x, bias = torch.randn(64, 32), torch.randn(32)
assert not any("_kernel_" in name for name in sys.modules)  # loaded when they are needed
barrier, wrong = threading.Barrier(8), []

def work():
    barrier.wait()  # the first calls load and compile the kernel together
    for _ in range(20):
        if not torch.equal(op(x, bias), torch.relu(x + bias)):
            wrong.append(1)

threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong
assert torch.equal(op(x[:9], bias), torch.relu(x[:9] + bias))
op.op(x.requires_grad_(), bias, "[32]").sum().backward()
assert torch.equal(x.grad, (x + bias > 0).float())
torch.library.opcheck(op.op, (x, bias, "[32]"))
print(json.dumps(kernels.counts()["bias_relu"]))
"""
FIRST = 'k.operator("bias_relu")(torch.randn(64, 32), torch.randn(32))'
COMPILED = """
import torch
import installed_kernels as kernels

layer = kernels.layer("bias_relu")
block = torch.nn.Sequential(torch.nn.Linear(16, 32), layer, torch.nn.Linear(32, 8))
x = torch.randn(64, 16)
wanted = block(x)
found = torch.compile(block, fullgraph=True)(x)
torch.testing.assert_close(found, wanted)
found.sum().backward()
gradient = layer.bias.grad.clone()
layer.bias.grad = None
wanted.sum().backward()
torch.testing.assert_close(gradient, layer.bias.grad)
dynamic = torch.compile(block, fullgraph=True, dynamic=True)
for rows in (3, 64, 65):
    x = torch.randn(rows, 16)
    torch.testing.assert_close(dynamic(x), block(x))
assert kernels.counts()["bias_relu"]["kernel"] >= 4
assert kernels.counts()["bias_relu"]["not measured here"] >= 4
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> tuple[Path, Path]:
    """The interpreter and a folder for compiled kernels."""
    folder = tmp_path_factory.mktemp("installed")
    gathered = gather([cpp_campaign(folder / "run", bias_relu="speedup=3.0")])
    export_package(gathered, folder / "out", "installed_kernels")
    [wheel] = (folder / "out" / "dist").glob("*.whl")
    (folder / "cache").mkdir()
    return install(wheel, folder / "venv"), folder / "cache"


@pytest.mark.slow
def test_an_installed_library_works_without_warpsmith(installed):
    found = json.loads(run_python(*installed, "-c", USE))
    assert found["kernel"] > 160
    assert found["not measured here"] == 1


@pytest.mark.slow
def test_an_installed_library_answers_from_a_shell(installed):
    python, cache = installed
    off = run_python(python, cache, "-m", "installed_kernels", "table", INSTALLED_KERNELS_OFF="all")
    assert "reference: switched off" in off
    assert "files are as they were built" in run_python(
        python, cache, "-m", "installed_kernels", "verify"
    )


DAMAGED = """
import logging, sys
import torch
import installed_kernels as kernels

logging.basicConfig(stream=sys.stdout)
x, bias = torch.randn(64, 32), torch.randn(32)
for _ in range(2):
    assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
assert kernels.counts()["bias_relu"] == {"kernel": 2}, kernels.counts()
"""


@pytest.mark.slow
def test_a_library_that_was_cut_short_is_compiled_again_with_one_warning(installed):
    python, cache = installed
    run_python(python, cache, "-c", "import installed_kernels as k, torch\n" + FIRST)
    [library] = cache.rglob("*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[:1000])  # mapping it would be a SIGBUS
    [line] = run_python(python, cache, "-c", DAMAGED).splitlines()
    assert "damaged or unfinished; compiling it again" in line
    assert len(library.read_bytes()) == len(whole)


@pytest.mark.slow
def test_a_model_around_an_operator_compiles_into_one_graph(installed):
    run_python(*installed, "-c", COMPILED)
