"""C++ and CUDA source as tokens: system calls no kernel needs, libraries it calls, its kernels.

Comments are dropped and string literals kept apart, so that words in either decide nothing. Macros
are not expanded: a name pasted together by the preprocessor is not seen.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.static.words import ATEN_PLUMBING

TOKEN = re.compile(
    r"""
    (?P<comment> //(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) )
  | (?P<raw> (?:u8|u|U|L)?R"(?P<tag>[^\s()\\]{0,16})\(.*?(?:\)(?P=tag)"|\Z) )
  | (?P<string> (?:u8|u|U|L)?"(?:\\.|[^"\\\n])*" )
  | (?P<char> '(?:\\.|[^'\\\n])+' )
  | (?P<word> [A-Za-z_]\w* )
  | (?P<number> \.?\d(?:[eEpP][+-]|[\w.'])* )
  | (?P<mark> ::|->|<<<|>>>|[^\s\w] )
    """,
    re.VERBOSE | re.DOTALL,
)
"""C++ lexical conventions ([lex.pptoken]), as far as names and literals need them."""

OTHERS_MEMORY = re.compile(r"/proc/[^/]+(/task/[^/]+)?/mem|/dev/k?mem")
REFUSED_CALLS = {
    "ptrace": "traces processes",
    "process_vm_readv": "reads another process's memory",
    "process_vm_writev": "writes another process's memory",
    "pidfd_getfd": "takes another process's descriptors",
    "cudaIpcOpenMemHandle": "opens another process's device memory",
    "cuIpcOpenMemHandle": "opens another process's device memory",
    "cuIpcOpenMemHandle_v2": "opens another process's device memory",
    "cudaIpcOpenEventHandle": "opens another process's events",
    "cuIpcOpenEventHandle": "opens another process's events",
    "hipIpcOpenMemHandle": "opens another process's device memory",
}
SIGNALS = frozenset({"kill", "killpg", "tkill", "tgkill"})
LIBRARIES = (
    ("cublasLt", "cuBLASLt"),
    ("cublas", "cuBLAS"),
    ("cudnn", "cuDNN"),
    ("cusparse", "cuSPARSE"),
    ("cusolver", "cuSOLVER"),
    ("cufft", "cuFFT"),
    ("nccl", "NCCL"),
    ("mkl_", "MKL"),
    ("cblas_", "CBLAS"),
    ("dnnl", "oneDNN"),
)
"""Prefix of a called function, and the library it belongs to."""
CONCURRENCY = {
    "cudaStreamCreate": "streams",
    "cudaStreamCreateWithFlags": "streams",
    "cudaStreamCreateWithPriority": "streams",
    "cuStreamCreate": "streams",
    "getStreamFromPool": "streams",
    "cudaLaunchHostFunc": "host callbacks",
    "cudaStreamAddCallback": "host callbacks",
    "pthread_create": "threads",
    "thread": "threads",
    "jthread": "threads",
    "async": "threads",
    "fork": "processes",
    "cudaGraphLaunch": "graphs",
    "cuGraphLaunch": "graphs",
    "cudaLaunchCooperativeKernel": "cooperative launches",
}
MACHINE = {
    "cudaDeviceSetLimit": "device limits",
    "cudaCtxResetPersistingL2Cache": "persisting L2",
    "accessPolicyWindow": "persisting L2",
    "cudaFuncSetAttribute": "kernel attributes",
    "mprotect": "memory protection",
    "dlsym": "symbols by name",
    "dlopen": "libraries by name",
    "clock64": "device clock",
    "globaltimer": "device clock",
}


@dataclass(frozen=True)
class Read:
    """What one string of C++ holds."""

    refused: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    """(topic, name)."""
    kernels: tuple[str, ...] = ()
    graphs: bool = False


def looks_like_code(text: str) -> bool:
    """A string of C++ rather than prose: it has a body or a directive."""
    return ("{" in text and ";" in text) or "#include" in text or "__global__" in text


def read(text: str) -> Read:
    """The facts of one source text."""
    tokens, strings = tokenise(text)
    refused = next(
        (f"C++ opens {s}: the memory of a process" for s in strings if OTHERS_MEMORY.fullmatch(s)),
        "",
    )
    facts: list[tuple[str, str]] = []
    kernels = tuple(kernel_names(tokens))
    for place, word in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        before = tokens[place - 1] if place else ""
        member = before in (".", "->")
        if following == "(" and not member:
            refused = refused or _refused_call(tokens, place)
            facts += [("libraries", name) for start, name in LIBRARIES if word.startswith(start)][
                :1
            ]
        if word in CONCURRENCY and _means_it(tokens, place):
            facts.append((CONCURRENCY[word], word))
        if word in MACHINE and not (word == "clock64" and following != "("):
            facts.append((MACHINE[word], word))
        if word == "cutlass" and following == "::":
            facts.append(("libraries", "CUTLASS"))
        qualified = before == "::" and place > 1 and tokens[place - 2] in ("at", "torch")
        if qualified and following == "(" and word not in ATEN_PLUMBING:
            facts.append(("torch operators in C++", word))
    graphs = any(topic == "graphs" for topic, _ in facts)
    return Read(refused, tuple(facts), kernels, graphs)


def tokenise(text: str) -> tuple[list[str], list[str]]:
    """Words and marks in order, and the contents of string literals."""
    tokens: list[str] = []
    strings: list[str] = []
    for match in TOKEN.finditer(text):
        kind, value = match.lastgroup, match.group()
        if match.group("raw") is not None:
            strings.append(value.partition("(")[2].rpartition(")")[0])
        elif match.group("string") is not None:
            strings.append(value.partition('"')[2][:-1])
        elif kind in ("word", "mark"):
            tokens.append(value)
        elif kind == "number":
            tokens.append("0")
    return tokens, strings


def kernel_names(tokens: Sequence[str]) -> list[str]:
    """Functions declared `__global__`, past `__launch_bounds__(...)` and their return type."""
    names = []
    for place, word in enumerate(tokens):
        if word != "__global__":
            continue
        rest = list(tokens[place + 1 : place + 64])
        for offset, (name, mark) in enumerate(itertools.pairwise(rest)):
            if mark == "(" and name.isidentifier() and not name.startswith("__"):
                names.append(name)
                break
            if name in (";", "{") and offset:
                break
    return names


def _refused_call(tokens: Sequence[str], place: int) -> str:
    word = tokens[place]
    if word in REFUSED_CALLS and not _declares(tokens, place):
        return f"C++ calls {word}, which {REFUSED_CALLS[word]}"
    arguments = tuple(tokens[place + 2 : place + 5])
    own = word in SIGNALS and arguments[:3] == ("getpid", "(", ")")
    if word in SIGNALS and not own and not _defined_here(tokens, word):
        return f"C++ calls {word}, which signals other processes"
    return ""


def _declares(tokens: Sequence[str], place: int) -> bool:
    """Whether `name(` stands after a type, as in a declaration or a definition of its own."""
    before = tokens[place - 1] if place else ""
    return before.isidentifier() and before not in ("return", "else", "do", "throw", "case")


def _defined_here(tokens: Sequence[str], word: str) -> bool:
    """Whether the source has a function of its own by this name, with a body."""
    return any(
        name == word and _declares(tokens, place) and _body_follows(tokens, place + 1)
        for place, name in enumerate(tokens)
    )


def _body_follows(tokens: Sequence[str], place: int) -> bool:
    depth = 0
    for position in range(place, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[position], 0)
        if depth == 0:
            return tokens[place] == "(" and tokens[position + 1 : position + 2] == ["{"]
    return False


def _means_it(tokens: Sequence[str], place: int) -> bool:
    """Not a variable that happens to be called `thread` or `async`."""
    if tokens[place] in ("thread", "jthread", "async"):
        return tuple(tokens[max(place - 2, 0) : place]) == ("std", "::")
    return True
