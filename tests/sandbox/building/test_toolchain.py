"""Which compilers a build is known by."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.building.build import Builder
from sandbox.building.light import Ways
from sandbox.building.toolchain import nvcc, require_compilers, toolchain
from sandbox.errors import DeviceError
from sandbox.machine.device import instructions
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST

Tool = Callable[[str, str], Path]


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """An executable of this name in a toolkit's folder of that name, which says what it is."""

    def made(name: str, home: str) -> Path:
        path = tmp_path / home / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {name} of {home}\n")
        path.chmod(0o755)
        return path

    return made


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_the_toolkit_that_the_environment_names_is_part_of_the_key(
    variable: str, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tool("nvcc", "first"), tool("nvcc", "second")
    monkeypatch.setenv("PATH", str(first.parent), prepend=":")
    monkeypatch.setenv(variable, str(first.parents[1]))
    known = toolchain("9.0", Ways())
    monkeypatch.setenv(variable, str(second.parents[1]))
    assert nvcc() == str(second)
    assert toolchain("9.0", Ways())["nvcc"] == [str(second), "nvcc of second"]
    assert toolchain("9.0", Ways()) != known


def test_a_toolkit_that_is_replaced_in_its_place_is_another(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tool("nvcc", "one").parents[1]))
    known = toolchain("9.0", Ways())
    Path(nvcc()).write_text("#!/bin/sh\necho a later version\n")
    assert toolchain("9.0", Ways()) != known


def test_nvcc_is_asked_for_where_torch_looks_for_it(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every candidate would be refused by a compiler that is not there."""
    monkeypatch.setenv("PATH", str(tool("nvcc", "path").parent), prepend=":")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "moved away"))
    with pytest.raises(DeviceError, match=r"moved away/bin/nvcc not found: install"):
        require_compilers(Language.CUDA_INLINE)
    monkeypatch.setenv("CUDA_HOME", str(tool("nvcc", "named").parents[1]))
    monkeypatch.setenv("PATH", str(tool("c++", "gnu").parent))
    require_compilers(Language.CUDA_INLINE)


def test_the_compiler_that_torch_calls_is_asked_for_and_known(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = toolchain(None, Ways())
    monkeypatch.setenv("PATH", str(tool("c++", "llvm").parent), prepend=":")
    assert toolchain(None, Ways()) != known
    monkeypatch.setenv("PATH", str(tool("g++", "gnu").parent))
    with pytest.raises(DeviceError, match=r"c\+\+ not found: install"):
        require_compilers(Language.CPP)


X86 = "processor : 0\nmodel name : Intel Xeon Processor\nflags : sse2 {more}\ncpu MHz : {mhz}\n"
ARM = "processor : 0\nFeatures : fp asimd {more}\nCPU part : 0xd0c\nBogoMIPS : {mhz}\n"


@pytest.mark.parametrize("cpuinfo", [X86, ARM], ids=["x86-64", "aarch64"])
def test_processors_of_one_name_are_told_by_what_they_can_do(cpuinfo: str) -> None:
    known = instructions(cpuinfo.format(more="", mhz=2100))
    assert instructions(cpuinfo.format(more="", mhz=2900)) == known
    assert instructions(cpuinfo.format(more="", mhz=2100) + "\n" + cpuinfo) == known
    assert instructions(cpuinfo.format(more="avx512f sve", mhz=2100)) != known


SOURCE = """
from torch.utils.cpp_extension import load_inline
load_inline("three", cpp_sources=['extern "C" int three() { return 3; }'],
            is_python_module=False, no_implicit_headers=True)
class ModelNew: pass
"""


@pytest.mark.slow
def test_a_compilers_wrapper_on_the_machine_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would put it before every command; sccache's server has no network in there."""
    # Here, where builds may read, and not in their own /tmp.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        Path(folder).chmod(0o755)
        for name in ("ccache", "sccache"):
            Path(folder, name).write_text("#!/bin/sh\necho no server >&2\nexit 2\n")
            Path(folder, name).chmod(0o755)
        monkeypatch.setenv("PATH", folder, prepend=":")
        builder = Builder(tmp_path / "cache")
        try:
            found = builder.build(Candidate("test/build", Language.CPP, SOURCE), FAST)
        finally:
            builder.close()
    assert found.failure is None, found.log
