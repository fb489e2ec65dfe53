"""What a task and a kernel are about, told from their text: operators, techniques. Nothing is run.

Techniques go by the names that questions use (agent/prompts/hints.py), so that what was asked for
and what was found speak of the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from sandbox.types import Language

GPU: Mapping[str, str] = {
    "tiling": r"__shared__|\bextern\s+__shared__",
    "vector access": r"\b(?:float|int|uint|double|half|__half|__nv_bfloat16)[24]\b|\.v[24]\.",
    "warp primitives": r"__shfl_|__reduce_\w+_sync|\bshfl\.sync",
    "register blocking": r"#pragma\s+unroll|tl\.static_range",
    "tensor cores": r"\bw?mma\b|mma\.sync|wgmma|\btl\.dot\b",
    "pipelining": r"cp\.async|memcpy_async|cuda_pipeline|num_stages",
    "launch shape": r"__launch_bounds__|(?:gridDim|blockDim)\.x\s*\*\s*(?:gridDim|blockDim)\.x",
}
CPU: Mapping[str, str] = {
    "tiling": r"\b\w*(?:TILE|tile)\w*\b",
    "vectorisation": r"omp\s[^\n]*\bsimd\b|\b_mm(?:256|512)?_",
    "accumulators": r"\breduction\s*\(",
    "threads": r"omp\s+parallel",
    "streaming stores": r"_mm\w*_stream|nontemporal",
}
SETUP = frozenset(("init", "tensor", "parameter", "registerbuffer", "ones", "zeros", "full"))
PLUMBING = SETUP | frozenset(("size", "shape", "to", "len", "range", "int", "float"))
"""Calls that say nothing about what a reference computes."""


def techniques(source: str, language: Language) -> tuple[str, ...]:
    """Names of those that the source shows signs of; what its compiler does is not seen."""
    patterns = CPU if language is Language.CPP else GPU
    return tuple(name for name, sign in patterns.items() if re.search(sign, source))


def operators(reference: str) -> tuple[str, ...]:
    """What its Model calls, in one spelling, sorted: `nn.LayerNorm` is `F.layer_norm` here."""
    try:
        tree = ast.parse(reference)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    models = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    names = {name for model in models for node in ast.walk(model) for name in _named(node)}
    spelled = {name.replace("_", "").lower() for name in names}
    return tuple(sorted(spelled - PLUMBING - {"", "super"}))


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.attr]
    if isinstance(node, ast.BinOp):
        return ["matmul"] if isinstance(node.op, ast.MatMult) else [type(node.op).__name__]
    return []
