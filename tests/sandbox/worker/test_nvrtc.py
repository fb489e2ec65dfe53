"""NVRTC in a worker: headers beyond what pip's CUDA packages hold, and no source compiled twice."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sandbox.worker import nvrtc
from tests.gpu.test_builds import INCLUDES, USES
from tests.gpu.test_languages import source

ROOT = Path(__file__).parents[3]
needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec("cupy") is None, reason="cupy is not installed"
)
"""The extra that brings cupy brings NVRTC."""


def toolkit(home: Path, number: int = 13000) -> Path:
    folder = home / "include"
    (folder / "crt").mkdir(parents=True)
    (folder / "crt" / "mma.h").touch()
    (folder / "cuda.h").write_text(f"// the driver's\n#define CUDA_VERSION {number}\n")
    return folder


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """No toolkit but the test's own."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvrtc.shutil, "which", lambda name: None)


def test_a_toolkit_is_found_where_it_is_named_then_where_it_usually_is(tmp_path, monkeypatch):
    usual = toolkit(tmp_path / "cuda")
    named = toolkit(tmp_path / "own")
    assert list(nvrtc.toolkits(13, tmp_path / "cuda")) == [usual]
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "own"))
    assert list(nvrtc.toolkits(13, tmp_path / "cuda")) == [named, usual]
    other = toolkit(tmp_path / "cuda-13.1")
    assert list(nvrtc.toolkits(13, tmp_path / "cuda")) == [named, usual, other]


def test_a_toolkit_of_another_major_version_or_without_the_headers_is_left_alone(tmp_path):
    folder = toolkit(tmp_path / "cuda", 12080)
    assert list(nvrtc.toolkits(12, tmp_path / "cuda")) == [folder]
    assert not list(nvrtc.toolkits(13, tmp_path / "cuda"))
    (folder / "cuda.h").unlink()
    assert not list(nvrtc.toolkits(12, tmp_path / "cuda"))
    assert not list(nvrtc.toolkits(13, tmp_path / "nowhere"))


def test_its_folder_is_searched_after_all_others(tmp_path, monkeypatch):
    folder = toolkit(tmp_path / "own")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "own"))
    given: list[tuple[str, ...]] = []

    class Program:
        def compile(self, options=(), log_stream=None):
            given.append(options)
            return b"cubin", None

    nvrtc.complete(types.SimpleNamespace(_NVRTCProgram=Program), 13)
    assert Program().compile(("-I/cupy", "-ftz=true")) == (b"cubin", None)
    assert given == [("-I/cupy", "-ftz=true", f"-I{folder}")]
    nvrtc.complete(types.SimpleNamespace(), 13)  # a cupy without such a class


class _NVRTCProgram:
    """As cupy's, with a count of what was compiled."""

    compiled = 0

    def __init__(self, src, name_expressions=None):
        self.src, self.name, self.method = src, "", "cubin"
        self.name_expressions = name_expressions

    def compile(self, options=(), log_stream=None):
        type(self).compiled += 1
        symbols = {e: f"_Z{e}" for e in self.name_expressions or ()}
        return f"{self.src} {options}".encode(), symbols or None


@pytest.fixture
def program(monkeypatch, tmp_path):
    """The class in a worker whose folder does not exist yet."""
    monkeypatch.setenv(nvrtc.FOLDER, str(tmp_path / "home/cupy"))
    fresh = type("_NVRTCProgram", (_NVRTCProgram,), {})
    nvrtc.complete(types.SimpleNamespace(_NVRTCProgram=fresh), 99)
    return fresh


def test_equal_programs_are_compiled_once(program):
    first = program("a", ["f<int>"]).compile(("-ftz=true",))
    assert program("a", ["f<int>"]).compile(("-ftz=true",)) == first
    assert first == (b"a ('-ftz=true',)", {"f<int>": "_Zf<int>"})
    assert program.compiled == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda program: program("b").compile(("-ftz=true",)),
        lambda program: program("a").compile(("-ftz=false",)),
        lambda program: program("a", ["f"]).compile(("-ftz=true",)),
        lambda program: program("a").compile(("-ftz=true",), sys.stderr),
    ],
    ids=["source", "options", "names", "a log is asked for"],
)
def test_others_are_compiled_by_themselves(program, other):
    program("a").compile(("-ftz=true",))
    other(program)
    assert program.compiled == 2


@pytest.mark.parametrize("damage", [b"", b"[]\n", b"no JSON\nx", None])
def test_what_is_damaged_or_cannot_be_kept_is_compiled_again(program, tmp_path, damage):
    first = program("a").compile()
    [path] = (tmp_path / "home/cupy").iterdir()
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert program("a").compile() == first
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()  # a file where the folder should be
    assert program("a").compile() == first
    assert program.compiled == 3


def test_without_a_folder_nothing_is_kept(program, monkeypatch):
    monkeypatch.delenv(nvrtc.FOLDER)
    assert program("a").compile() == program("a").compile()
    assert program.compiled == 2


COMPILED = """
import sys
from pathlib import Path
import cupy
from cupy._core.core import assemble_cupy_compiler_options
from sandbox.machine.zygote import complete_cupy
complete_cupy()
options = (*assemble_cupy_compiler_options(()), "-arch=sm_90")
program = cupy.cuda.compiler._NVRTCProgram(Path(sys.argv[1]).read_text(), "", method="cubin")
print(len(program.compile(options)[0]))
"""


def compiled(tmp_path: Path, code: str, script: str = COMPILED, **environment: str) -> str:
    """What is said when code is compiled for a Hopper GPU as in a candidate's worker: without a
    device.
    """
    (tmp_path / "kernel.cu").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "kernel.cu")],
        env=os.environ | {"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@needs_nvrtc
def test_cupy_finds_what_its_own_packages_lack(tmp_path):
    toolkit(tmp_path / "own")
    code = '#include <crt/only_here.h>\nextern "C" __global__ void f(int* x) { *x = ONLY_HERE; }'
    (tmp_path / "own/include/crt/only_here.h").write_text("#define ONLY_HERE 7\n")
    assert "cannot open source file" in compiled(tmp_path, code)
    assert int(compiled(tmp_path, code, CUDA_HOME=str(tmp_path / "own"))) > 0


@needs_nvrtc
def test_what_cupy_compiled_is_found_without_nvrtc(tmp_path):
    code = 'extern "C" __global__ void f(int* x) { *x = 1; }'
    given = {nvrtc.FOLDER: str(tmp_path / "made")}
    first = compiled(tmp_path, code, **given)
    assert int(first) > 0
    broken = f"import cupy\ncupy.cuda.compiler.nvrtc.compileProgram = None\n{COMPILED}"
    assert compiled(tmp_path, code, broken, **given) == first
    assert "TypeError" in compiled(tmp_path, code.replace("1", "2"), broken, **given)


@needs_nvrtc
def test_what_the_prompt_says_stands_for_host_headers_does(tmp_path):
    code = """
#include <cuda/std/cstdint>
#include <cuda/std/cfloat>
#include <math_constants.h>
extern "C" __global__ void f(float* x, int64_t n, uint32_t m) {
  x[n] = m > 0 ? FLT_MAX : CUDART_INF_F;
}
"""
    assert int(compiled(tmp_path, code)) > 0


@needs_nvrtc
@pytest.mark.slow  # CUB's headers take seconds
def test_cub_and_mma_can_be_included(tmp_path):
    """With pip's headers (nvidia-cuda-crt) or a toolkit's."""
    code = source("cuda").split('r"""')[1].split('"""')[0]
    assert int(compiled(tmp_path, INCLUDES + USES + code)) > 0
