"""Triton's kernels compiled ahead of the run, where there is no GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from sandbox.building import build
from sandbox.building.build import Builder
from sandbox.building.build_report import BuildReport
from sandbox.building.toolchain import capability
from sandbox.types import Candidate, Language, Shape, Task
from tests.sandbox.conftest import FAST

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)
EXAMPLES = files("agent.prompts") / "examples"
SOURCE = (EXAMPLES / "triton.py.j2").read_text()
TASK = Task("test/ahead", (EXAMPLES / "reference.py.j2").read_text(), "cuda")
TUNED = """
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 256, 512)], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.gpu = torch.cuda.get_device_properties(torch.cuda.current_device())

    def forward(self, x):
        assert x.is_cuda and self.count.is_cuda and x.dtype is torch.float16
        y = torch.empty_like(x)
        grid = lambda meta: (min(self.gpu.multi_processor_count, x.numel() // meta["BLOCK"]),)
        with torch.cuda.device(x.device):
            double[grid](x, y, x.numel())
        return y
"""
DOUBLE = """
import torch
SIZE = 4096
class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x
def get_inputs():
    return [torch.randn(SIZE)]
def get_init_inputs():
    return []
"""
AGAIN = """
import sys
from pathlib import Path
import torch
import triton.backends.nvidia.compiler as nvidia
from sandbox.worker import ahead

def refused(*arguments, **options):
    raise RuntimeError("compiled again")

nvidia.CUDABackend.make_cubin = refused
if sys.argv[1] == "movable":
    ahead.movable_cache()
source, task, folder = map(Path, sys.argv[2:])
calls = ahead.described(task.read_text(), [[]], folder)
said = ahead.compile_ahead(source.read_text(), calls, torch.float32, 90, folder)
print(*said)
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """For a GPU that this machine need not have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
        found = Builder(tmp_path_factory.mktemp("builds"))
    yield found
    found.close()


def triton(source: str, task: Task = TASK) -> Candidate:
    return Candidate(task.id, Language.TRITON, source)


def binaries(report: BuildReport) -> list[str]:
    assert report.failure is None
    return [] if report.kernels is None else sorted(p.name for p in report.kernels.rglob("*.cubin"))


@needs_triton
def test_a_kernel_is_compiled_without_a_gpu_and_kept(builder: Builder) -> None:
    report = builder.build(triton(SOURCE), FAST, TASK)
    assert len(binaries(report)) == 1
    again = builder.build(triton(SOURCE), FAST, TASK)
    assert again.cached
    assert again.kernels == report.kernels


@needs_triton
def test_every_configuration_of_an_autotuner_is_compiled(builder: Builder) -> None:
    task = Task("test/double", DOUBLE, "cuda", dtype="float16")
    assert len(binaries(builder.build(triton(TUNED, task), FAST, task))) == 3


@needs_triton
def test_every_shape_of_a_task_is_compiled_for(builder: Builder) -> None:
    shapes = (Shape("given"), Shape("odd", (("SIZE", 4097),)))
    task = Task("test/double", DOUBLE, "cuda", dtype="float16", shapes=shapes)
    found = builder.build(triton(TUNED, task), FAST, task)
    assert len(binaries(found)) == 6, "4097 is no multiple of 16, which Triton compiles apart"


@needs_triton
def test_a_configuration_that_does_not_compile_leaves_the_others(builder: Builder) -> None:
    bad = "    tl.static_assert(BLOCK != 256)\n    tl.store("
    source = TUNED.replace("    tl.store(", bad, 1)
    task = Task("test/double", DOUBLE, "cuda", dtype="float16")
    assert len(binaries(builder.build(triton(source, task), FAST, task))) == 2


@needs_triton
def test_a_configuration_may_prepare_itself(builder: Builder) -> None:
    hook = "lambda names: names['x'].zero_() if names['BLOCK'] > 1 else 1 / 0"
    source = TUNED.replace('{"BLOCK": block}', '{"BLOCK": block}, pre_hook=' + hook)
    task = Task("test/double", DOUBLE, "cuda", dtype="float16")
    assert len(binaries(builder.build(triton(source, task), FAST, task))) == 3


@needs_triton
def test_constants_on_the_gpu_are_made_without_one(builder: Builder) -> None:
    line = "x = x + torch.tensor([1.0], device=x.device, dtype=x.dtype)"
    source = TUNED.replace("        y = torch.empty_like(x)\n", f"        {line}\n        y = x\n")
    task = Task("test/double", DOUBLE, "cuda", dtype="float16")
    assert len(binaries(builder.build(triton(source, task), FAST, task))) == 3


@needs_triton
def test_the_candidate_sees_no_reference(builder: Builder) -> None:
    look = "import sys\nif 'reference' in sys.modules: raise SystemExit\n"
    task = Task("test/double", DOUBLE, "cuda", dtype="float16")
    assert len(binaries(builder.build(triton(look + TUNED, task), FAST, task))) == 3


@needs_triton
def test_a_candidate_that_cannot_be_called_without_values_fails_nothing(builder: Builder) -> None:
    for line in ("if x.sum().item() > 0: raise ValueError", "raise SystemExit(3)"):
        source = TUNED.replace("        y = torch.empty_like(x)\n", f"        {line}\n")
        task = Task("test/double", DOUBLE, "cuda", dtype="float16")
        assert binaries(builder.build(triton(source, task), FAST, task)) == []


@needs_triton
def test_a_candidate_that_hangs_ahead_of_the_run_fails_nothing(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "AHEAD_S", 2.0)
    assert binaries(builder.build(triton("while True: pass\n"), FAST, TASK)) == []


@needs_triton
@pytest.mark.parametrize("manner", ["movable", "as it is"])
def test_a_process_with_another_folder_finds_the_kernels(
    builder: Builder, tmp_path: Path, manner: str
) -> None:
    report = builder.build(triton(SOURCE), FAST, TASK)
    assert report.kernels is not None
    shutil.copytree(report.kernels, tmp_path / "kernels")
    (tmp_path / "given.py").write_text(SOURCE)
    (tmp_path / "task.py").write_text(TASK.source)
    arguments = [tmp_path / "given.py", tmp_path / "task.py", tmp_path]
    out = subprocess.run(
        [sys.executable, "-c", AGAIN, manner, *map(str, arguments)],
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "kernels")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert ("compiled again" in out) is (manner != "movable"), out
    assert out.startswith("1 " if manner == "movable" else "0 ")


@pytest.mark.slow
def test_where_triton_fails_ahead_the_run_decides(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is not there at all."""
    monkeypatch.setattr(builder, "_capability", 90)
    report = builder.build(triton("import no_such_module\n"), FAST, TASK)
    assert binaries(report) == []


def test_nothing_is_compiled_ahead_without_a_task_or_a_gpu(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_worker", None)  # it would raise
    assert builder.build(triton("1"), FAST).kernels is None
    monkeypatch.setattr(builder, "_capability", None)
    assert builder.build(triton("1"), replace(FAST), TASK).kernels is None


@pytest.mark.parametrize(
    ("arch", "number"),
    [("9.0", 90), ("9.0a", 90), ("12.0", 120), ("8.6;9.0", None), ("", None), (None, None)],
)
def test_the_capability_is_read_from_torchs_list(
    arch: str | None, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.building.toolchain.importlib.util.find_spec", lambda name: name)
    assert capability(arch) == number
