"""nvcc's steps side by side: what is run, and that it comes to what nvcc makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.worker import nvcc_steps

HERE = nvcc_steps.__file__
LISTED = """\
#$ _SPACE_=
#$ PATH={tools}:/usr/bin:/bin
#$ CICC_PATH={tools}
#$ gcc -E "k.cu" -o "{tmp}/k.cpp4.ii"
#$ cudafe++ --gen_c_file_name "{tmp}/k.cudafe1.cpp" --gen_module_id_file \
--module_id_file_name "{tmp}/k.module_id" "{tmp}/k.cpp4.ii"
#$ gcc -E "k.cu" -o "{tmp}/k.cpp1.ii"
#$ "$CICC_PATH/cicc" --module_id_file_name "{tmp}/k.module_id" "{tmp}/k.cpp1.ii" -o "{tmp}/k.ptx"
#$ ptxas "{tmp}/k.ptx" -o "{tmp}/k.cubin"
#$ fatbinary --embedded-fatbin="{tmp}/k.fatbin.c"
#$ rm {tmp}/k.fatbin
#$ gcc -c -x c++ "{tmp}/k.cudafe1.cpp" -o "k.o"
"""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nvcc(tmp_path: Path) -> Path:
    """One that lists its steps, each of which notes its begin, its end and what name the module has
    then.
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    listed = LISTED.format(tools=tools, tmp=tmp_path)
    (tmp_path / "listed").write_text(listed)
    name = f"$(cat {tmp_path}/k.module_id)"
    for tool, seconds in {"gcc": 0, "cudafe++": 1, "cicc": 1, "ptxas": 0, "fatbinary": 0}.items():
        steps = [f'echo "begin {tool} $1" >> {tmp_path}/ran', f"sleep {seconds}"]
        script(tools / tool, "; ".join([*steps, f'echo "{tool} $1 {name}" >> {tmp_path}/ran']))
    return script(
        tmp_path / "nvcc",
        f'if [ "$1" = --dryrun ]; then cat {tmp_path}/listed >&2\n'
        f"else echo itself >> {tmp_path}/ran; fi",
    )


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().splitlines()


def test_the_host_and_the_device_are_compiled_at_once_and_joined_last(
    nvcc: Path, tmp_path: Path
) -> None:
    assert nvcc_steps.compiled([str(nvcc), "-c", "k.cu"]) == 0
    noted = [line.split() for line in ran(tmp_path)]
    ended = [words for words in noted if words[0] != "begin"]
    names = {words[-1] for words in ended}
    assert len(names) == 1
    assert re.fullmatch(r"_[0-9a-f]{16}", names.pop())
    tools = [words[0] for words in ended]
    assert sorted(tools) == ["cicc", "cudafe++", "fatbinary", "gcc", "gcc", "gcc", "ptxas"]
    assert tools.index("cicc") < tools.index("ptxas") < tools.index("fatbinary")
    order = [" ".join(words[:2]) for words in noted]
    first_end = min(tools.index("cicc"), tools.index("cudafe++"))
    first_end = noted.index(ended[first_end])
    assert order.index("begin cicc") < first_end
    assert order.index("begin cudafe++") < first_end
    assert order[-2:] == ["begin gcc", "gcc -c"]


@pytest.mark.parametrize("tool", ["cudafe++", "cicc"])
def test_a_half_that_fails_ends_it_with_its_words(nvcc: Path, tmp_path: Path, tool: str) -> None:
    script(tmp_path / "tools" / tool, "echo 'k.cu(3): error' >&2; exit 2")
    command = [sys.executable, "-I", "-S", HERE, str(nvcc), "-c", "k.cu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "k.cu(3): error\n"
    assert not any(line.startswith("gcc -c") for line in ran(tmp_path))


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("--gen_module_id_file ", ""),
        ("cudafe++ ", "another "),
        ('"{tmp}/k.cudafe1.cpp" -o "k.o"', '"k.cu" -o "k.o"'),
    ],
)
def test_where_steps_are_not_as_expected_nvcc_runs_by_itself(
    nvcc: Path, tmp_path: Path, found: str, instead: str
) -> None:
    listed = (tmp_path / "listed").read_text()
    changed = listed.replace(found.format(tmp=tmp_path), instead)
    assert changed != listed
    (tmp_path / "listed").write_text(changed)
    assert nvcc_steps.compiled([str(nvcc), "-c", "k.cu"]) == 0
    assert ran(tmp_path) == ["itself"]


SOURCE = """
#include <cuda_runtime.h>
namespace { __global__ void hidden(float* x) { x[threadIdx.x] += 1; } __device__ int counter; }
static __device__ float table[4] = {1, 2, 3, 4};
static __global__ void also(float* x) { x[threadIdx.x] += table[threadIdx.x % 4] + counter; }
extern "C" void run(float* x, int* c) {
  hidden<<<1, 32>>>(x);
  also<<<1, 32>>>(x);
  cudaMemcpyFromSymbol(c, counter, sizeof counter);
}
"""


@needs_nvcc
@pytest.mark.slow
def test_the_object_names_its_kernels_as_its_device_code_does(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(SOURCE)
    command = [sys.executable, "-I", "-S", HERE, "nvcc", "-arch=sm_90", "-c", "k.cu", "-o", "k.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    copy = ["objcopy", "-O", "binary", "--only-section=.nv_fatbin", "k.o", "k.fatbin"]
    subprocess.run(copy, cwd=tmp_path, check=True)
    device = (tmp_path / "k.fatbin").read_bytes()
    whole = (tmp_path / "k.o").read_bytes()
    names = set(re.findall(rb"_ZN\d+_GLOBAL__N__\w+6hiddenEPf|_ZN\w+7counterE", device))
    assert len(names) == 2
    outside = whole.replace(device, b"")
    assert len(outside) < len(whole)
    assert all(name in outside for name in names)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("tmpxft")]
