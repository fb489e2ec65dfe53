"""Light headers: which sources get them, what is put before them, and that real ones compile."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils import cpp_extension

from sandbox.building import light, preludes
from sandbox.building.build import Builder
from sandbox.building.preludes import MOST_ASKED, Preludes
from sandbox.machine.quiet import Quiet
from sandbox.machine.spawn import Worker, Zygote
from sandbox.types import Candidate, Language
from sandbox.worker import faster
from sandbox.worker.faster import GCH, OPERATORS
from tests.sandbox.conftest import FAST

NINJA = """\
ninja_required_version = 1.3
cxx = c++
nvcc = /cuda/bin/nvcc

cflags = -DTORCH_EXTENSION_NAME=one -isystem /torch/include -fPIC -std=c++17 -O3
post_cflags = 
cuda_cflags = -DTORCH_EXTENSION_NAME=one -isystem /torch/include --use_fast_math

rule compile
  command = $cxx -MMD -MF $out.d $cflags -c $in -o $out $post_cflags

build main.o: compile /src/main.cpp
build cuda.cuda.o: cuda_compile /src/cuda.cu
build one.so: link main.o cuda.cuda.o

default one.so
"""
HOST = "#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x);"
DEVICE = "#include <torch/types.h>\nauto g(at::Tensor x) { return torch::empty_like(x); }"


def lightened(host: str = HOST, device: str = DEVICE, ninja: str = NINJA) -> light.Lightened | None:
    sources = {"/src/main.cpp": host, "/src/cuda.cu": device}
    return light.lighten(ninja, sources.__getitem__, Path("/shadow"), OPERATORS)


def test_each_source_is_tried_light_and_then_as_it_was() -> None:
    made = lightened()
    assert made is not None
    assert "build main.o: light_compile /src/main.cpp" in made.ninja
    assert "build cuda.cuda.o: light_cuda_compile /src/cuda.cu" in made.ninja
    rule = made.ninja.partition("rule light_cuda_compile\n  command = ")[2].splitlines()[0]
    first, _, second = rule.partition(" || ")
    assert first.startswith("$nvcc -I/shadow ")
    assert "$cuda_cflags" in first
    assert second == "{ $nvcc $cuda_cflags -c $in -o $out $cuda_post_cflags; }"
    assert "ATen/ops/empty_like.h" in made.operators["cuda.cuda.o"]
    assert light.own_flags(made.cflags) == ["-O3"]


COMPILER = """#!/bin/sh
echo "$*" >> {folder}/ran
case "$*" in
  *" -E "*) cat {source}.i ;;
  *PER_OPERATOR*) echo "{source}:3:1: error: ‘{missing}’ was not declared in this scope"; exit 1 ;;
  *) exit 2 ;;
esac
"""


@pytest.mark.parametrize(
    ("missing", "runs"),
    [
        pytest.param("absent", ["light", "-E"], id="no header has it"),
        pytest.param("full", ["light", "-E", "full"], id="the full headers may have it"),
    ],
)
def test_a_source_is_compiled_again_where_that_could_mend_it(
    tmp_path: Path, missing: str, runs: list[str]
) -> None:
    source, text = tmp_path / "main.cpp", f"{HOST}\nint g() {{ return absent; }}"
    source.write_text(text)
    preprocessed = f'# 1 "{tmp_path}/main.cpp"\n{text}\n# 1 "full.h"\nint full;\n'
    (tmp_path / "main.cpp.i").write_text(preprocessed)
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(folder=tmp_path, source=source, missing=missing))
    compiler.chmod(0o755)
    known = NINJA.partition("build cuda.cuda.o")[0].replace("/src/main.cpp", str(source))
    made = light.lighten(
        known.replace("cxx = c++", f"cxx = {compiler}"),
        lambda _: text,
        tmp_path / "shadow",
        OPERATORS,
        faster.commands(light.Ways()),
    )
    assert made is not None
    (tmp_path / "build.ninja").write_text(made.ninja)
    ninja = [sys.executable, "-m", "ninja", "main.o"]
    subprocess.run(ninja, cwd=tmp_path, capture_output=True, check=False)
    ran = (tmp_path / "ran").read_text().splitlines()
    kinds = ["-E" if " -E " in r else "light" if "PER_OPERATOR" in r else "full" for r in ran]
    assert kinds == runs


@pytest.mark.parametrize(
    "text",
    [
        "torch::nn::Linear layer(3, 4);",
        "auto t = torch::tensor({1, 2});",
        "using namespace torch; auto t = tensor({1, 2});",
        "auto o = torch::TensorOptions().requires_grad(true);",
        "#ifdef AT_PARALLEL_OPENMP\n#endif",
        "#if defined(C10_WARP_SIZE)\n#endif",
        "#if defined(__GNUC__) && \\\n  defined(C10_WARP_SIZE)\n#endif",
        "%:ifdef C10_WARP_SIZE\n%:endif",
        "#ifdef __CUDA_FP8_TYPES_EXIST__\n#endif",
        "#if __cpp_lib_span\n#endif",
        "#ifndef __CUDA_FP16_H__\n#endif",
        "template <class T> using S = std::void_t<decltype(std::cout << std::declval<T>())>;",
        "template <class T> auto say(const T& t, int) -> decltype(std::cout << t, 1);",
        "auto v(at::Tensor x) { return torch::var(x, 1); }",
        "auto v(at::Tensor x) { return at::std (x, 0); }",
        "template <class T> int64_t numel(const T&); auto n(at::Tensor x) { return numel(x); }",
        "void f(bool right) { CHECK(right); }",
        "auto v(at::Tensor x) { g('\"'); auto y = torch::var(x, 1); g('\"'); return y; }",
        'const char q = \'"\'; const char* s = "/*";\n#ifdef VLOG\n#endif\n//*/',
        '#include "mine.h"',
        "TORCH_LIBRARY(a, m) {}",
    ],
)
def test_what_could_tell_the_difference_gets_the_full_headers(text: str) -> None:
    made = lightened(device=f"{DEVICE}\n{text}")
    assert made is not None
    assert "build cuda.cuda.o: cuda_compile /src/cuda.cu" in made.ninja
    assert list(made.operators) == ["main.o"]


def test_every_overload_that_torch_writes_by_hand_is_known() -> None:
    written = (OPERATORS.parent / "Functions.h").read_text()
    names = set(re.findall(r"^inline [^(\n]*?(\w+)\(", written, re.MULTILINE))
    assert names >= {"var", "std_mean", "numel"}
    calls = {name: f"{DEVICE}\nauto y(at::Tensor x) {{ return {name}(x); }}" for name in names}
    assert [name for name, text in calls.items() if not light.needs_full(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "// torch::nn is not used",
        "/* torch::tensor */",
        "#if __CUDA_ARCH__ >= 900\n#endif",
        "#ifdef _OPENMP\n#endif",
        "#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda())\nvoid f(at::Tensor x) { CHECK_CUDA(x); }",
        "auto n(at::Tensor x) { return std::sqrt(1'000.f) * x.numel() * x.size(0); }",
        "decltype(auto) g(); // isn't \"",
        'void check(at::Tensor x) { TORCH_CHECK(x.dim() == 2, "k requires a \\"matrix\\""); }',
        "#if defined(__AVX2__) && __CUDACC_VER_MAJOR__ >= 12 && __cpp_constexpr >= 201304\n#endif",
        "#if TORCH_VERSION_MAJOR >= 2 && defined(__GNUC__)\n#endif",
    ],
)
def test_comments_and_the_compilers_macros_do_not_matter(text: str) -> None:
    assert not light.needs_full(f"{DEVICE}\n{text}")


def test_an_own_include_path_or_no_implicit_header_means_torchs_own_steps() -> None:
    assert lightened(ninja=NINJA.replace("-fPIC", "-I/mine -fPIC")) is None
    assert lightened(host="int f();", device="int g();") is None


def test_every_name_that_may_select_an_overload_is_declared() -> None:
    text = "auto y = max(a, b).add_(at::mul_out(c, d)); AT_DISPATCH_ALL_TYPES(a)"
    found = light.operator_headers(text, OPERATORS)
    wanted = {f"ATen/ops/{name}.h" for name in ("max", "add", "mul")}
    assert wanted <= set(found)
    assert "ATen/Dispatch.h" in found


def test_a_preludes_key_forgets_the_extensions_name_and_nothing_else() -> None:
    flags = "-DTORCH_EXTENSION_NAME=one -fPIC -std=c++17"
    assert light.prelude_key("c++", flags) == light.prelude_key("c++", flags.replace("one", "two"))
    assert light.prelude_key("c++", flags) != light.prelude_key("c++", flags + " -O3")
    assert light.prelude_key("c++", flags) != light.prelude_key("g++-14", flags)


def test_another_version_of_a_compiler_has_preludes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not read the old one's, which would be taken for ready-made for ever."""
    known = faster.compiler()
    (tmp_path / "c++").write_text("#!/bin/sh\necho c++ 99.1\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert "99.1" in faster.compiler()
    assert light.prelude_key(faster.compiler(), "-O3") != light.prelude_key(known, "-O3")
    monkeypatch.setenv("CXX", "no such compiler")
    assert faster.compiler() == "no such compiler"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("float most = FLT_MAX;", []),
        ("c10::complex<float> z;", ["-DLIGHT_COMPLEX"]),
        ("AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(t, n, f);", ["-DLIGHT_COMPLEX"]),
        ("#include <cub/cub.cuh>", ["-DLIGHT_COMPLEX"]),
        ("cuda :: std::array<int, 2> a;", ["-DLIGHT_COMPLEX"]),
        ("OptionalCUDAGuard guard(device_of(x));", ["-DLIGHT_GUARD"]),
    ],
)
def test_a_device_source_has_thrusts_complex_numbers_where_it_could_use_them(
    text: str, found: list[str]
) -> None:
    assert light.switches(text, "cuda_compile") == found
    assert "-DLIGHT_COMPLEX" not in light.switches(text, "compile"), "the prelude would test it"


KERNEL = """
#include <torch/types.h>
#include <cuda_runtime.h>
#include <c10/core/DeviceGuard.h>
__global__ void fill(float* out) { *out = FLT_MAX; }
void f(at::Tensor x, std::optional<at::Tensor> y, std::vector<at::Tensor> z) {
  const c10::OptionalDeviceGuard one(at::device_of(x)), two(at::device_of(y));
  fill<<<1, 1>>>(x.data_ptr<float>());
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc here")
@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("", ""),
        ("auto g(std::vector<at::Tensor> z) { return at::device_of(z); }", '"at::device_of"'),
        ("auto g(c10::complex<float> z) { return std::exp(z); }", ""),
        ("auto g(std::complex<float> z) { return (at::Half)std::abs(z.real()); }", ""),
    ],
    ids=["of tensors", "of a list", "c10's complex", "std's complex"],
)
def test_a_device_source_compiles_with_light_headers_or_is_refused(
    lines: str, refused: str, tmp_path: Path
) -> None:
    """To what torch's own would compile it to; where it is refused, those come next."""
    source = KERNEL + lines
    (tmp_path / "k.cu").write_text(source)
    # Which torch's CPU build leaves out.
    macros = {"c10/cuda/impl/cuda_cmake_macros.h": "#pragma once\n"}
    operators = light.operators_text(source, OPERATORS)
    light.write_tree(
        tmp_path / "light", {**light.shadow_tree(), **macros, light.OPERATORS: operators}
    )
    python = sysconfig.get_paths()["include"]
    torchs = [f"--system-include={path}" for path in (*cpp_extension.include_paths(), python)]
    flags = [*light.switches(source, "cuda_compile"), "-DAT_PER_OPERATOR_HEADERS", "-std=c++20"]
    own = ["-I", str(tmp_path / "light"), "-include", light.OPERATORS, *flags, *torchs]
    command = ["nvcc", "--cuda", *own, "--expt-relaxed-constexpr", "k.cu", "-o", "k.ii"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(refused), done.stderr
    assert refused in done.stdout + done.stderr


SOURCE = """
import torch
from torch.utils.cpp_extension import load_inline
EXT = load_inline("plus{n}", cpp_sources='''
{extra}
torch::Tensor plus(torch::Tensor x, double s) {{
  TORCH_CHECK(x.is_contiguous(), "contiguous");
  auto out = torch::zeros({{x.size(0)}}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "plus", [&] {{
    out.data_ptr<scalar_t>()[0] = x.data_ptr<scalar_t>()[0] + (scalar_t)s;
  }});
  return out + {n};
}}''', functions=["plus"])
class ModelNew: pass
"""


@pytest.fixture(scope="module")
def builders() -> Iterator[Zygote]:
    found = Zygote("cpu")
    yield found
    found.close()


def built(zygote: Zygote, preludes: Path, source: str) -> tuple[Worker, dict[str, Any]]:
    worker = zygote.spawn("build", memory_limit_bytes=4 << 30, readable=[preludes])
    options = {"source": source, "ways": {}, "preludes": str(preludes)}
    return worker, worker.request("build", stage="build", timeout_s=100, **options)


@pytest.mark.slow
def test_a_tensor_function_is_built_with_light_headers_alone(
    builders: Zygote, tmp_path: Path
) -> None:
    worker, reply = built(builders, tmp_path, SOURCE.format(n=1, extra=""))
    try:
        assert reply["artifacts"][0]["libraries"] == ["plus1.so"]
        assert (worker.scratch / "artifacts/0/main.o.light").read_text() == ""
        assert reply["missing"][0]["flags"] == []
    finally:
        worker.close()


@pytest.mark.slow
def test_what_light_headers_lack_is_compiled_with_the_full_ones(
    builders: Zygote, tmp_path: Path
) -> None:
    extra = "bool shared() { return at::globalContext().deterministicAlgorithms(); }"
    worker, reply = built(builders, tmp_path, SOURCE.format(n=1, extra=extra))
    try:
        assert "globalContext" in (worker.scratch / "artifacts/0/main.o.light").read_text()
        assert reply["artifacts"][0]["libraries"] == ["plus1.so"]
    finally:
        worker.close()


CALL = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("plus2", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.plus.__doc__)
for x in (torch.full((3,), 4.0), torch.full((2,), 4.0, dtype=torch.float64)):
    y = module.plus(x, 2.5)
    print(y.tolist(), y.dtype, y.requires_grad)
for wrong in (lambda: module.plus(torch.ones(4, 4).t(), 1.0), lambda: module.plus("x", 1.0)):
    try:
        wrong()
    except (RuntimeError, TypeError) as error:
        print(type(error).__name__, str(error).split(" at ")[0][:40])
"""


@pytest.mark.slow
def test_light_and_full_libraries_behave_alike(tmp_path: Path) -> None:
    said = []
    for ways in (light.Ways(), light.Ways(light_headers=False, precompiled=False)):
        builder = Builder(tmp_path / str(ways.light_headers), ways)
        report = builder.build(Candidate("t", Language.CPP, SOURCE.format(n=2, extra="")), FAST)
        builder.close()
        assert report.failure is None, report.log
        assert report.artifacts is not None
        library = str(report.artifacts / "0" / "plus2.so")
        command = [sys.executable, "-c", CALL, library]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert said[0] == said[1]
    assert "[8.5, 2.0, 2.0] torch.float32 False" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        "int lacks() { return nobodys_name(3); }",
        "int lacks(at::Tensor x) { return x.nobodys_size(); }",
    ],
    ids=["a name", "a member"],
)
def test_a_source_that_does_not_compile_is_told_so_in_the_same_words(
    tmp_path: Path, extra: str
) -> None:
    said = []
    for ways in (light.Ways(), light.Ways(light_headers=False, precompiled=False)):
        builder = Builder(tmp_path / str(ways.light_headers), ways)
        report = builder.build(Candidate("t", Language.CPP, SOURCE.format(n=3, extra=extra)), FAST)
        builder.close()
        assert report.failure is not None
        said.append(re.sub(r"/\S+/artifacts/", "", report.failure.message))
    assert said[0] == said[1]
    assert "nobodys" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("few", "made"),
    [
        pytest.param(1, [1, 1, 1], id="many cores: after the first build"),
        pytest.param(1000, [0, 1, 1], id="few cores: after the second"),
    ],
)
def test_a_prelude_is_made_beside_what_follows_and_used_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, made: list[int]
) -> None:
    monkeypatch.setattr(preludes, "FEW_CORES", few)
    builder = Builder(tmp_path)
    ready = []
    for n in (1, 2, 3):
        candidate = Candidate("t", Language.CPP, SOURCE.format(n=n, extra=""))
        assert builder.build(candidate, FAST).failure is None
        builder.settle()
        ready.append(len(list((tmp_path / "preludes").glob(f"*/{GCH}"))))
    worker, reply = built(builder._zygote, tmp_path / "preludes", SOURCE.format(n=4, extra=""))
    worker.close()
    builder.close()
    assert ready == made
    assert reply["missing"] == []


@pytest.mark.parametrize(
    "claim",
    [
        None,
        [3],
        [{"flags": ["-fplugin=/evil.so"], "cuda": False, "key": "0" * 32}],
        [{"flags": ["-O3", "-include", "/x"], "cuda": False, "key": "0" * 32}],
        [{"flags": ["-O3"] * 9, "cuda": False, "key": "0" * 32}],
        [{"flags": ["-O3"], "cuda": False, "key": "../../x"}],
    ],
)
def test_a_hostile_wish_for_a_prelude_is_ignored(tmp_path: Path, claim: object) -> None:
    wished = Preludes(tmp_path / "preludes", Zygote("cpu"), Quiet(same_cores=False), at_once=False)
    for _ in range(2):
        wished.ask(claim, FAST)
    assert not list(wished.folder.iterdir())


def test_of_thousands_of_wishes_few_are_heard_and_each_once(tmp_path: Path) -> None:
    wished = Preludes(tmp_path / "preludes", Zygote("cpu"), Quiet(same_cores=False), at_once=False)
    keys = [f"{number:032x}" for number in range(1000) for _ in range(2)]
    wished.ask([{"flags": ["-O3"], "cuda": False, "key": key} for key in keys], FAST)
    wished.settle()
    notes = list(wished.folder.iterdir())
    assert len(notes) <= MOST_ASKED
    assert not any(note.read_text() for note in notes)  # none was made


@pytest.mark.slow
def test_a_prelude_that_the_compiler_refuses_is_tried_once(
    builders: Zygote, tmp_path: Path
) -> None:
    wished = Preludes(tmp_path / "preludes", builders, Quiet(same_cores=False), at_once=False)
    claim = [{"flags": ["-Wnonsense=3"], "cuda": False, "key": "0" * 32}]
    notes = []
    for _ in range(3):
        wished.ask(claim, FAST)
        wished.settle()
        (note,) = wished.folder.iterdir()
        notes.append(note.read_text())
    assert notes == ["", "refused", "refused"]
