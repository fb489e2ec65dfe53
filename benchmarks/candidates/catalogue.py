"""Every probe, cheap problems first; one problem's probes stand together."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.candidates import epilogue, pointwise, reduction, rewrite
from benchmarks.candidates.probe import Probe, fill, spoil
from sandbox.types import Language, Status

CUDA, INLINE, TRITON, TORCH = (
    Language.CUDA,
    Language.CUDA_INLINE,
    Language.TRITON,
    Language.TORCH,
)
RIGHT, VALUE = Status.PASSED, Status.WRONG_VALUE

GELU = "0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)))"
GELU_TRITON = "x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))"


def probes() -> list[Probe]:
    """All of them; a generator per problem keeps a problem's right and wrong ones side by side."""
    groups = (
        diagonal,
        new_gelu,
        multiply_leaky,
        add_relu,
        divide_relu,
        mish,
        folded_sum,
        group_norm,
        square_matmul,
        long_matmul,
        layer_norm,
        matrix_scalar,
        column_sum,
        column_mean,
        squared_error,
        relu,
        leaky_relu,
        swish,
        hard_tanh,
        rms_norm,
        l2_norm,
        l1_norm,
        inline_kernels,
    )
    return [probe for group in groups for probe in group()]


def diagonal() -> Iterator[Probe]:
    problem = "level1/12"
    right = fill(pointwise.SCALE_ROWS, INDEX="blockIdx.x")
    yield Probe(problem, CUDA, "right", RIGHT, right)
    wrong = fill(pointwise.SCALE_ROWS, INDEX="c")
    yield Probe(problem, CUDA, "column instead of row", VALUE, wrong)
    right = fill(pointwise.SCALE_ROWS_TRITON, DROPPED="0")
    yield Probe(problem, TRITON, "right", RIGHT, right)
    wrong = fill(pointwise.SCALE_ROWS_TRITON, DROPPED="1")
    yield Probe(problem, TRITON, "last row dropped", VALUE, wrong)
    right = rewrite.plain("a, b", "torch.mul(b, a[:, None])")
    yield Probe(problem, TORCH, "right", RIGHT, right)
    wrong = rewrite.plain("a, b", "b.mul_(a[:, None]).clone()")
    yield Probe(problem, TORCH, "input mutated", Status.INPUT_MUTATED, wrong)


def new_gelu() -> Iterator[Probe]:
    problem, right = "level1/88", pointwise.cuda(GELU)
    yield Probe(problem, CUDA, "right", RIGHT, right)
    yield Probe(problem, TRITON, "right", RIGHT, pointwise.triton(GELU_TRITON))
    exact = "0.5f * x * (1.0f + erff(0.7071067811865476f * x))"
    yield Probe(problem, CUDA, "another gelu", VALUE, pointwise.cuda(exact))
    wrong = GELU_TRITON.replace("0.044715", "0.04")
    yield Probe(problem, TRITON, "wrong constant", VALUE, pointwise.triton(wrong))
    yield Probe(problem, CUDA, "tail of 1000 dropped", VALUE, pointwise.cuda(GELU, 1000))
    yield Probe(problem, TRITON, "tail of 1 dropped", VALUE, pointwise.triton(GELU_TRITON, 1))
    for how, status in (
        ("stale buffer", VALUE),
        ("cached by address", VALUE),
        ("rounded to half", VALUE),
        ("half output", Status.WRONG_DTYPE),
        ("output without a dimension", Status.WRONG_SHAPE),
        ("input mutated", Status.INPUT_MUTATED),
    ):
        yield Probe(problem, CUDA, how, status, spoil(right, how))
    broken = pointwise.cuda("undeclared(x)")
    yield Probe(problem, CUDA, "does not compile", Status.COMPILE_ERROR, broken)
    broken = pointwise.triton("tl.no_such_function(x)")
    yield Probe(problem, TRITON, "does not compile", Status.COMPILE_ERROR, broken)


def multiply_leaky() -> Iterator[Probe]:
    problem, point = "level2/12", "(y * a < 0.0f ? b * (y * a) : y * a)"
    model = {
        "layer": "gemm",
        "extra": "multiplier, negative_slope",
        "a": "multiplier",
        "b": "negative_slope",
    }
    right = epilogue.cuda(point, **model)
    yield Probe(problem, CUDA, "right", RIGHT, right)
    right_triton = epilogue.triton("tl.where(y * a < 0, b * (y * a), y * a)", **model)
    yield Probe(problem, TRITON, "right", RIGHT, right_triton)
    ignored = epilogue.cuda(point, plus="+ 0.0f *", **model)
    yield Probe(problem, CUDA, "missing bias", VALUE, ignored)
    slope = epilogue.cuda(point, **{**model, "b": "0.01"})
    yield Probe(problem, CUDA, "wrong constant", VALUE, slope)
    yield Probe(problem, CUDA, "parameters frozen", VALUE, spoil(right, "parameters frozen"))
    cheap = "torch.matmul(x.bfloat16(), self.gemm.weight.bfloat16().t()).float()"
    yield Probe(
        problem, CUDA, "bfloat16 matmul", VALUE, epilogue.cuda(point, **model, matmul=cheap)
    )


def add_relu() -> Iterator[Probe]:
    problem, point = "level2/76", "(y < 0.0f ? 0.0f : y)"
    layers = (
        "self.gemm = nn.Linear(in_features, out_features, bias=False)\n"
        "        self.bias = nn.Parameter(torch.randn(bias_shape))"
    )
    model = {"layer": "gemm", "extra": "bias_shape", "layers": layers, "bias": "bias"}
    yield Probe(problem, CUDA, "right", RIGHT, epilogue.cuda(point, **model))
    wrong = epilogue.cuda(point, plus="-", **model)
    yield Probe(problem, CUDA, "bias subtracted", VALUE, wrong)
    wrong = epilogue.triton("y", **model)
    yield Probe(problem, TRITON, "missing activation", VALUE, wrong)


def divide_relu() -> Iterator[Probe]:
    problem = "level2/63"
    right = rewrite.divide_relu("y.relu_().div_(self.divisor)")
    yield Probe(problem, TORCH, "right", RIGHT, right)
    wrong = rewrite.divide_relu("y.relu_()")
    yield Probe(problem, TORCH, "missing scale", VALUE, wrong)
    right = epilogue.cuda("(y < 0.0f ? 0.0f : y) / a", extra="divisor", a="divisor")
    yield Probe(problem, CUDA, "right", RIGHT, right)


def mish() -> Iterator[Probe]:
    problem = "level2/29"
    yield Probe(problem, CUDA, "right", RIGHT, with_mish(epilogue.cuda("mish(mish(y))")))
    yield Probe(problem, CUDA, "one mish only", VALUE, with_mish(epilogue.cuda("mish(y)")))
    once = "y * tl.sigmoid(y)"
    yield Probe(problem, TRITON, "swish instead", VALUE, epilogue.triton(once))


def with_mish(source: str) -> str:
    """tanh(log(1 + e)) is e (e + 2) / (e (e + 2) + 2), which does not cancel."""
    function = (
        "__device__ __forceinline__ float mish(float y) {\n"
        "  const float e = expf(fminf(y, 20.0f)), n = e * (e + 2.0f);\n"
        "  return y * (n / (n + 2.0f));\n"
        "}\n"
    )
    return source.replace('SRC = r"""\n', 'SRC = r"""\n' + function)


def folded_sum() -> Iterator[Probe]:
    problem = "level2/14"
    yield Probe(problem, TORCH, "simplified", RIGHT, rewrite.folded("True"))
    wrong = rewrite.folded("self.folded is None")
    yield Probe(problem, TORCH, "folded once", VALUE, wrong)


def group_norm() -> Iterator[Probe]:
    problem = "level2/62"
    yield Probe(problem, TRITON, "right", RIGHT, epilogue.group_norm("2.0"))
    yield Probe(problem, TRITON, "missing scale", VALUE, epilogue.group_norm("1.0"))


def square_matmul() -> Iterator[Probe]:
    problem = "level1/1"
    yield Probe(problem, TORCH, "right", RIGHT, rewrite.matmul("torch.mm(a, b)"))
    flag = "torch.backends.cuda.matmul.allow_tf32 = True"
    yield Probe(problem, TORCH, "TF32 flag", VALUE, rewrite.matmul("torch.mm(a, b)", flag))
    wrong = rewrite.matmul("torch.mm(a.half(), b.half()).float()")
    yield Probe(problem, TORCH, "half matmul", VALUE, wrong)
    yield Probe(problem, TORCH, "half inputs, float32 sum", VALUE, HALF_INPUTS)


HALF_INPUTS = rewrite.matmul("torch.mm(a.half(), b.half(), out_dtype=torch.float32)")
"""On U[0, 1) its error is about 3.6e-4 / sqrt(K): below 5e-6 from K = 5100 on."""


def long_matmul() -> Iterator[Probe]:
    problem = "level1/2"
    yield Probe(problem, TORCH, "right", RIGHT, rewrite.matmul("torch.mm(a, b)"))
    yield Probe(problem, TORCH, "half inputs, float32 sum", VALUE, HALF_INPUTS)


def layer_norm() -> Iterator[Probe]:
    problem, right = "level1/40", reduction.layer_norm("* weight[c] + bias[c]", "self.ln.eps")
    yield Probe(problem, CUDA, "right", RIGHT, right)
    wrong = reduction.layer_norm("* weight[c]", "self.ln.eps")
    yield Probe(problem, CUDA, "missing bias", VALUE, wrong)
    wrong = reduction.layer_norm("+ bias[c]", "self.ln.eps")
    yield Probe(problem, CUDA, "missing scale", VALUE, wrong)
    wrong = reduction.layer_norm("* weight[c] + bias[c]", "0.0")
    yield Probe(problem, CUDA, "missing eps", VALUE, wrong)


def matrix_scalar() -> Iterator[Probe]:
    problem = "level1/5"
    yield Probe(problem, TORCH, "right", RIGHT, rewrite.plain("a, s", "torch.mul(a, s)"))
    wrong = rewrite.plain("a, s", "torch.mul(a, 3.1416)")
    yield Probe(problem, TORCH, "wrong constant", VALUE, wrong)


def column_sum() -> Iterator[Probe]:
    problem, shape = "level1/47", "outer, 1, inner"
    yield Probe(problem, CUDA, "right", RIGHT, reduction.columns(shape, "1"))
    wrong = reduction.columns(shape, "1", 1)
    yield Probe(problem, CUDA, "last row dropped", VALUE, wrong)
    wrong = reduction.columns("outer, inner", "1")
    yield Probe(problem, CUDA, "dimension not kept", Status.WRONG_SHAPE, wrong)


def column_mean() -> Iterator[Probe]:
    problem, shape = "level1/48", "outer, inner"
    yield Probe(problem, TRITON, "right", RIGHT, reduction.columns_triton(shape, "length"))
    wrong = reduction.columns_triton(shape, "length - 1")
    yield Probe(problem, TRITON, "divided by n - 1", VALUE, wrong)
    yield Probe(problem, CUDA, "missing scale", VALUE, reduction.columns(shape, "1"))


def squared_error() -> Iterator[Probe]:
    problem = "level1/94"
    yield Probe(problem, CUDA, "right", RIGHT, reduction.loss("a.numel()", "1 / n"))
    yield Probe(problem, CUDA, "missing scale", VALUE, reduction.loss("a.numel()", "1"))
    wrong = reduction.loss("a.numel() // 16", "1 / n")
    yield Probe(problem, CUDA, "a sixteenth sampled", VALUE, wrong)


def relu() -> Iterator[Probe]:
    problem, point = "level1/19", "(x < 0.0f ? 0.0f : x)"
    yield Probe(problem, CUDA, "right", RIGHT, pointwise.cuda(point))
    yield Probe(problem, TRITON, "right", RIGHT, pointwise.triton("tl.where(x < 0, 0.0, x)"))
    yield Probe(problem, CUDA, "tail of 1000 dropped", VALUE, pointwise.cuda(point, 1000))
    yield Probe(problem, CUDA, "copy of the input", VALUE, pointwise.cuda("x"))


def leaky_relu() -> Iterator[Probe]:
    problem, point = "level1/20", "(x < 0.0f ? 0.01f * x : x)"
    yield Probe(problem, CUDA, "right", RIGHT, pointwise.cuda(point))
    wrong = point.replace("0.01f", "0.1f")
    yield Probe(problem, CUDA, "wrong constant", VALUE, pointwise.cuda(wrong))


def swish() -> Iterator[Probe]:
    problem, point = "level1/25", "x / (1.0f + expf(-x))"
    yield Probe(problem, CUDA, "right", RIGHT, pointwise.cuda(point))
    wrong = "x / (1.0f + expf(-1.001f * x))"
    yield Probe(problem, CUDA, "wrong constant", VALUE, pointwise.cuda(wrong))
    stale = spoil(pointwise.triton("x * tl.sigmoid(x)"), "stale buffer")
    yield Probe(problem, TRITON, "stale buffer", VALUE, stale)


def hard_tanh() -> Iterator[Probe]:
    problem, point = "level1/32", "(x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x)"
    yield Probe(problem, CUDA, "right", RIGHT, pointwise.cuda(point))
    yield Probe(problem, CUDA, "copy of the input", VALUE, pointwise.cuda("x"))


def rms_norm() -> Iterator[Probe]:
    problem = "level1/36"
    yield Probe(problem, CUDA, "right", RIGHT, reduction.channels("64.0f"))
    yield Probe(problem, CUDA, "wrong constant", VALUE, reduction.channels("63.0f"))


def l2_norm() -> Iterator[Probe]:
    problem = "level1/39"
    yield Probe(problem, CUDA, "right", RIGHT, reduction.rows("v * v", "sqrtf(sum)"))
    right = reduction.rows_triton("v * v", "tl.sqrt(total)")
    yield Probe(problem, TRITON, "right", RIGHT, right)
    wrong = reduction.rows("v * v", "sqrtf(sum / n)")
    yield Probe(problem, CUDA, "root of the mean", VALUE, wrong)


def l1_norm() -> Iterator[Probe]:
    problem = "level1/38"
    yield Probe(problem, CUDA, "right", RIGHT, reduction.rows("fabsf(v)", "sum / n"))
    wrong = reduction.rows("fabsf(v)", "sum / n", 100)
    yield Probe(problem, CUDA, "row tails dropped", VALUE, wrong)


def inline_kernels() -> Iterator[Probe]:
    problem, swish_point = "level1/88", "x / (1.0f + expf(-x))"
    yield Probe(problem, INLINE, "right", RIGHT, pointwise.inline(GELU))
    yield Probe(problem, INLINE, "swish instead", VALUE, pointwise.inline(swish_point))
    broken = pointwise.inline("undeclared(x)")
    yield Probe(problem, INLINE, "does not compile", Status.COMPILE_ERROR, broken)
