"""One item is one CUDA block with shared memory: tree reductions, tiles, privatised counts."""

from __future__ import annotations

from benchmarks.mutation.kernel import Kernel, Rewrite
from benchmarks.mutation.kernels.elements import TRANSPOSE
from benchmarks.mutation.kernels.rows import LAYER_NORM, ROW_TO_NUMBER

BLOCK_SUM = Kernel(
    name="block_sum",
    task="sum_reduction",
    team=True,
    takes="const float* x, float* out, i64 cols",
    body="""
    __shared__ float partial[128];
    const i64 t = threadIdx.x;
    float sum = 0;
    for (i64 c = t; c < cols; c += 128) sum += x[i * cols + c];
    partial[t] = sum;
    __syncthreads();
    for (i64 half = 64; half > 0; half /= 2) {
      if (t < half) partial[t] = partial[t] + partial[t + half];
      __syncthreads();
    }
    if (t == 0) out[i] = partial[0];
    """,
    forward=ROW_TO_NUMBER,
    rewrites=(
        Rewrite("lane_left_out", "half > 0; half", "half > 1; half"),
        Rewrite("overlapping_halves", "partial[t + half];", "partial[t + half - 1];"),
        Rewrite("strided_tail", "c < cols; c += 128", "c < cols / 128 * 128; c += 128"),
        Rewrite(
            "race_on_one_sum",
            "partial[t] = sum;",
            "if (t == 0) partial[0] = 0; __syncthreads(); partial[0] += sum; __syncthreads();"
            " if (t > 0) partial[t] = 0;",
        ),
    ),
)

NO_PART_BLOCK = "128 lanes are whole blocks of 64: the same program"
BLOCK_LAYER_NORM = Kernel(
    name="block_layer_norm",
    task="layer_norm",
    team=True,
    takes=LAYER_NORM.takes,
    body="""
    __shared__ float partial[128];
    const i64 t = threadIdx.x;
    const float* row = x + i * cols;
    float sum = 0;
    for (i64 c = t; c < cols; c += 128) sum += row[c];
    partial[t] = sum;
    __syncthreads();
    float mean = 0;
    for (i64 j = 0; j < 128; ++j) mean += partial[j];
    mean = mean / cols;
    __syncthreads();
    float square = 0;
    for (i64 c = t; c < cols; c += 128) square += (row[c] - mean) * (row[c] - mean);
    partial[t] = square;
    __syncthreads();
    float total = 0;
    for (i64 j = 0; j < 128; ++j) total += partial[j];
    const float factor = 1.0f / sqrtf(total / cols + 1e-5f);
    for (i64 c = t; c < cols; c += 128)
      out[i * cols + c] = (row[c] - mean) * factor * weight[c] + bias[c];
    """,
    forward=LAYER_NORM.forward,
    rewrites=(
        Rewrite("stale_shared", "partial[t] = square;", "if (t != 5) partial[t] = square;"),
        Rewrite(
            "own_share_alone",
            "for (i64 j = 0; j < 128; ++j) total += partial[j];",
            "total = 128 * partial[t];",
        ),
    ),
    skip={
        "last_block 1": NO_PART_BLOCK,
        "last_block 2": NO_PART_BLOCK,
        "no_barrier 2": "a warp that is early overwrites what a late one still reads: rarely, "
        "as all have just met at the barrier before",
    },
)

TILE_TRANSPOSE = Kernel(
    name="tile_transpose",
    task="transpose",
    team=True,
    takes=TRANSPOSE.takes,
    body="""
    __shared__ float tile[32][33];
    const i64 across = (cols + 31) / 32;
    const i64 left = i % across * 32;
    const i64 top = i / across * 32;
    const i64 lane = threadIdx.x % 32;
    const i64 warp = threadIdx.x / 32;
    for (i64 r = warp; r < 32; r += 4)
      if (top + r < rows && left + lane < cols) tile[r][lane] = x[(top + r) * cols + left + lane];
    __syncthreads();
    for (i64 c = warp; c < 32; c += 4)
      if (left + c < cols && top + lane < rows) out[(left + c) * rows + top + lane] = tile[lane][c];
    """,
    forward="""
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty(cols, rows, device=x.device)
        launch((rows + 31) // 32 * ((cols + 31) // 32), x, out, rows, cols)
        return out
    """,
    rewrites=(
        Rewrite("tile_not_transposed", "= tile[lane][c];", "= tile[c][lane];"),
        Rewrite(
            "border_column_left_out", "left + lane < cols) tile", "left + lane < cols - 1) tile"
        ),
        Rewrite("last_blocks_left_out", "launch((rows + 31) // 32", "launch(rows // 32"),
    ),
)

TILE_MATMUL = Kernel(
    name="tile_matmul",
    task="matmul",
    team=True,
    takes="const float* a, const float* b, float* out, i64 m, i64 depth, i64 n",
    body="""
    __shared__ float left[8][16];
    __shared__ float right[16][16];
    const i64 across = (n + 15) / 16;
    const i64 col = i % across * 16 + threadIdx.x % 16;
    const i64 u = threadIdx.x / 16;
    const i64 v = threadIdx.x % 16;
    const i64 line = i / across * 8 + u;
    float sum = 0;
    for (i64 k = 0; k < depth; k += 16) {
      left[u][v] = line < m && k + v < depth ? a[line * depth + k + v] : 0.0f;
      right[u][v] = k + u < depth && col < n ? b[(k + u) * n + col] : 0.0f;
      right[u + 8][v] = k + u + 8 < depth && col < n ? b[(k + u + 8) * n + col] : 0.0f;
      __syncthreads();
      for (i64 j = 0; j < 16; ++j) sum += left[u][j] * right[j][v];
      __syncthreads();
    }
    if (line < m && col < n) out[line * n + col] = sum;
    """,
    forward="""
    def forward(self, a, b):
        m, k = a.shape
        n = b.shape[1]
        out = torch.empty(m, n, device=a.device)
        launch((m + 7) // 8 * ((n + 15) // 16), a, b, out, m, k, n)
        return out
    """,
    rewrites=(
        Rewrite("last_tile_missing", "k < depth; k += 16", "k + 16 <= depth; k += 16"),
        Rewrite(
            "stale_shared",
            "left[u][v] = line < m && k + v < depth ?",
            "if (k + v < depth) left[u][v] = line < m ?",
        ),
        Rewrite("half_tile_twice", "b[(k + u + 8) * n + col]", "b[(k + u) * n + col]"),
    ),
    skip={
        "tail 1": "tiles begin at multiples of 16, and no depth is one more than such: the same",
    },
)

BLOCK_HISTOGRAM = Kernel(
    name="block_histogram",
    task="histogram",
    team=True,
    takes="const i64* values, i64* out, i64 count, i64 bins",
    body="""
    __shared__ i64 own[256];
    const i64 t = threadIdx.x;
    for (i64 b = t; b < bins; b += 128) own[b] = 0;
    __syncthreads();
    for (i64 k = i * 4096 + t; k < (i + 1) * 4096 && k < count; k += 128)
      atomic_add(own[values[k]], 1);
    __syncthreads();
    for (i64 b = t; b < bins; b += 128) atomic_add(out[b], own[b]);
    """,
    forward="""
    def __init__(self, bins):
        super().__init__()
        self.bins = bins

    def forward(self, values):
        out = torch.zeros(self.bins, device=values.device, dtype=torch.int64)
        launch((values.numel() + 4095) // 4096, values, out, values.numel(), self.bins)
        return out
    """,
    rewrites=(
        Rewrite("not_zeroed", "own[b] = 0;", "if (i % 8) own[b] = 0;"),
        Rewrite("blocks_overlap", "(i + 1) * 4096 && k", "(i + 1) * 4096 + 1 && k"),
        Rewrite(
            "last_block_missing", "(values.numel() + 4095) // 4096,", "values.numel() // 4096,"
        ),
    ),
    skip={
        "no_barrier 1": "warps that are early add to counts that late ones zero: only where one "
        "is late by a load from memory",
    },
)

BLOCKS = (BLOCK_SUM, BLOCK_LAYER_NORM, TILE_TRANSPOSE, TILE_MATMUL, BLOCK_HISTOGRAM)
