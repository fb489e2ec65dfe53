"""One item is one element, or one short vector: pointwise chains, copies, scatters."""

from __future__ import annotations

from benchmarks.mutation.kernel import Kernel, Rewrite
from sandbox.types import Shape

GELU_RESIDUAL = Kernel(
    name="scaled_gelu_residual",
    task="scaled_gelu_residual",
    takes="const float* x, const float* residual, const float* scale, float* out, i64 cols",
    body="""
    const float v = x[i];
    const float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
    out[i] = residual[i] + 0.5f * v * (1.0f + tanhf(inner)) * scale[i % cols];
    """,
    forward="""
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(cols))

    def forward(self, x, residual):
        scale = self.scale
        out = torch.empty_like(x)
        launch(x.numel(), x, residual, scale, out, x.shape[1])
        return out
    """,
    rewrites=(
        Rewrite("scale_of_neighbour", "scale[i % cols]", "scale[(i + 1) % cols]"),
        Rewrite(
            "other_gelu",
            "0.5f * v * (1.0f + tanhf(inner))",
            "0.5f * v * (1.0f + erff(0.70710678f * v))",
        ),
    ),
)

GELU_CHAIN = Kernel(
    name="gelu_chain",
    task="""
    import torch
    import torch.nn.functional as F
    from torch import nn

    N = 65536

    class Model(nn.Module):
        def forward(self, x):
            for _ in range(4):
                x = 1.5 * F.gelu(x) - 0.25
            return x

    def get_inputs():
        return [2.0 * torch.randn(N)]

    def get_init_inputs():
        return []
    """,
    shapes=(Shape("65536"), Shape("10007", (("N", 10007),))),
    takes="const float* x, float* out",
    body="""
    float v = x[i];
    for (i64 step = 0; step < 4; ++step) {
      const float half = 0.5f * v;
      v = 1.5f * half * (1.0f + erff(0.70710678f * v)) - 0.25f;
    }
    out[i] = v;
    """,
    forward="""
    def forward(self, x):
        out = torch.empty_like(x)
        launch(x.numel(), x, out)
        return out
    """,
    rewrites=(
        Rewrite(
            "other_gelu",
            "erff(0.70710678f * v)",
            "tanhf(0.79788456f * (v + 0.044715f * v * v * v))",
        ),
        Rewrite(
            "bf16_between", "const float half = 0.5f * v;", "const float half = 0.5f * bf16(v);"
        ),
    ),
)

ROTARY = Kernel(
    name="rotary_embedding",
    task="rotary_embedding",
    takes="const float* x, const float* cosine, const float* sine, float* out, i64 length, i64 dim",
    body="""
    const i64 half = dim / 2;
    const float* row = x + i * dim;
    const float* c = cosine + i % length * dim;
    const float* s = sine + i % length * dim;
    for (i64 d = 0; d < half; ++d) {
      out[i * dim + d] = row[d] * c[d] - row[d + half] * s[d];
      out[i * dim + d + half] = row[d + half] * c[d + half] + row[d] * s[d + half];
    }
    """,
    forward="""
    def forward(self, x, cos, sin):
        out = torch.empty_like(x)
        length, dim = x.shape[-2:]
        launch(x.numel() // dim, x, cos, sin, out, length, dim)
        return out
    """,
    rewrites=(
        Rewrite(
            "sign", "row[d] * c[d] - row[d + half] * s[d]", "row[d] * c[d] + row[d + half] * s[d]"
        ),
        Rewrite(
            "previous_position",
            "s = sine + i % length * dim",
            "s = sine + (i % length ? i % length - 1 : 0) * dim",
        ),
        Rewrite(
            "interleaved",
            "row[d] * c[d] - row[d + half] * s[d]",
            "row[d] * c[d] - row[(d + 1) % dim] * s[d]",
        ),
    ),
)

SWIGLU = Kernel(
    name="swiglu",
    task="swiglu",
    takes="const float* x, float* out, i64 hidden",
    body="""
    const float* gate = x + 2 * hidden * i;
    const float* value = gate + hidden;
    for (i64 h = 0; h < hidden; ++h)
      out[i * hidden + h] = gate[h] / (1.0f + expf(-gate[h])) * value[h];
    """,
    forward="""
    def forward(self, x):
        hidden = x.shape[1] // 2
        out = torch.empty(x.shape[0], hidden, device=x.device)
        launch(x.shape[0], x, out, hidden)
        return out
    """,
    rewrites=(
        Rewrite(
            "halves_swapped",
            "const float* value = gate + hidden;",
            "const float* value = gate; gate = gate + hidden;",
        ),
        Rewrite(
            "hard_sigmoid",
            "(1.0f + expf(-gate[h]))",
            "(1.0f + 1.0f / (1.0f + gate[h] * (1.0f + 0.5f * gate[h])))",
        ),
    ),
)

ZERO_BRANCH = Kernel(
    name="zero_branch",
    task="""
    import torch
    from torch import nn

    N = 65536

    class Model(nn.Module):
        def forward(self, x):
            # At zero itself the branches differ: 0.25, against 1 above and -0.1 below.
            return torch.where(x > 0, 1.0 + x, torch.where(x < 0, 0.1 * x - 0.1, 0.25))

    def get_inputs():
        return [torch.randint(-4, 5, (N,)) / 2.0]

    def get_init_inputs():
        return []
    """,
    shapes=(Shape("65536"), Shape("10007", (("N", 10007),))),
    takes="const float* x, float* out",
    body="""
    const float v = x[i];
    out[i] = (v > 0.0f) ? 1.0f + v : (-v > 0.0f) ? 0.1f * v - 0.1f : 0.25f;
    """,
    forward="""
    def forward(self, x):
        out = torch.empty_like(x)
        launch(x.numel(), x, out)
        return out
    """,
)

TRANSPOSE = Kernel(
    name="transpose",
    task="transpose",
    takes="const float* x, float* out, i64 rows, i64 cols",
    body="""
    for (i64 r = 0; r < rows; ++r) out[i * rows + r] = x[r * cols + i];
    """,
    forward="""
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty(cols, rows, device=x.device)
        launch(cols, x, out, rows, cols)
        return out
    """,
)

HISTOGRAM = Kernel(
    name="histogram",
    task="histogram",
    takes="const i64* values, i64* out",
    body="""
    atomic_add(out[values[i]], 1);
    """,
    forward="""
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        out = torch.zeros(self.bins, device=values.device, dtype=torch.int64)
        launch(values.numel(), values, out)
        return out
    """,
    rewrites=(
        Rewrite("bin_of_neighbour", "out[values[i]]", "out[values[i] > 0 ? values[i] - 1 : 0]"),
        Rewrite(
            "one_counted_twice",
            "atomic_add(out[values[i]], 1);",
            "atomic_add(out[values[i]], i == 7 ? 2 : 1);",
        ),
    ),
    skip={
        "cpu race 1": "the increments are over before a second thread is awake; "
        "column_sum has a race that lasts",
    },
)

COLUMN_SUM = Kernel(
    name="column_sum",
    task="""
    import torch
    from torch import nn

    ROWS, COLS = 8192, 257

    class Model(nn.Module):
        def forward(self, x):
            return x.sum(dim=0)

    def get_inputs():
        return [torch.randn(ROWS, COLS)]

    def get_init_inputs():
        return []
    """,
    shapes=(Shape("8192x257"), Shape("3001x71", (("ROWS", 3001), ("COLS", 71)))),
    takes="const float* x, float* out, i64 cols",
    body="""
    for (i64 c = 0; c < cols; ++c) atomic_add(out[c], x[i * cols + c]);
    """,
    forward="""
    def forward(self, x):
        out = torch.zeros(x.shape[1], device=x.device)
        launch(x.shape[0], x, out, x.shape[1])
        return out
    """,
)

ELEMENTS = (
    GELU_RESIDUAL,
    GELU_CHAIN,
    ROTARY,
    SWIGLU,
    ZERO_BRANCH,
    TRANSPOSE,
    HISTOGRAM,
    COLUMN_SUM,
)
