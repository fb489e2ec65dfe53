"""C expressions of the scalar operations; valid in CUDA C++ and, with the same names, in C++."""

from __future__ import annotations

import math

from agent.features.program import Literal, Value

TYPES = {"float": "float", "int": "long long", "bool": "bool"}

TEMPLATES = {
    "same": "{0}", "neg": "-{0}", "exp": "EXP({0})", "expm1": "expm1f({0})",
    "log": "LOG({0})", "log1p": "log1pf({0})", "log2": "log2f({0})", "sqrt": "sqrtf({0})",
    "rsqrt": "(1.0f / sqrtf({0}))", "reciprocal": "(1.0f / {0})", "sin": "sinf({0})",
    "cos": "cosf({0})", "tanh": "TANH({0})", "erf": "erff({0})",
    "sigmoid": "(1.0f / (1.0f + EXP(-{0})))", "silu": "({0} / (1.0f + EXP(-{0})))",
    "relu": "({0} < 0 ? 0 : {0})", "sign": "(float)(({0} > 0) - ({0} < 0))",
    "floor": "floorf({0})", "ceil": "ceilf({0})", "square": "({0} * {0})",
    "cube": "({0} * {0} * {0})", "isnan": "({0} != {0})", "isinf": "(fabsf({0}) == INFINITY)",
    "logical_not": "!{0}", "bitwise_not": "!{0}", "to_float": "(float){0}",
    "to_int": "(long long){0}", "to_bool": "({0} != 0)",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "((float){0} / (float){1})",
    # The maximum was rounded; a product that is subtracted from unrounded comes out above it.
    "shift": "MINUS({0}, {1})",
    "pow": "powf({0}, {1})", "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}", "logical_and": "({0} && {1})",
    "logical_or": "({0} || {1})", "where": "({0} ? {1} : {2})",
    "gelu": "(0.5f * {0} * (1.0f + erff({0} * 0.70710678118654752f)))",
    "gelu_tanh": "gelu_tanh({0})",
}  # fmt: skip


def literal(value: Literal) -> str:
    """A C literal that keeps every bit of the float."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value}LL" if abs(value) >= 1 << 31 else str(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"


def expression(value: Value) -> str:
    """The right-hand side that computes a pointwise value or a constant."""
    if value.op == "const":
        assert not isinstance(value.args[0], str)
        return literal(value.args[0])
    if value.op == "columns":
        return "(float)columns"
    if value.op == "scalar":
        return f"s{value.args[0]}"
    if value.op == "abs":
        return (
            f"fabsf({value.args[0]})"
            if value.kind == "float"
            else "({0} < 0 ? -{0} : {0})".format(value.args[0])
        )
    return TEMPLATES[value.op].format(*value.args)
