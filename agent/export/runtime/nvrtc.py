"""NVRTC through ctypes: CUDA C++ to a cubin, without a device, a driver or cupy.

Options are those that cupy compiles with, so that what was measured is what is shipped:
`-ftz=true`, C++17 unless another standard is asked for, and functions belong to the device.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

COMMON = ("-ftz=true", "--device-as-default-execution-space")
STANDARD = "--std=c++17"
CUPY_CCCL = "cupy/_core/include/cupy/_cccl"


class NvrtcError(Exception):
    """There is no NVRTC, or it refuses a source; the message holds its log's end."""


def compile_cubin(
    code: str, options: Sequence[str], arch: str, expressions: Sequence[str] = ()
) -> tuple[bytes, dict[str, str]]:
    """The cubin for `sm_90`, `sm_90a`..., and the symbol of each name expression.

    An architecture among the options goes before `arch`. Raises NvrtcError.
    """
    nvrtc = library()
    program = ctypes.c_void_p()
    source, name = code.encode(), b"kernel.cu"
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None))
    try:
        for expression in expressions:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        given = [*all_options(options, arch), *(f"-I{folder}" for folder in headers())]
        array = (ctypes.c_char_p * len(given))(*(o.encode() for o in given))
        if nvrtc.nvrtcCompileProgram(program, len(given), array):
            raise NvrtcError(f"NVRTC refuses the source: {_log(nvrtc, program)}")
        size = ctypes.c_size_t()
        _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin.raw, {e: _lowered(nvrtc, program, e) for e in expressions}
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def all_options(options: Sequence[str], arch: str) -> list[str]:
    found = [*options, *COMMON]
    if not any(o.lstrip("-").startswith("std=") for o in options):
        found.append(STANDARD)
    return found if target_of(options) else [*found, f"-arch={arch}"]


def target_of(options: Sequence[str]) -> str | None:
    """The architecture that the options ask for themselves, such as `sm_90a`."""
    for option in options:
        name, _, value = option.lstrip("-").partition("=")
        if name in ("arch", "gpu-architecture"):
            return value
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """Torch's own where torch has CUDA; raises NvrtcError where there is none."""
    for name in candidates():
        try:
            # Some releases look for it by name alone, which finds what is loaded already.
            for builtins in sorted(Path(name).parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))
            found = ctypes.CDLL(name)
        except OSError:
            continue
        found.nvrtcGetErrorString.restype = ctypes.c_char_p
        return found
    raise NvrtcError("no NVRTC here: install nvidia-cuda-nvrtc, or a torch with CUDA")


def candidates() -> Iterator[str]:
    """Names and paths of the library, the major version of torch's CUDA first."""
    major = (torch.version.cuda or "13").partition(".")[0]
    for version in dict.fromkeys((major, "13", "12")):
        yield f"libnvrtc.so.{version}"
        for root in _roots():
            yield from map(str, sorted(root.glob(f"lib*/libnvrtc.so.{version}")))


def headers() -> list[str]:
    """Folders to search, as cupy does: the CCCL that cupy brings, where it is installed, then
    cuda_fp16.h and its like; at the end what those lack, from a toolkit of the same major version.
    """
    found = [folder for site in _sites() for folder in sorted((site / CUPY_CCCL).glob("*"))]
    includes = [root / "include" for root in _roots()]
    own = next((folder for folder in includes if (folder / "cuda_fp16.h").is_file()), None)
    if own is not None:
        alike = [own, *(folder for folder in includes if _major(folder) == _major(own))]
        found += [own, *[folder / "cccl" for folder in alike if (folder / "cccl").is_dir()][:1]]
        found += [folder for folder in alike if (folder / "crt" / "mma.h").is_file()][:1]
    return [str(folder) for folder in dict.fromkeys(found)]


def _major(include: Path) -> str | None:
    """`13` of CUDA 13.0, as an include folder's cuda.h says; None where it does not."""
    try:
        text = (include / "cuda.h").read_text(errors="replace")
    except OSError:
        return None
    number = re.search(r"^#define CUDA_VERSION (\d+)\d{3}\b", text, re.MULTILINE)
    return None if number is None else number[1]


def _sites() -> list[Path]:
    found = {sysconfig.get_path("purelib"), str(Path(torch.__file__).parents[1])}
    return [Path(site) for site in sorted(found)]


def _roots() -> list[Path]:
    wheels = [p for site in _sites() for p in sorted((site / "nvidia").glob("*"))]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return [*wheels, *(Path(home) for home in homes if home)]


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, expression: str) -> str:
    name = ctypes.c_char_p()
    _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name)))
    return (name.value or b"").decode()


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace").strip()[-2000:]


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status:
        raise NvrtcError(nvrtc.nvrtcGetErrorString(status).decode())
