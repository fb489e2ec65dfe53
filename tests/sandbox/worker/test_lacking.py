"""When a source that light headers did not compile is not compiled again, with real compilers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.worker import lacking, nvcc_steps

SOURCE = Path("/src/cuda.cu")
EDG = """\
cuda.cu(8): error: identifier "undeclared" is undefined
      y[i] = undeclared(x[i]);
             ^

cuda.cu(2): warning #177-D: variable "n" was declared but never referenced
cuda.cu(9): error: class "at::Tensor" has no member "sizee"
      int64_t n = x.sizee(0);
                    ^

2 errors detected in the compilation of "cuda.cu".
"""
GCC = """\
/src/cuda.cu: In function ‘int f(int)’:
/src/cuda.cu:3:25: error: ‘undeclared’ was not declared in this scope; did you mean ‘declared’?
    3 | int f(int x) { return undeclared(x); }
      |                       ^~~~~~~~~~
/src/cuda.cu:4:9: error: ‘struct S’ has no member named ‘sizee’
"""


ONE = """\
/src/cuda.cu(2): error: identifier "undeclared" is undefined
  __global__ void k(float* x) { x[0] = undeclared; }
                                       ^

1 error detected in the compilation of "/src/cuda.cu".
"""


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (EDG, {"undeclared": [8], "sizee": [9]}),
        (GCC, {"undeclared": [3], "sizee": [4]}),
        (ONE, {"undeclared": [2]}),
    ],
)
def test_the_names_that_a_compiler_missed_are_read(said: str, names: dict[str, list[int]]) -> None:
    assert lacking.undeclared(said, SOURCE) == names


@pytest.mark.parametrize(
    "line",
    [
        "cuda.cu(9): error: expected a declaration",
        'other.h(9): error: identifier "x" is undefined',
        "/src/cuda.cu:3:9: fatal error: missing.h: No such file or directory",
        "g++: fatal error: Killed signal terminated program cc1plus",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    ],
)
def test_of_any_other_error_nothing_is_concluded(line: str) -> None:
    assert lacking.undeclared(f"{EDG}{line}\n", SOURCE) == {}
    assert lacking.undeclared("", SOURCE) == {}


@pytest.mark.parametrize(
    ("text", "lines", "may"),
    [
        ("int f() {\n  return undeclared(1) + undeclared(2); }", [2], False),
        ("int f(const undeclared& x);\nstatic undeclared y;", [1], False),
        ("/* undeclared\n*/ int f() { return undeclared; }", [2], False),
        ("void k(float* x) { x[0] *= undeclared; }", [1], False),
        ("int f(S* s) { s->undeclared();\n  return s->undeclared(); }", [1], False),
        ("template <> struct S { static int undeclared(); };\nint y = S::undeclared();", [2], True),
        ("struct S { int f() { return undeclared; }\n  int undeclared; };", [1], True),
        ("struct S { int f() { return undeclared; } int undeclared; };", [1], True),
        ("struct S { int f() { return undeclared(); }\n  T<int> undeclared(); };", [1], True),
        ("#line 9\nint f() { return undeclared; }", [9], True),
    ],
    ids=[
        "used twice",
        "a type",
        "in a comment above",
        "behind what may be a pointer",
        "a member",
        "above",
        "below in a class",
        "on the line",
        "of a template's type",
        "other numbers",
    ],
)
def test_a_source_that_may_declare_the_name_itself_is_compiled_again(
    text: str, lines: list[int], may: bool
) -> None:
    written = lacking.without_comments(text)
    assert lacking.may_declare("undeclared", lines, written) is may


HEADER = """\
#define PASTED(name) int made_##name();
#define GIVEN() 5
#define NAMED(name) int name();
PASTED(first)
struct Held { int member; };
"""
CASES = {
    "no header has it": ("int f() { return undeclared; } // undeclared", "undeclared", True),
    "declared": ("int f(Held h) { return h.member; }", "member", False),
    "a macro": ("int f() { return GIVEN(); }", "GIVEN", False),
    "made by a header's macro there": ("int f() { return made_first(); }", "made_first", False),
    "made by a header's macro here": (
        "PASTED(second)\nint f() { return made_second(); }",
        "made_second",
        False,
    ),
    "declared by a macro that was missed as well": (
        "int f() { NAMED(other) return other(); }",
        "other NAMED",
        False,
    ),
    "left out for this pass": (
        "#ifdef __CUDA_ARCH__\nint f() { return undeclared; }\n#endif\nint g();",
        "undeclared",
        False,
    ),
}


@pytest.mark.parametrize(("text", "names", "absent"), CASES.values(), ids=CASES.keys())
def test_only_a_name_that_nothing_makes_is_absent(
    tmp_path: Path, text: str, names: str, absent: bool
) -> None:
    (tmp_path / "full.h").write_text(HEADER)
    source = tmp_path / "main.cpp"
    source.write_text(f'#include "full.h"\n{text}\n')
    said = tmp_path / "said"
    missed = (f"{source}:2:9: error: ‘{n}’ was not declared in this scope" for n in names.split())
    said.write_text("\n".join([*missed, ""]))
    command = [sys.executable, "-I", "-S", lacking.__file__, str(said), str(source)]
    done = subprocess.run(
        [*command, "g++", "-E", str(source)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == ((1, said.read_text()) if absent else (0, ""))
    unread = subprocess.run([*command, "false"], capture_output=True, text=True, check=False)
    assert unread.returncode == 0, "where it cannot be told it is compiled again"


DEVICE = """\
#include <cuda_runtime.h>
__global__ void k(float* x) {
#ifdef __CUDA_ARCH__
  x[0] = undeclared;
#else
  x[0] = 1;
#endif
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
@pytest.mark.slow
def test_what_host_and_device_are_given_is_preprocessed_apart(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text(DEVICE)
    steps = [sys.executable, "-I", "-S", nvcc_steps.__file__, "--preprocess", "nvcc"]
    done = subprocess.run(
        [*steps, "-arch=sm_90", "-c", str(source), "-o", str(tmp_path / "k.o")],
        capture_output=True,
        text=True,
        check=True,
    )
    host, device = done.stdout.split(lacking.PASS)
    assert "x[0] = 1;" in host
    assert "x[0] = undeclared;" in device
    assert not lacking.absent(["undeclared"], host, source)
    assert lacking.absent(["undeclared"], device, source)
    assert not lacking.absent(["undeclared", "cudaMalloc"], device, source)
