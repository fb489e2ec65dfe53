"""Every status that a candidate can earn, through real processes on the CPU."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from sandbox.machine.handle import WorkerFailed
from sandbox.observation import Failure, FailureKind, RoundObservation
from sandbox.pairs.pair import ProcessPair
from sandbox.types import Language, Shape, Status
from tests.sandbox.conftest import FAST, LINEAR, SCALE, Evaluate, forward, renamed

SHORT = replace(FAST, load_timeout_s=1.5, run_timeout_s=1.5)

KERNEL = r'''
import ctypes
import torch
import torch.nn as nn
import torch.utils.cpp_extension

SOURCE = """
#include <cstdint>
extern "C" void scale(const float* x, float* y, int64_t n, float factor) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] > 0 ? x[i] : 0) * factor + 1.0f;
}
"""
library = ctypes.CDLL(torch.utils.cpp_extension.load_inline(
    "scale", cpp_sources=[SOURCE], is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-fopenmp"], extra_ldflags=["-fopenmp"]))
pointer = ctypes.c_void_p
library.scale.argtypes = [pointer, pointer, ctypes.c_int64, ctypes.c_float]


class ModelNew(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        y = torch.empty_like(x)
        library.scale(x.data_ptr(), y.data_ptr(), x.numel(), self.factor)
        return y
'''


def linear(parameters: str, result: str) -> str:
    return f"""
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        {parameters}

    def forward(self, x):
        return {result}
"""


def test_a_torch_rewrite_passes_with_cases_and_timing(evaluate: Evaluate) -> None:
    found = evaluate(forward("return y"))
    assert (found.status, found.detail) == (Status.PASSED, "")
    assert all(case.passed for case in found.cases)
    assert found.precision == "float32"
    assert found.timing is not None
    assert 1 <= len(found.timing.pairs) <= 2
    assert {"build", "load", "verify", "time", "total"} <= set(found.seconds)


def test_a_cpp_kernel_is_built_and_passes(evaluate: Evaluate) -> None:
    found = evaluate(KERNEL, language=Language.CPP)
    assert found.status is Status.PASSED, found.detail


def test_every_shape_is_judged(evaluate: Evaluate) -> None:
    wide = SCALE.replace("torch.randn(7, 129)", "torch.randn(ROWS, 129)") + "\nROWS = 7\n"
    shapes = (Shape("given"), Shape("tall", (("ROWS", 300),)))
    broken = forward("if len(x) > 7: y = y + 1", "return y")
    assert evaluate(renamed(wide), wide, shapes=shapes).status is Status.PASSED
    found = evaluate(broken, wide, shapes=shapes)
    assert found.status is Status.WRONG_VALUE
    assert found.detail.startswith("tall, given")


@pytest.mark.parametrize(
    ("parameters", "result", "how"),
    [
        (
            "self.bias = nn.Parameter(torch.zeros(n)); "
            "self.weight = nn.Parameter(torch.randn(n, n))",
            "torch.addmm(self.bias, x, self.weight.T)",
            "name",
        ),
        ("self.layer = nn.Linear(n, n)", "self.layer(x)", "order"),
    ],
)
def test_parameters_are_matched(evaluate: Evaluate, parameters: str, result: str, how: str) -> None:
    found = evaluate(linear(parameters, result), LINEAR)
    assert (found.status, found.parameters) == (Status.PASSED, how), found.detail


SEED_ONLY = linear(
    "weight = torch.randn(n, n) / n**0.5; self.wide = nn.Parameter(weight.T.reshape(1, n, n))",
    "x @ self.wide[0]",
)


def test_parameters_that_only_a_seed_matches_are_named_so(evaluate: Evaluate) -> None:
    lenient = replace(FAST, require_matched_parameters=False)
    found = evaluate(SEED_ONLY, LINEAR, config=lenient)
    assert (found.status, found.parameters) == (Status.PASSED, "seed"), found.detail


def test_a_task_stays_valid_whose_reference_cannot_be_judged_as_constructed(
    evaluate: Evaluate,
) -> None:
    """Such as with a last layer of zeros: the candidate asked for that, by other parameters."""
    zeros = LINEAR.replace("torch.randn(n, n) / n**0.5", "torch.zeros(n, n)")
    candidate = SEED_ONLY.replace("torch.randn(n, n) / n**0.5", "torch.zeros(n, n)")
    lenient = replace(FAST, require_matched_parameters=False)
    found = evaluate(candidate, zeros, config=lenient)
    assert (found.status, found.parameters) == (Status.REJECTED, "seed"), found.detail
    assert "all zeros passes" in found.detail


def test_a_reference_that_dies_beside_a_candidate_is_our_fault(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*args: object, **options: object) -> None:
        raise WorkerFailed(Failure("reference", FailureKind.DIED, message="killed"))

    monkeypatch.setattr("sandbox.prepare.Preparer.pools", dies)
    lenient = replace(FAST, require_matched_parameters=False)
    found = evaluate(SEED_ONLY, LINEAR, config=lenient)
    assert found.status is Status.SANDBOX_ERROR, found.detail


def test_a_candidate_without_the_references_parameters_is_rejected(evaluate: Evaluate) -> None:
    found = evaluate(linear("pass", "x"), LINEAR)
    assert (found.status, found.parameters) == (Status.REJECTED, "seed"), found.detail


def test_strict_rejects_parameters_that_only_a_seed_matches(evaluate: Evaluate) -> None:
    strict = replace(FAST, require_matched_parameters=True)
    found = evaluate(SEED_ONLY, LINEAR, config=strict)
    assert found.status is Status.REJECTED


def test_parameters_are_matched_at_every_size(evaluate: Evaluate) -> None:
    """The last one verified is the one that is timed."""
    sized = LINEAR.replace("randn(5, 33)", "randn(5, N)").replace("[33]", "[N]") + "\nN = 33\n"
    candidate = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        weight = torch.randn(n, n) / n**0.5
        self.bias = nn.Parameter(torch.zeros(n))
        self.weight = nn.Parameter(weight if n != 33 else weight.reshape(1, n, n))

    def forward(self, x):
        return x @ self.weight.reshape(x.shape[1], -1).T + self.bias
"""
    shapes = (Shape("given"), Shape("wide", (("N", 65),)))
    found = evaluate(candidate, sized, shapes=shapes)
    assert (found.status, found.parameters) == (Status.REJECTED, "seed"), found.detail


@pytest.mark.parametrize(
    "source",
    [
        "",
        "  \n",
        "class Model: pass",
        "class ModelNew:\n    def __init__(self, factor): pass",
        "ModelNew = 3",
        "ModelNew = " + "-" * 100_000 + "1",
    ],
    ids=["empty", "blank", "no ModelNew", "no module", "a number", "too deep"],
)
def test_what_is_no_candidate_is_rejected(evaluate: Evaluate, source: str) -> None:
    assert evaluate(source).status is Status.REJECTED


def test_a_compile_error_carries_the_compilers_words(evaluate: Evaluate) -> None:
    found = evaluate(KERNEL.replace("* factor", "* undeclared_factor"), language=Language.CPP)
    assert found.status is Status.COMPILE_ERROR
    assert "undeclared_factor" in found.build_log
    assert "error:" in found.build_log


def test_a_python_syntax_error_is_a_compile_error(evaluate: Evaluate) -> None:
    found = evaluate("class ModelNew(:\n    pass")
    assert found.status is Status.COMPILE_ERROR
    assert "SyntaxError" in found.detail


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('lost')", "KeyError"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "exited with code 0"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 40)", "signal 40"),
        ("raise ValueError('bad \\udfff')", "ValueError: bad ?"),
        ("return object()", "TypeError"),
    ],
)
def test_a_failing_forward_is_a_runtime_error(evaluate: Evaluate, body: str, words: str) -> None:
    found = evaluate(forward(body))
    assert found.status is Status.RUNTIME_ERROR, found.detail
    assert words in found.detail
    found.detail.encode()


@pytest.mark.parametrize(
    "source",
    [
        forward("while True: pass"),
        forward("return y", top="import time\ntime.sleep(1000)"),
        forward(
            "import os, time",
            "os.fork() or os.fork() or time.sleep(1000)",
            "time.sleep(1000)",
        ),
        forward("import os, signal, time", "os.kill(os.getpid(), signal.SIGSTOP)", "return y"),
    ],
    ids=["loop", "sleeps at import", "grandchildren", "stops itself"],
)
def test_a_candidate_that_hangs_times_out_with_its_children(
    evaluate: Evaluate, source: str
) -> None:
    found = evaluate(source, config=SHORT)
    assert found.status is Status.TIMEOUT, found.detail
    assert "1.5 s" in found.detail


BOMB = forward("hog = []", "while True: hog.append(bytearray(b'x') * (64 << 20))")


@pytest.mark.parametrize(
    "source", [BOMB, forward("raise MemoryError")], ids=["bomb", "MemoryError"]
)
def test_too_much_memory_is_out_of_memory(evaluate: Evaluate, source: str) -> None:
    found = evaluate(source, config=replace(FAST, memory_limit_bytes=1 << 30))
    assert found.status is Status.OUT_OF_MEMORY, found.detail


TUPLE = SCALE.replace("* self.factor + 1.0", "* self.factor, x.sum(1), None")


@pytest.mark.parametrize(
    ("reference", "source"),
    [
        (SCALE, forward("return y[:-1]")),
        (SCALE, forward("return y[None]")),
        (SCALE, forward("return y.T.contiguous().T")),
        (SCALE, forward("return (y,)")),
        (SCALE, forward("return {'y': y}")),
        (SCALE, forward("return None")),
        (TUPLE, forward("return y - 1.0, x.sum(1)")),
        (TUPLE, forward("return y - 1.0, None, x.sum(1)")),
        (TUPLE, forward("return y - 1.0, x.sum(1), 3")),
    ],
)
def test_another_shape_or_structure_is_a_wrong_shape(
    evaluate: Evaluate, reference: str, source: str
) -> None:
    found = evaluate(source, reference)
    assert found.status is Status.WRONG_SHAPE, found.detail


@pytest.mark.parametrize("dtype", ["double", "half", "long"])
def test_another_dtype_is_a_wrong_dtype(evaluate: Evaluate, dtype: str) -> None:
    found = evaluate(forward(f"return y.{dtype}()"))
    assert found.status is Status.WRONG_DTYPE
    assert "float32" in found.detail


STATIC = forward("buffer = CACHE.setdefault(0, torch.empty_like(y))", "buffer.copy_(y)",
                 "return buffer", top="CACHE = {}")  # fmt: skip
MEMOISED = forward("return CACHE.setdefault(x.data_ptr(), y)", top="CACHE = {}")
FIRST_ONLY = forward("return CACHE.setdefault(0, y)", top="CACHE = {}")


@pytest.mark.parametrize(
    "source",
    [
        forward("return y + 1e-3 * y"),
        forward("y[-1, -1] = 0", "return y"),
        forward("y[3] = 0", "return y"),
        forward("return torch.zeros_like(y)"),
        forward("return torch.empty_like(y)"),
        forward("return torch.full_like(y, float('nan'))"),
        forward("return torch.relu(x).mul(2.0).add(1.0)"),
        forward("return y.bfloat16().float()"),
        forward("return x"),
        STATIC,
        FIRST_ONLY,
    ],
    ids=[
        *("off by 0.1 %", "last element", "one row", "zeros", "uninitialised", "NaN", "formula"),
        *("bfloat16", "input", "static buffer", "first result"),
    ],
)
def test_a_wrong_value_is_found(evaluate: Evaluate, source: str) -> None:
    found = evaluate(source)
    assert found.status is Status.WRONG_VALUE, found.detail
    assert found.timing is None


def test_results_remembered_by_address_are_wrong_for_the_call_in_haste(evaluate: Evaluate) -> None:
    found = evaluate(MEMOISED)
    assert found.status is Status.WRONG_VALUE
    assert ", in haste: " in found.detail


def test_results_remembered_by_address_are_wrong_in_timed_rounds(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.checking.verify.HASTY_BYTES", 0)
    found = evaluate(MEMOISED)
    assert found.status is Status.WRONG_VALUE
    assert found.detail.startswith("timed rounds")


@pytest.mark.parametrize(
    ("parameters", "result"),
    [
        ("self.weight = nn.Parameter(torch.randn(n, n))", "x @ self.weight.T"),
        ("self.l = nn.Linear(n, n); self.t = self.l.weight.detach().T.clone()", "x @ self.t"),
    ],
    ids=["no bias", "weights copied in the constructor"],
)
def test_parameters_left_out_or_folded_early_are_wrong(
    evaluate: Evaluate, parameters: str, result: str
) -> None:
    found = evaluate(linear(parameters, result), LINEAR)
    assert found.status is Status.WRONG_VALUE, found.detail


def test_weights_cached_at_the_first_call_are_wrong(evaluate: Evaluate) -> None:
    lazy = (
        linear("self.l = nn.Linear(n, n)", "self.fast(x)")
        + """
    def fast(self, x):
        if not hasattr(self, "t"):
            self.t = self.l.weight.detach().T.clone()
        return x @ self.t + self.l.bias
"""
    )
    found = evaluate(lazy, LINEAR, config=replace(FAST, rounds=8))
    assert found.status is Status.WRONG_VALUE, found.detail


@pytest.mark.parametrize(
    "line", ["x.zero_()", "x[-1, -1] += 1", "torch.relu_(x)"], ids=["all", "one", "in place"]
)
def test_a_changed_input_is_found(evaluate: Evaluate, line: str) -> None:
    assert evaluate(forward(line, "return y")).status is Status.INPUT_MUTATED


NORM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)

    def forward(self, x):
        return self.norm(x)

def get_inputs():
    return [torch.randn(16, 24)]

def get_init_inputs():
    return [24]
"""


COUNTED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(129))

    def forward(self, x):
        UPDATE
        return torch.relu(x) - self.mean


def get_inputs():
    return [torch.randn(7, 129)]


def get_init_inputs():
    return []
"""
IN_PLACE = COUNTED.replace("UPDATE", "self.mean.lerp_(x.mean(0), 0.1)")
BOUND = COUNTED.replace("UPDATE", "self.mean = torch.lerp(self.mean, x.mean(0), 0.1)")


@pytest.mark.parametrize("reference", [IN_PLACE, BOUND], ids=["in place", "bound anew"])
@pytest.mark.slow
def test_a_buffer_may_be_bound_anew_instead_of_written_to(
    evaluate: Evaluate, reference: str
) -> None:
    """`state_dict` holds the same afterwards."""
    for honest in (IN_PLACE, BOUND):
        found = evaluate(renamed(honest), reference)
        assert found.status is Status.PASSED, found.detail
    still = COUNTED.replace("UPDATE", "self.mean = self.mean.clone()")
    assert evaluate(renamed(still), reference).status is Status.WRONG_VALUE


def test_buffers_must_move_as_the_references_do(evaluate: Evaluate) -> None:
    still = renamed(NORM).replace(
        "self.norm(x)",
        "nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True)",
    )
    assert evaluate(renamed(NORM), NORM).status is Status.PASSED
    found = evaluate(still, NORM)
    assert found.status is Status.WRONG_VALUE
    assert "buffer" in found.detail


RESULT = "torch.relu(x) * self.factor + 1.0"
PERMUTED = SCALE.replace(RESULT, f"({RESULT}).t().contiguous().t()")


@pytest.mark.parametrize("tail", ["", ".t().contiguous().t()"])
@pytest.mark.slow
def test_a_permuted_output_may_also_come_contiguous(evaluate: Evaluate, tail: str) -> None:
    found = evaluate(forward(f"return y{tail}"), PERMUTED)
    assert found.status is Status.PASSED, found.detail


ORDERED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return (x + 1).t().contiguous()
def get_inputs():
    return [torch.rand(1024, 1024)]
def get_init_inputs():
    return []
"""
TURNED = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return (x + 1).t()
"""


@pytest.mark.slow
def test_another_dense_layout_is_admitted_where_values_alone_count_and_its_copy_is_charged(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its noise (`charged_collect`): a copy in another order takes about twice as long."""
    longer: list[float] = []
    observed = ProcessPair.observed

    def noted(self: ProcessPair, *turns: Any, single: bool) -> RoundObservation:
        seen = observed(self, *turns, single=single)
        if self.judged and not single:
            longer.append(seen.candidate_collect_s / seen.reference_collect_s)
        return seen

    monkeypatch.setattr(ProcessPair, "observed", noted)
    found = evaluate(TURNED, ORDERED)
    assert found.status is Status.WRONG_SHAPE
    assert found.detail.endswith("output is a permuted layout, expected contiguous")
    assert not longer
    found = evaluate(TURNED, ORDERED, config=replace(FAST, dense_layouts=True))
    assert found.status is Status.PASSED, found.detail
    assert "handing it over is charged" in str(found.evidence)
    assert statistics.median(longer) > 1.2
    expanded = TURNED.replace("(x + 1).t()", "(x + 1)[:1].expand_as(x)")
    found = evaluate(expanded, ORDERED, config=replace(FAST, dense_layouts=True))
    assert found.status is Status.WRONG_SHAPE


INTEGERS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, mask):
        return x.argmax(1), mask.logical_not(), x.long()

def get_inputs():
    return [torch.randint(0, 9, (33, 20)).float() * 1.0, torch.rand(33) > 0.5]

def get_init_inputs():
    return []
"""


def test_a_tie_broken_otherwise_passes(evaluate: Evaluate) -> None:
    last = renamed(INTEGERS).replace("x.argmax(1)", "19 - x.flip(1).argmax(1)")
    found = evaluate(last, INTEGERS)
    assert found.status is Status.PASSED, found.detail


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("x.argmax(1)", "x.argmin(1)"),
        ("x.argmax(1)", "x.argmax(1) * 0"),
        ("mask.logical_not()", "mask.clone()"),
        ("x.long()", "x.long() + (x == 8).long()"),
    ],
)
def test_integer_and_bool_outputs_are_exact(evaluate: Evaluate, right: str, wrong: str) -> None:
    found = evaluate(renamed(INTEGERS).replace(right, wrong), INTEGERS)
    assert found.status is Status.WRONG_VALUE, found.detail
