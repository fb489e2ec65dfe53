"""One item is one row: softmax and its relatives, norms, scans, reductions, selection."""

from __future__ import annotations

from benchmarks.mutation.kernel import Kernel, Rewrite
from sandbox.types import Shape

PEAK = "the peak only guards against overflow: another element of the row serves as well"
ROW_TO_ROW = """
def forward(self, x):
    out = torch.empty_like(x)
    launch(x.shape[0], x, out, x.shape[1])
    return out
"""
ROW_TO_NUMBER = """
def forward(self, x):
    out = torch.empty(x.shape[0], device=x.device)
    launch(x.shape[0], x, out, x.shape[1])
    return out
"""
PAIR_TO_NUMBER = """
def forward(self, a, b):
    out = torch.empty(a.shape[0], device=a.device)
    launch(a.shape[0], a, b, out, a.shape[1])
    return out
"""

SOFTMAX = Kernel(
    name="softmax",
    task="softmax",
    takes="const float* x, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float peak = row[0];
    for (i64 c = 0; c < cols; ++c) peak = fmaxf(peak, row[c]);
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += expf(row[c] - peak);
    for (i64 c = 0; c < cols; ++c) out[i * cols + c] = expf(row[c] - peak) / sum;
    """,
    forward=ROW_TO_ROW,
    skip={
        "tail 1": PEAK,
        "head 1": "the peak starts with the first element",
        "last_block 1": PEAK,
    },
)

LOG_SOFTMAX = Kernel(
    name="log_softmax",
    task="log_softmax",
    takes="const float* x, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float peak = row[0];
    for (i64 c = 0; c < cols; ++c) peak = fmaxf(peak, row[c]);
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += expf(row[c] - peak);
    const float shift = peak + logf(sum);
    for (i64 c = 0; c < cols; ++c) out[i * cols + c] = row[c] - shift;
    """,
    forward=ROW_TO_ROW,
    skip={
        "tail 1": PEAK,
        "head 1": "the peak starts with the first element",
        "last_block 1": PEAK,
    },
)

CROSS_ENTROPY = Kernel(
    name="cross_entropy",
    task="cross_entropy",
    takes="const float* x, const i64* targets, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float peak = row[0];
    for (i64 c = 0; c < cols; ++c) peak = fmaxf(peak, row[c]);
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += expf(row[c] - peak);
    out[i] = peak + logf(sum) - row[targets[i]];
    """,
    forward="""
    def forward(self, x, targets):
        out = torch.empty(x.shape[0], device=x.device)
        launch(x.shape[0], x, targets, out, x.shape[1])
        return out
    """,
    rewrites=(Rewrite("neighbouring_target", "row[targets[i]]", "row[(targets[i] + 1) % cols]"),),
    skip={
        "tail 1": PEAK,
        "head 1": "the peak starts with the first element",
        "last_block 1": PEAK,
    },
)

LAYER_NORM = Kernel(
    name="layer_norm",
    task="layer_norm",
    takes="const float* x, const float* weight, const float* bias, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float mean = 0;
    for (i64 c = 0; c < cols; ++c) mean += row[c];
    mean = mean / cols;
    float square = 0;
    for (i64 c = 0; c < cols; ++c) square += (row[c] - mean) * (row[c] - mean);
    square = square / cols;
    const float factor = 1.0f / sqrtf(square + 1e-5f);
    for (i64 c = 0; c < cols; ++c)
      out[i * cols + c] = (row[c] - mean) * factor * weight[c] + bias[c];
    """,
    forward="""
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x):
        weight = self.weight
        bias = self.bias
        out = torch.empty_like(x)
        launch(x.shape[0], x, weight, bias, out, x.shape[1])
        return out
    """,
    rewrites=(
        Rewrite(
            "epsilon_outside_root", "1.0f / sqrtf(square + 1e-5f)", "1.0f / (sqrtf(square) + 1e-5f)"
        ),
        Rewrite("scale_and_bias_swapped", "x, weight, bias, out", "x, bias, weight, out"),
    ),
)

RMS_NORM = Kernel(
    name="rms_norm",
    task="rms_norm",
    takes="const float* x, const float* weight, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float square = 0;
    for (i64 c = 0; c < cols; ++c) square += row[c] * row[c];
    square = square / cols;
    const float factor = 1.0f / sqrtf(square + 1e-6f);
    for (i64 c = 0; c < cols; ++c) out[i * cols + c] = row[c] * factor * weight[c];
    """,
    forward="""
    def __init__(self, cols):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        weight = self.weight
        out = torch.empty_like(x)
        launch(x.shape[0], x, weight, out, x.shape[1])
        return out
    """,
)

PREFIX_SUM = Kernel(
    name="prefix_sum",
    task="prefix_sum",
    takes="const float* x, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) {
      sum += row[c];
      out[i * cols + c] = sum;
    }
    """,
    forward=ROW_TO_ROW,
    rewrites=(
        Rewrite("exclusive", "out[i * cols + c] = sum;", "out[i * cols + c] = sum - row[c];"),
        Rewrite("carry_lost", "sum += row[c];", "sum = (c % 512 ? sum : 0) + row[c];"),
    ),
)

VARIANCE = Kernel(
    name="variance_offset",
    task="""
    import torch
    from torch import nn

    ROWS, COLS = 512, 1024

    class Model(nn.Module):
        def forward(self, x):
            return x.var(dim=-1)

    def get_inputs():
        # Each row has its own spread, or every answer would be nearly the same number.
        return [300.0 + (0.5 + torch.rand(ROWS, 1)) * torch.randn(ROWS, COLS)]

    def get_init_inputs():
        return []
    """,
    shapes=(Shape("512x1024"), Shape("65x771", (("ROWS", 65), ("COLS", 771)))),
    takes="const float* x, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float mean = 0;
    for (i64 c = 0; c < cols; ++c) mean += row[c];
    mean = mean / cols;
    float square = 0;
    for (i64 c = 0; c < cols; ++c) square += (row[c] - mean) * (row[c] - mean);
    out[i] = square / (cols - 1);
    """,
    forward=ROW_TO_NUMBER,
    rewrites=(
        Rewrite("biased", "square / (cols - 1)", "square / cols"),
        Rewrite(
            "mean_of_squares",
            "square += (row[c] - mean) * (row[c] - mean);",
            "square += row[c] * row[c] - mean * mean;",
        ),
    ),
)

SUM = Kernel(
    name="sum_reduction",
    task="sum_reduction",
    takes="const float* x, float* out, i64 cols",
    body="""
    const float* row = x + i * cols;
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += row[c];
    out[i] = sum;
    """,
    forward=ROW_TO_NUMBER,
)

MSE = Kernel(
    name="mse",
    task="mse",
    takes="const float* a, const float* b, float* out, i64 cols",
    body="""
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) {
      const float d = a[i * cols + c] - b[i * cols + c];
      sum += d * d;
    }
    out[i] = sum / cols;
    """,
    forward=PAIR_TO_NUMBER,
)

DOT = Kernel(
    name="dot_product",
    task="dot_product",
    takes="const float* a, const float* b, float* out, i64 cols",
    body="""
    float sum = 0;
    for (i64 c = 0; c < cols; ++c) sum += a[i * cols + c] * b[i * cols + c];
    out[i] = sum;
    """,
    forward=PAIR_TO_NUMBER,
)

GARBAGE = "what an unset place holds is the compiler's choice, and mostly harmless"
UNINITIALISED = {"tail 1": GARBAGE, "head 1": GARBAGE, "last_block 1": GARBAGE}
TOP_K = Kernel(
    name="top_k",
    task="top_k",
    takes="const float* x, float* out, i64 cols, i64 k",
    body="""
    const float* row = x + i * cols;
    float best[64];
    for (i64 j = 0; j < k; ++j) best[j] = LOWEST;
    for (i64 c = 0; c < cols; ++c) {
      if (row[c] <= best[k - 1]) continue;
      i64 j = k - 1;
      for (; j > 0 && best[j - 1] < row[c]; --j) best[j] = best[j - 1];
      best[j] = row[c];
    }
    for (i64 j = 0; j < k; ++j) out[i * k + j] = best[j];
    """,
    forward="""
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        out = torch.empty(x.shape[0], self.k, device=x.device)
        launch(x.shape[0], x, out, x.shape[1], self.k)
        return out
    """,
    rewrites=(
        Rewrite("last_pair_unsorted", "j > 0 && best", "j > 1 && best"),
        Rewrite("ties_lost", "row[c] <= best[k - 1]", "row[c] <= best[k - 1] + 1e-3f"),
    ),
    skip=UNINITIALISED,
)

TOP_K_TIES = Kernel(
    name="top_k_ties",
    task="""
    import torch
    from torch import nn

    ROWS, COLS, K = 256, 512, 16

    class Model(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        def forward(self, x):
            found = torch.topk(x, self.k, dim=-1)
            return found.values, found.indices

    def get_inputs():
        # Sixty values for hundreds of columns: ties at every place.
        return [torch.randint(0, 60, (ROWS, COLS)) / 8.0]

    def get_init_inputs():
        return [K]
    """,
    shapes=(Shape("256x512x16"), Shape("33x301x5", (("ROWS", 33), ("COLS", 301), ("K", 5)))),
    takes="const float* x, float* out, i64* out_index, i64 cols, i64 k",
    body="""
    const float* row = x + i * cols;
    float best[64];
    i64 place[64];
    for (i64 j = 0; j < k; ++j) best[j] = LOWEST;
    for (i64 c = 0; c < cols; ++c) {
      if (row[c] <= best[k - 1]) continue;
      i64 j = k - 1;
      for (; j > 0 && best[j - 1] < row[c]; --j) {
        best[j] = best[j - 1];
        place[j] = place[j - 1];
      }
      best[j] = row[c];
      place[j] = c;
    }
    for (i64 j = 0; j < k; ++j) {
      out[i * k + j] = best[j];
      out_index[i * k + j] = place[j];
    }
    """,
    forward="""
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        out = torch.empty(x.shape[0], self.k, device=x.device)
        index = torch.empty(x.shape[0], self.k, device=x.device, dtype=torch.int64)
        launch(x.shape[0], x, out, index, x.shape[1], self.k)
        return out, index
    """,
    rewrites=(
        Rewrite("index_not_moved", "place[j] = place[j - 1];", ""),
        Rewrite(
            "tie_twice",
            "out_index[i * k + j] = place[j];",
            "out_index[i * k + j] = j > 0 && best[j] == best[j - 1] ? place[j - 1] : place[j];",
        ),
        Rewrite("index_of_neighbour", "place[j] = c;", "place[j] = c > 0 ? c - 1 : c;"),
    ),
    skip=UNINITIALISED
    | {
        "rounded_to_ten_bits 2": "an index below 512 fits eleven significant bits",
        "scaled_by_1.001 2": "an index below 1000 is truncated to itself again",
        "scaled_by_1.00005 2": "an index below 1000 is truncated to itself again",
    },
)

ROWS = (
    SOFTMAX,
    LOG_SOFTMAX,
    CROSS_ENTROPY,
    LAYER_NORM,
    RMS_NORM,
    PREFIX_SUM,
    VARIANCE,
    SUM,
    MSE,
    DOT,
    TOP_K,
    TOP_K_TIES,
)
