"""Lighter headers for extensions: what torch/extension.h declares, but only for the names used.

A tree of small headers stands before torch's own on the include path. Its torch/all.h, ATen/ATen.h
and torch/python.h bring the tensor class, the checks, the Python binding where the source has one,
and the operators whose names occur in the source, each from torch's own header for it. What is left
out cannot change the meaning of what compiles: every name that could select another overload is
declared, and sources that could tell the difference otherwise (`needs_full`) are not compiled this
way. A source that lacks something fails to compile and is compiled again with the full headers.

Everything here is text: nothing is run and no file is read but torch's folder of operators.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

PRELUDE = "prelude.h"
PRELUDE_TEXT = """\
#include <torch/version.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
#include <torch/types.h>
"""
"""The first include of every host source that has torch/extension.h first: precompiled once."""

OPERATORS = "operators.h"
"""The second: what this one source needs beside the shadows."""
SHADOWS = {
    "torch/all.h": "#include <torch/version.h>\n#include <torch/types.h>\n",
    "torch/python.h": """\
#if !defined(__CUDACC__) || defined(LIGHT_PYTHON)
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
#endif
""",
    "ATen/ATen.h": """\
#include <ATen/core/Tensor.h>
#include <ATen/Device.h>
#include <ATen/DimVector.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Scalar.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Layout.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
""",
    # Without the headers of cuBLAS, cuSPARSE and cuSOLVER.
    "ATen/cuda/CUDAContext.h": """\
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Logging.h>
#define AT_CUDA_CHECK(expression) C10_CUDA_CHECK(expression)
namespace at::cuda {
TORCH_CUDA_CPP_API cudaDeviceProp* getCurrentDeviceProperties();
}
""",
    # What each operator's header includes for all of them and few of them use.
    "ATen/Context.h": "",
    # Of lists of tensors it takes IValue's headers, half of what a small source then consists of.
    "ATen/DeviceGuard.h": """\
#if defined(LIGHT_GUARD) && !defined(LIGHT_GUARD_READ)
#define LIGHT_GUARD_READ
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
namespace at {
inline std::optional<Device> device_of(const Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  return tensor.device();
}
inline std::optional<Device> device_of(const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return device_of(*tensor);
}
}
#endif
""",
    # thrust's, for CUDA: a quarter of the rest. What is deleted here ends the light compilation.
    "thrust/complex.h": """\
#if !defined(__CUDACC__) || defined(LIGHT_COMPLEX)
#include_next <thrust/complex.h>
#else
#include <cfloat>
namespace thrust {
template <class T> struct complex {
  __host__ __device__ complex(T, T) = delete;
  T real() const = delete;
  T imag() const = delete;
};
template <class T> T abs(const complex<T>&) = delete;
template <class T> complex<T> polar(const T&, const T&) = delete;
}
#endif
""",
    "c10/util/complex_math.h": """\
#if !defined(__CUDACC__) || defined(LIGHT_COMPLEX)
#include_next <c10/util/complex_math.h>
#endif
""",
    "ATen/TensorUtils.h": "",
    "ATen/TracerMode.h": "",
    # torch:: factories: at::'s are found in their place, which differ in requires_grad alone.
    "torch/csrc/autograd/generated/variable_factories.h": "",
    "torch/csrc/autograd/variable.h": "",
    "torch/library.h": "",
}
"""Path below the shadow folder, and what stands there."""

WANTED = {
    "AT_DISPATCH": "ATen/Dispatch.h",
    "TensorAccessor": "ATen/core/TensorAccessor.h",
    "PackedTensorAccessor": "ATen/core/TensorAccessor.h",
    "NoGradGuard": "ATen/core/grad_mode.h",
    "AutoGradMode": "ATen/core/grad_mode.h",
    "device_of": "ATen/DeviceGuard.h",
    "OptionalDeviceGuard": "ATen/DeviceGuard.h",
}
"""Header to add where an identifier starts with this."""

FULL = re.compile(
    r"\b(?:(?:set_)?requires_grad|autograd|nn|jit|optim|serialize|TORCH_LIBRARY\w*"
    r"|RegisterOperators|__has_include)\b"
)
"""Identifiers of namespaces left out, or of what is not the same in at:: and torch::."""
ASKS = re.compile(
    r"\b(?:concept|requires|declval|void_t|is_(?:detected|invocable|convertible|constructible)\w*)\b"
    r"|->\s*decltype\b|\bdecltype\s*\((?!\s*[\w:.]+\s*\))"
)
"""By which a source asks what is declared; in a message it says nothing."""
OVERLOADED = re.compile(
    r"\b(?:var|std|var_mean|std_mean)\s*\("
    r"|(?<![\w.:>])(?:numel|size|stride|conj|is_(?:complex|floating_point|signed|inference|conj|neg)"
    r"|_is_zerotensor|print|contiguous_strides|scalar_to_tensor|wrapped_scalar_tensor)\s*\("
)
"""Calls that the full headers have more overloads of than an operator's own header: those that
ATen/Functions.h writes by hand, as `torch::var(x, 1)` of a dimension, which else is `unbiased`; and
helpers that are found by their arguments, behind a function of the source's own by that name."""
_LOGGING = re.compile(r"\b(?:D?CHECK(?:_\w+)?|D?LOG(?:_IF)?|VLOG|TORCH_LOG\w*)(?=\s*\()")
"""Macros of c10's logging, where the source does not define them."""
_DEFINED = re.compile(r"^[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)", re.MULTILINE)
TESTABLE = re.compile(
    r"defined|__cplusplus|__cpp_(?!lib_)\w+|__has_(?:builtin|attribute|cpp_attribute)|__builtin_\w+"
    r"|__CUDA_(?:ARCH|NO)_\w*|__(?:CUDACC|NVCC|HIP|GNU[CG]|clang|INTEL|VERSION)\w*"
    r"|__(?:linux|unix|APPLE|x86_64|amd64|i386|aarch64|arm|ARM)\w*"
    r"|__(?:AVX|SSE|SSSE|FMA|F16C|BMI|POPCNT|LZCNT)\w*__"
    r"|__(?:FAST_MATH|OPTIMIZE|EXCEPTIONS|BYTE_ORDER|ORDER|CHAR_BIT)(?:_\w*)?"
    r"|__SIZEOF_(?:INT|LONG|SHORT|POINTER|SIZE|PTRDIFF|FLOAT|DOUBLE|WCHAR)\w*"
    r"|_OPENMP|NDEBUG|CUDA_VERSION|CUDART_VERSION|M_\w+|FLT_\w+|DBL_\w+|INFINITY|NAN"
    r"|TORCH_VERSION\w*|[0-9]\w*"
)
"""Macros a source may test: the compiler's own, the C library's, and those of torch/version.h. Not
what headers say of themselves, as __CUDA_FP8_TYPES_EXIST__ or __cpp_lib_span."""

PRELUDE_FILE = "@PRELUDE@"
_RULES = """\
rule light_compile
  command = $cxx -I{shadow} -DAT_PER_OPERATOR_HEADERS -include @PRELUDE@ $own $cflags \
-c $in -o $out >$out.light 2>&1 || {{ {host}$cxx $cflags -c $in -o $out $post_cflags; }}

rule light_cuda_compile
  command = {nvcc} -I{shadow} -DAT_PER_OPERATOR_HEADERS $own $cuda_cflags \
-c $in -o $out >$out.light 2>&1 || {{ {cuda}$nvcc $cuda_cflags -c $in -o $out $cuda_post_cflags; }}

"""
"""Nothing asks for dependencies: a build folder is used once, and nvcc would preprocess again."""

_STEP = re.compile(r"build (?P<object>\S+): (?P<rule>compile|cuda_compile) (?P<source>(?:\$ |\S)+)")
_VARIABLE = re.compile(r"^(\w+) = (.*)$", re.MULTILINE)
_OWN_PATHS = re.compile(
    r"^(?:cuda_)?cflags = .*\s(?:-I|-include|-isystem-after|-iquote)", re.MULTILINE
)
_IMPLICIT = re.compile(r"\s*#include <torch/(?:extension|types)\.h>")
"""The first line that `load_inline` adds: nothing before it could steer the headers."""
_BINDS = re.compile(r"\bPYBIND11_\w+|\bpy(?:bind11)?\s*::|\bPyObject\b")
_COMPLEX = re.compile(r"complex|thrust|\bcub\b|\bcuda(?:/|\s*::\s*)std\b", re.IGNORECASE)
"""Of libraries that use thrust's complex numbers, or would not know ours."""
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_COMMENT_OR_LITERAL = re.compile(
    r'R"(?P<mark>[^\s()\\"]*)\(.*?\)(?P=mark)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_CONDITION = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:if|ifdef|ifndef|elif)\b(.*)$", re.MULTILINE)
_OWN_HEADER = re.compile(r'^[ \t]*(?:#|%:)[ \t]*include[ \t]*"', re.MULTILINE)
_LIST_TENSOR = re.compile(r"\btorch[ \t]*::[ \t]*tensor\b|\bTensorDataContainer\b")
_UNQUALIFIED_TENSOR = re.compile(r"\busing[ \t]+(?:namespace[ \t]+torch\b|torch[ \t]*::)")


def needs_full(source: str) -> bool:
    """Whether fewer headers might compile this source to something else."""
    joined = _CONTINUED.sub("", source)
    text = without_comments(joined)
    if FULL.search(text) or _OWN_HEADER.search(text):
        return True
    code = _COMMENT_OR_LITERAL.sub(" ", joined)
    if ASKS.search(code) or OVERLOADED.search(code):
        return True
    if not set(_LOGGING.findall(code)) <= set(_DEFINED.findall(code)):
        return True
    if _LIST_TENSOR.search(text) or (
        _UNQUALIFIED_TENSOR.search(text) and re.search(r"\btensor\s*\(", text)
    ):
        return True
    tested = {word for found in _CONDITION.findall(text) for word in re.findall(r"\w+", found)}
    return any(not TESTABLE.fullmatch(word) for word in tested)


def without_comments(source: str) -> str:
    """C++ text without comments; literals keep theirs."""

    def kept(match: re.Match[str]) -> str:
        return " " if match.group().startswith("/") else match.group()

    return _COMMENT_OR_LITERAL.sub(kept, source)


def operator_headers(source: str, operators: Path) -> list[str]:
    """The headers to add for this source: of every identifier that names a torch operator, of
    its in-place and `_out` forms, and of WANTED.
    """
    words = set(_IDENTIFIER.findall(without_comments(source)))
    names = words | {w.removesuffix("_out") for w in words} | {w.rstrip("_") for w in words}
    found = [f"ATen/ops/{name}.h" for name in sorted(names) if (operators / f"{name}.h").is_file()]
    added = {h for prefix, h in WANTED.items() if any(w.startswith(prefix) for w in words)}
    return [*sorted(added), *found]


def operators_text(source: str, operators: Path) -> str:
    """Contents of OPERATORS for one source."""
    lines = [f"#include <{header}>" for header in operator_headers(source, operators)]
    return "\n".join(["#pragma once", *lines, ""])


def shadow_tree() -> dict[str, str]:
    """Every file of the shadow folder, by its path in it."""
    tree = {path: f"#pragma once\n{text}" for path, text in SHADOWS.items()}
    # May be included again, once it has something to include.
    tree["ATen/DeviceGuard.h"] = SHADOWS["ATen/DeviceGuard.h"]
    return {**tree, PRELUDE: f"#pragma once\n{PRELUDE_TEXT}"}


@dataclass(frozen=True)
class Ways:
    """How a library is built; each way can be switched off to measure it."""

    light_headers: bool = True
    precompiled: bool = True
    """The prelude of host sources, read ready-made where it was seen before."""
    side_by_side: bool = True
    """nvcc's steps for the host beside those for the device (sandbox/worker/nvcc_steps.py)."""
    lacking: bool = True
    """What no header could mend is not compiled again (sandbox/worker/lacking.py)."""


@dataclass(frozen=True)
class Commands:
    """For ninja's rules."""

    nvcc: str = "$nvcc"
    """Compiles a light device source."""
    host: str = ""
    cuda: str = ""
    """What stands before the second compilation of a source, whose failure ends it."""


@dataclass(frozen=True)
class Lightened:
    """A ninja file in which eligible sources are first compiled with light headers."""

    ninja: str
    operators: dict[str, str]
    """Contents of each eligible object's OPERATORS, by object file."""
    cflags: str
    """Flags of host sources; "" where no eligible source is one."""


def lighten(
    ninja: str,
    read: Callable[[str], str],
    shadow: Path,
    operators: Path,
    commands: Commands = Commands(),
) -> Lightened | None:
    """What torch wrote, with the eligible `compile` and `cuda_compile` steps made two-fold: light,
    and where that fails as they were. None where no source is eligible.

    `read` gives a source by path; each object's OPERATORS is expected at `shadow/OBJECT/`, and
    PRELUDE_FILE in the text stands for the prelude that `with_prelude` names.
    """
    flags = dict(_VARIABLE.findall(ninja))
    if _OWN_PATHS.search(ninja):
        return None  # the candidate's own headers, which may test what ours leave out
    found: dict[str, str] = {}
    host = False
    lines = []
    for line in ninja.splitlines():
        lines.append(line)
        step = _STEP.fullmatch(line)
        if step is None:
            continue
        source = read(step["source"].replace("$ ", " "))
        if not _IMPLICIT.match(source) or needs_full(source):
            continue
        host = host or step["rule"] == "compile"
        found[step["object"]] = operators_text(source, operators)
        lines[-1] = f"build {step['object']}: light_{step['rule']} {step['source']}"
        own = f"-include {shadow / step['object'] / OPERATORS}"
        lines.append("  own = " + " ".join([own, *switches(source, step["rule"])]))
    if not found:
        return None
    first = next(i for i, line in enumerate(lines) if line.startswith("build "))
    lines[first:first] = _RULES.format(shadow=shadow, **asdict(commands)).splitlines()
    return Lightened("\n".join([*lines, ""]), found, flags["cflags"] if host else "")


def switches(source: str, rule: str) -> list[str]:
    """Macros that bring in parts of the shadows which few sources need; a host source's must not
    be tested by the prelude, or its precompiled form is refused.
    """
    guard = ["-DLIGHT_GUARD"] if re.search(r"\bdevice_of\b|\bOptionalDeviceGuard\b", source) else []
    if rule != "cuda_compile":
        return guard
    python = ["-DLIGHT_PYTHON"] if _BINDS.search(source) else []
    return guard + python + (["-DLIGHT_COMPLEX"] if _COMPLEX.search(source) else [])


def with_prelude(ninja: str, prelude: Path) -> str:
    """The file of `lighten` with the header to include first in host sources."""
    return ninja.replace(PRELUDE_FILE, str(prelude))


def own_flags(cflags: str) -> list[str]:
    """The candidate's part of a host source's flags: what follows torch's own."""
    words = cflags.split()
    return words[words.index("-fPIC") + 2 :] if "-fPIC" in words else words


def prelude_key(cxx: str, cflags: str) -> str:
    """Names a precompiled prelude: the compiler and its version, its flags but for the extension's
    name, the text of what is compiled and torch's build.
    """
    flags = re.sub(r"-DTORCH_EXTENSION_NAME=\S+", "", cflags).split()
    build = [str(torch.__version__), str(torch.version.git_version)]
    text = json.dumps([cxx, flags, shadow_tree(), build])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_tree(folder: Path, tree: Mapping[str, str]) -> None:
    """Write every file of a tree below `folder`."""
    for name, text in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
