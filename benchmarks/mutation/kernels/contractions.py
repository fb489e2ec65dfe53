"""One item is one output of a product: matmul, linear layers, a deep network, convolution."""

from __future__ import annotations

from benchmarks.mutation.kernel import Kernel, Rewrite
from sandbox.types import Shape

PRODUCT = """
    def forward(self, a, b):
        m, k = a.shape
        n = b.shape[1]
        out = torch.empty(m, n, device=a.device)
        launch(m * n, a, b, out, k, n)
        return out
    """

MATMUL = Kernel(
    name="matmul",
    task="matmul",
    takes="const float* a, const float* b, float* out, i64 depth, i64 n",
    body="""
    const float* row = a + i / n * depth;
    const float* column = b + i % n;
    float sum = 0;
    for (i64 k = 0; k < depth; ++k) sum += row[k] * column[k * n];
    out[i] = sum;
    """,
    forward=PRODUCT,
    rewrites=(
        Rewrite("operand_in_bf16", "row[k] * column[k * n]", "bf16(row[k]) * column[k * n]"),
        Rewrite(
            "operand_in_ten_bits", "row[k] * column[k * n]", "ten_bits(row[k]) * column[k * n]"
        ),
    ),
)

SQUARE = Kernel(
    name="square_matmul",
    task="""
    import torch
    from torch import nn

    N = 160

    class Model(nn.Module):
        def forward(self, a, b):
            return a @ b

    def get_inputs():
        return [torch.randn(N, N), torch.randn(N, N)]

    def get_init_inputs():
        return []
    """,
    square=True,
    shapes=(Shape("160"), Shape("97", (("N", 97),))),
    takes="const float* a, const float* b, float* out, i64 depth, i64 n",
    body="""
    const i64 r = i / n;
    const i64 c = i % n;
    float sum = 0;
    for (i64 k = 0; k < depth; ++k) sum += a[r * depth + k] * b[k * n + c];
    out[r * n + c] = sum;
    """,
    forward=PRODUCT,
    rewrites=(Rewrite("operands_swapped", "launch(m * n, a, b,", "launch(m * n, b, a,"),),
)

LINEAR_RELU = Kernel(
    name="linear_relu",
    task="linear_relu",
    takes="const float* x, const float* weight, const float* bias, float* out, i64 depth, i64 n",
    body="""
    const float* row = x + i / n * depth;
    const float* column = weight + i % n * depth;
    float sum = 0;
    for (i64 k = 0; k < depth; ++k) sum += row[k] * column[k];
    sum = sum + bias[i % n];
    out[i] = sum > 0.0f ? sum : 0.0f;
    """,
    forward="""
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        weight = self.weight
        bias = self.bias
        n = weight.shape[0]
        out = torch.empty(x.shape[0], n, device=x.device)
        launch(x.shape[0] * n, x, weight, bias, out, x.shape[1], n)
        return out
    """,
    rewrites=(
        Rewrite(
            "relu_before_bias",
            "out[i] = sum > 0.0f ? sum : 0.0f;",
            "sum -= bias[i % n]; out[i] = (sum > 0.0f ? sum : 0.0f) + bias[i % n];",
        ),
        Rewrite("leaky", "? sum : 0.0f", "? sum : 0.001f * sum"),
    ),
)

DEEP_MLP = Kernel(
    name="deep_mlp",
    task="""
    import torch
    from torch import nn

    ROWS, WIDTH, LAYERS = 64, 96, 12

    class Model(nn.Module):
        def __init__(self, width, layers):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

        def forward(self, x):
            for layer in self.layers:
                x = x + torch.relu(layer(x))
            return x

    def get_inputs():
        return [torch.randn(ROWS, WIDTH)]

    def get_init_inputs():
        return [WIDTH, LAYERS]
    """,
    shapes=(
        Shape("64x96x12"),
        Shape("33x71x16", (("ROWS", 33), ("WIDTH", 71), ("LAYERS", 16))),
    ),
    takes="const float* x, const float* weight, const float* bias, float* out, i64 n",
    body="""
    const float* row = x + i / n * n;
    const float* column = weight + i % n * n;
    float sum = 0;
    for (i64 k = 0; k < n; ++k) sum += row[k] * column[k];
    sum = sum + bias[i % n];
    out[i] = x[i] + (sum > 0.0f ? sum : 0.0f);
    """,
    forward="""
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            out = torch.empty_like(x)
            launch(x.numel(), x, layer.weight, layer.bias, out, x.shape[1])
            x = out
        return x
    """,
    rewrites=(
        Rewrite(
            "last_layer_missing", "for layer in self.layers:", "for layer in self.layers[:-1]:"
        ),
        Rewrite(
            "layers_swapped",
            "for layer in self.layers:",
            "for layer in [self.layers[1], self.layers[0], *self.layers[2:]]:",
        ),
        Rewrite("no_residual_once", "x = out", "x = out - x if layer is self.layers[5] else out"),
        Rewrite("transposed_weight", "layer.weight,", "layer.weight.t().contiguous(),"),
    ),
    skip={"equality 1": "at zero both branches give zero"},
)

CONV2D = Kernel(
    name="conv2d",
    task="conv2d",
    takes="const float* x, const float* weight, const float* bias, float* out, "
    "i64 channels, i64 filters, i64 height, i64 width, i64 size",
    body="""
    const i64 col = i % width;
    const i64 line = i / width % height;
    const i64 filter = i / (width * height) % filters;
    const i64 image = i / (width * height * filters);
    float sum = 0;
    for (i64 c = 0; c < channels; ++c)
      for (i64 u = 0; u < size; ++u)
        for (i64 v = 0; v < size; ++v) {
          const i64 y = line + u - size / 2;
          const i64 z = col + v - size / 2;
          if (y < 0 || y >= height || z < 0 || z >= width) continue;
          const float factor = weight[((filter * channels + c) * size + u) * size + v];
          sum += factor * x[((image * channels + c) * height + y) * width + z];
        }
    out[i] = sum + bias[filter];
    """,
    forward="""
    def __init__(self, channels, filters, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, padding=kernel // 2)

    def forward(self, x):
        weight = self.conv.weight
        bias = self.conv.bias
        filters, channels, size, _ = weight.shape
        images, _, height, width = x.shape
        out = torch.empty(images, filters, height, width, device=x.device)
        launch(out.numel(), x, weight, bias, out, channels, filters, height, width, size)
        return out
    """,
    rewrites=(
        Rewrite("kernel_axes_swapped", "* size + u) * size + v]", "* size + v) * size + u]"),
        Rewrite(
            "kernel_flipped",
            "* size + u) * size + v]",
            "* size + size - 1 - u) * size + size - 1 - v]",
        ),
        Rewrite("border_column_left_out", "z < 0 ||", "z < 1 ||"),
        Rewrite(
            "border_repeated",
            "const i64 z = col + v - size / 2;",
            "const i64 z = col + v < size / 2 ? 0 : col + v - size / 2;",
        ),
    ),
)

CONTRACTIONS = (MATMUL, SQUARE, LINEAR_RELU, DEEP_MLP, CONV2D)
