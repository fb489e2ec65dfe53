"""Plan + features -> the candidate's complete source, for the CPU and for CUDA."""

from __future__ import annotations

from agent.features import cpp, cuda, host
from agent.features.cuda_pool import default, mapping
from agent.features.cuda_source import prelude
from agent.features.emit import headed
from agent.features.program import Plan
from agent.features.search import Features
from sandbox.types import Candidate, Language, Task, digest

MADE = "// Made by the feature proposer: "
"""Begins a source's first comment."""
CPP_HEAD = '''
import ctypes
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
{source}"""

LIBRARY = ctypes.CDLL(
    load_inline(
        name="features_{key}",
        cpp_sources=[SOURCE],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags={flags!r},
        extra_ldflags=["-fopenmp"],
    )
)
'''

CUDA_HEAD = '''
import cupy
import numpy
import torch
from torch._C import _cuda_getCurrentRawStream as raw_stream

SOURCE = r"""
{source}"""

MODULE = cupy.RawModule(code=SOURCE, options={options!r}, backend="nvrtc")


STREAMS = {{}}


def stream_of(tensor):
    """cupy's view of the stream torch would use now for this tensor."""
    pointer = raw_stream(tensor.get_device())
    if pointer not in STREAMS:
        STREAMS[pointer] = cupy.cuda.ExternalStream(pointer)
    return STREAMS[pointer]


'''


def candidate(task: Task, plan: Plan, features: Features) -> Candidate:
    """One self-contained source with the reference's constructor and parameters."""
    if task.device == "cpu":
        return Candidate(task.id, Language.CPP, _cpp(task, plan, features))
    return Candidate(task.id, Language.CUDA, _cuda(task, plan, features))


def header(plan: Plan, features: Features, shape: str) -> str:
    """What the file does, for whoever reads it: mapping, launch shape and the expected bound."""
    lines = [MADE + ", ".join(f"{k}={v}" for k, v in features.items())]
    lines.append(f"// Mapping: {shape}")
    lines += [f"// {made.name}: {made.text}, by the library" for made in plan.products]
    for i, program in enumerate(plan.programs):
        ways = [f"{o.source}:{o.dtype}" for o in program.operands]
        lines.append(
            f"// stage{i}: rows {program.rows}, columns {program.columns}; reads {', '.join(ways)}"
        )
    lines.append("// Bound: memory; each operand read once, each result written once.")
    return "\n".join(lines) + "\n"


def without_header(source: str) -> str:
    """The source less its comments: equal bodies are equal kernels, whatever features they name."""
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("// "))


def _cpp(task: Task, plan: Plan, features: Features) -> str:
    shape = f"one thread per {cpp.FORMS[str(features['form'])]}"
    source = header(plan, features, shape) + cpp.PRELUDE
    for i, program in enumerate(plan.programs):
        source += "\n" + headed(cpp.kernel(program, f"stage{i}", _fitting(plan, i, features)))
    flags = cpp.flags(features)
    text = CPP_HEAD.format(source=source, key=digest([without_header(source), flags]), flags=flags)
    calls = []
    known = host.names(plan)
    for i, program in enumerate(plan.programs):
        pointers = [known[o.source] for o in program.operands] + [r.name for r in program.results]
        kinds = ["ctypes.c_void_p"] * len(pointers)
        sizes = host.sizes(program)
        kinds += [
            "ctypes.c_float" if s.startswith("float(") else "ctypes.c_longlong" for s in sizes
        ]
        text += f"STAGE{i} = LIBRARY.stage{i}\nSTAGE{i}.restype = None\n"
        text += f"STAGE{i}.argtypes = [{', '.join(kinds)}, ctypes.c_int]\n"
        arguments = ", ".join([f"{p}.data_ptr()" for p in pointers] + sizes)
        calls.append(
            [
                "threads = torch.get_num_threads() if rows * columns >= 16384 else 1",
                f"STAGE{i}({arguments}, threads)",
            ]
        )
    return (
        host.futures(task.source)
        + text
        + "\n\n"
        + host.skeleton(task.source)
        + "\n"
        + host.forward(plan, calls)
    )


def _fitting(plan: Plan, place: int, features: Features) -> Features:
    """The smaller programs keep the form that their own sizes suggest."""
    if place == plan.main:
        return features
    own = cpp.default(plan.programs[place])
    alike = own.keys() == features.keys()
    return {**features, "form": own["form"]} if alike else own


def _cuda(task: Task, plan: Plan, features: Features) -> str:
    source = header(plan, features, mapping(features)) + prelude(features)
    known = host.names(plan)
    handles, calls, made = "", [], dict[str, int]()
    for i, program in enumerate(plan.programs):
        own = features if i == plan.main else {**default(program), "math": features["math"]}
        place = made.setdefault(cuda.kernels(program.numbered(), "stage", own).source, i)
        if place == i:  # a network's layers are alike: NVRTC compiles each kernel of theirs once
            kernels = cuda.kernels(program, f"stage{i}", own)
            source += "\n" + headed(kernels.source)
            handles += "".join(f'{n.upper()} = MODULE.get_function("{n}")\n' for n in kernels.names)
        calls.append(cuda.launches(program, own, known, place))
    text = CUDA_HEAD.format(source=source, options=cuda.OPTIONS)
    return (
        host.futures(task.source)
        + text
        + handles
        + "\n\n"
        + host.skeleton(task.source)
        + "\n"
        + host.forward(plan, calls)
    )
