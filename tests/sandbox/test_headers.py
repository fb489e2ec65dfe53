"""Headers that NVRTC asks for beyond what pip's CUDA packages hold."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sandbox.worker import headers
from tests.gpu.test_builds import INCLUDES, USES
from tests.gpu.test_languages import source

ROOT = Path(__file__).parents[2]
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
    monkeypatch.setattr(headers.shutil, "which", lambda name: None)


def test_a_toolkit_is_found_where_it_is_named_then_where_it_usually_is(tmp_path, monkeypatch):
    usual = toolkit(tmp_path / "cuda")
    named = toolkit(tmp_path / "own")
    assert list(headers.toolkits(13, tmp_path / "cuda")) == [usual]
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "own"))
    assert list(headers.toolkits(13, tmp_path / "cuda")) == [named, usual]
    other = toolkit(tmp_path / "cuda-13.1")
    assert list(headers.toolkits(13, tmp_path / "cuda")) == [named, usual, other]


def test_a_toolkit_of_another_major_version_or_without_the_headers_is_left_alone(tmp_path):
    folder = toolkit(tmp_path / "cuda", 12080)
    assert list(headers.toolkits(12, tmp_path / "cuda")) == [folder]
    assert not list(headers.toolkits(13, tmp_path / "cuda"))
    (folder / "cuda.h").unlink()
    assert not list(headers.toolkits(12, tmp_path / "cuda"))
    assert not list(headers.toolkits(13, tmp_path / "nowhere"))


def test_its_folder_is_searched_after_all_others(tmp_path, monkeypatch):
    folder = toolkit(tmp_path / "own")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "own"))
    given: list[tuple[str, ...]] = []

    class _NVRTCProgram:
        def compile(self, options=(), log_stream=None):
            given.append(options)
            return b"cubin", None

    compiler = types.SimpleNamespace(_NVRTCProgram=_NVRTCProgram)
    headers.complete(compiler, 13)
    assert compiler._NVRTCProgram().compile(("-I/cupy", "-ftz=true")) == (b"cubin", None)
    assert given == [("-I/cupy", "-ftz=true", f"-I{folder}")]
    headers.complete(types.SimpleNamespace(), 13)  # a cupy without such a class


COMPILED = """
import sys
from pathlib import Path
import cupy
from cupy._core.core import assemble_cupy_compiler_options
from sandbox.zygote import complete_headers
complete_headers()
options = (*assemble_cupy_compiler_options(()), "-arch=sm_90")
program = cupy.cuda.compiler._NVRTCProgram(Path(sys.argv[1]).read_text(), "", method="cubin")
print(len(program.compile(options)[0]))
"""


def compiled(tmp_path: Path, code: str, **environment: str) -> str:
    """What is said when code is compiled for a Hopper GPU as in a candidate's worker: without a
    device.
    """
    (tmp_path / "kernel.cu").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path / "kernel.cu")],
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
@pytest.mark.slow  # CUB's headers take seconds
def test_cub_and_mma_can_be_included(tmp_path):
    """With pip's headers (nvidia-cuda-crt) or a toolkit's."""
    code = source("cuda").split('r"""')[1].split('"""')[0]
    assert int(compiled(tmp_path, INCLUDES + USES + code)) > 0
