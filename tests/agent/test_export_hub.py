"""A repository for the `kernels` library: its files, its layers, and the library itself on it."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from agent.export.artefact import Gathered, gather
from agent.export.hub import export_hub, layer_name
from agent.export.manifest import read_manifest
from sandbox.errors import ConfigError
from tests.agent.export_cuda import cuda_artefact
from tests.agent.export_library import cpp_campaign

WINS = {"bias_relu": "speedup=3.0", "decayed": "speedup=2.0", "signs": "speedup=1.6"}


class BiasRelu(nn.Module):
    """As a user writes it: the reference's parameters, a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(32))

    def forward(self, x):
        return torch.relu(x + self.bias)


class Decayed(nn.Module):
    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay

    def forward(self, x, scale):
        return x * self.decay * scale, x[:, 0]  # tells its own forward from the kernel's


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    found = gather([cpp_campaign(folder / "run", **WINS)], "Apache-2.0")
    export_hub(Gathered((*found.artefacts, cuda_artefact("gpu/other")), ()), folder / "out", "a_b")
    return folder / "out"


@pytest.fixture(scope="module")
def kernels(repository, tmp_path_factory):
    """The CPU's variant, imported as a package of another name."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        path = repository / "build" / "torch-cpu" / "__init__.py"
        spec = importlib.util.spec_from_file_location("some_variant", path)
        sys.modules["some_variant"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    for name in [n for n in sys.modules if n.partition(".")[0] == "some_variant"]:
        del sys.modules[name]


def under(layer: type[nn.Module], module: nn.Module) -> nn.Module:
    """What `kernelize` does."""
    module.forward = layer.forward.__get__(module)
    return module


def hits(kernels, name: str) -> dict[str, int]:
    return kernels.counts()[name]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_metadata_is_what_the_library_asks_for(repository, device):
    metadata = json.loads((repository / "build" / f"torch-{device}" / "metadata.json").read_text())
    assert re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", metadata["name"])
    assert metadata["id"].isidentifier()
    assert metadata["backend"] == {"type": device}
    assert metadata["python-depends"] == []
    assert metadata["version"] == 1
    assert metadata["license"] == "Apache-2.0"


def test_every_device_is_a_variant_with_its_own_operators(repository):
    tables = {
        folder.name: [o["name"] for o in json.loads(path.read_text())["operators"]]
        for folder in (repository / "build").iterdir()
        for path in [folder / "library.json"]
    }
    assert tables == {"torch-cpu": ["bias_relu", "decayed", "signs"], "torch-cuda": ["other"]}
    assert read_manifest(repository)["without_layer"] == {}


def test_a_layer_calls_the_kernel_with_the_modules_own_parameters(kernels):
    first, second = (under(kernels.layers.BiasRelu, BiasRelu()) for _ in range(2))
    x = torch.randn(64, 32)
    for module in (first, second, first):
        assert torch.equal(module(x), torch.relu(x + module.bias))
    assert hits(kernels, "bias_relu")["kernel"] == 3
    first(x).sum().backward()
    assert torch.equal(first.bias.grad, (x + first.bias > 0).float().sum(0))


def test_a_module_with_other_attributes_keeps_its_own_forward(kernels, caplog):
    x = torch.randn(48, 16)
    same, other = (under(kernels.layers.Decayed, Decayed(decay)) for decay in (0.75, 0.5))
    same(x, 0.5)
    assert hits(kernels, "decayed") == {"kernel": 1}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found, _ = other(x, 0.5)
            assert torch.equal(found, x * 0.25)
    assert hits(kernels, "decayed") == {"kernel": 1, "another module": 2}
    [record] = caplog.records
    assert "Decayed is not the module that was measured" in record.message


def test_a_module_without_the_parameter_keeps_its_own_forward(kernels):
    class Plain(nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.randn(64, 32)
    assert torch.equal(under(kernels.layers.BiasRelu, Plain())(x), x + 1)


class Gated(BiasRelu):
    """With more than the reference has."""

    def __init__(self, **more):
        super().__init__()
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "more",
    [
        {"gate": nn.Parameter(torch.zeros(32))},
        {"gate": nn.Buffer(torch.zeros(32))},
        {"gate": nn.Identity()},
        {"eps": 1e-5},
    ],
    ids=["parameter", "buffer", "module", "attribute"],
)
def test_a_module_with_more_than_the_reference_keeps_its_own_forward(kernels, more):
    x = torch.randn(64, 32)
    module = under(kernels.layers.BiasRelu, Gated(**more))
    before = hits(kernels, "bias_relu").get("another module", 0)
    assert torch.equal(module(x), torch.relu(x + module.bias) + 1)
    assert hits(kernels, "bias_relu")["another module"] == before + 1


def test_methods_that_a_module_is_given_are_not_more(kernels):
    x, module = torch.randn(64, 32), under(kernels.layers.BiasRelu, BiasRelu())
    module.train = nn.Module.train.__get__(module)
    before = hits(kernels, "bias_relu").get("kernel", 0)
    module(x)
    assert hits(kernels, "bias_relu")["kernel"] == before + 1


@pytest.mark.slow
def test_layers_compile_into_one_graph(kernels):
    module = under(kernels.layers.BiasRelu, BiasRelu())
    x = torch.randn(64, 32)
    found = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, torch.relu(x + module.bias))


def test_layers_hold_no_more_than_the_library_allows(kernels):
    allowed = set(dir(nn.Module)) | {"has_backward", "can_torch_compile"}
    for kind in (kernels.layers.BiasRelu, kernels.layers.Signs):
        assert set(dir(kind)) <= allowed
        assert kind.__init__ is nn.Module.__init__
    assert kernels.layers.BiasRelu.has_backward
    assert not kernels.layers.Signs.has_backward


def test_a_layers_name_is_its_operators():
    assert layer_name("level1_19_relu") == "Level119Relu"


def test_nothing_to_export_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match="nothing to put in a repository: test/a: because"):
        export_hub(Gathered((), (("test/a", "because"),)), tmp_path / "out", "a_b")


@pytest.mark.slow
def test_the_library_loads_it_and_kernelizes_a_model(repository, tmp_path, monkeypatch):
    library = pytest.importorskip("kernels", reason="needs the package kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    loaded = library.get_local_kernel(repository)
    assert (
        library.get_local_kernel(repository).names
        == loaded.names
        == ("bias_relu", "decayed", "signs")
    )
    marked = library.use_kernel_forward_from_hub("BiasRelu")(
        type("Marked", (BiasRelu,), {"forward": BiasRelu.forward})
    )
    model = nn.Sequential(nn.Linear(16, 32), marked(), nn.Linear(32, 8))
    x = torch.randn(64, 16)
    wanted = model(x)
    layer = library.LocalLayerRepository(repository, layer_name="BiasRelu")
    mapping = {"BiasRelu": {"cpu": layer}}
    with library.use_kernel_mapping(mapping):
        for mode in (
            library.Mode.INFERENCE,
            library.Mode.TRAINING,
            library.Mode.INFERENCE | library.Mode.TORCH_COMPILE,
        ):
            kernelized = library.kernelize(model, mode=mode, device="cpu")
            before = library.get_local_kernel(repository).counts()["bias_relu"].get("kernel", 0)
            torch.testing.assert_close(kernelized(x), wanted)
            counts = library.get_local_kernel(repository).counts()["bias_relu"]
            assert counts["kernel"] == before + 1
    compiled = torch.compile(kernelized, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), wanted)
