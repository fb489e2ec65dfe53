"""The features of CUDA candidates, good starting points, and which combinations can be launched."""

from __future__ import annotations

from agent.features.emit import BYTES
from agent.features.program import Program
from agent.features.search import Features, Pool

POOL: dict[str, tuple[str | int, ...]] = {
    "form": ("rows", "tiles"),
    "vector": (1, 2, 4, 8, 16),
    "threads": (8, 16, 32, 64, 128, 256, 512, 1024),
    "groups": (1, 2, 4, 8, 16),
    "items": (1, 2, 4, 8, 16),
    "unroll": (1, 2, 4, 8),
    "grid": ("tile", "persistent"),
    "blocks": (264, 528, 1056, 2112),
    "prefetch": (0, 1),
    "online": (1, 0),
    "registers": ("kept", "reread"),
    "loads": ("cached", "streaming"),
    "stores": ("plain", "streaming"),
    "math": ("precise", "fast"),
    "finish": ("last_block", "kernel"),
}
"""Every feature and its values. H200: 132 multiprocessors, hence blocks in multiples of 132."""


TURNED: dict[str, tuple[str | int, ...]] = {
    "form": ("turned",),
    "tile": (32, 64, 16),
    "lines": (8, 16, 4, 2),
    "math": ("precise", "fast"),
}
"""Of programs with transposed operands: square tiles, of which a block takes so many lines at a
time."""


SCAN: dict[str, tuple[str | int, ...]] = {
    "form": ("scan",),
    "vector": (4, 2, 8, 1),
    "threads": (256, 128, 512, 1024, 64),
    "loads": ("cached", "streaming"),
    "stores": ("plain", "streaming"),
    "math": ("precise", "fast"),
}
"""Of programs with a prefix sum, a block a row."""


STRIDED: dict[str, tuple[str | int, ...]] = {
    "form": ("strided",),
    "threads": (128, 256, 64, 512),
    "unroll": (4, 8, 2, 1),
    "math": ("precise", "fast"),
}
"""Of programs that reduce along a dimension that is not the last: a thread a row."""


WINDOW: dict[str, tuple[str | int, ...]] = {
    "form": ("window",),
    "threads": (256, 128, 512, 64),
    "loops": ("unrolled", "rolled"),
    "math": ("precise", "fast"),
}
"""Of poolings: a thread an output."""
MOST_IN_TURN = 1024
"""Elements of a row that one thread takes one after another. Elementwise over a whole tensor is a
single row to form `rows`: 16 threads took 409 ms where a copy takes 0.05 (H100)."""
LOADED_AT_ONCE = 8
"""Elements of a thread in one load from which on it makes no second before it computes, where
nothing is reduced: in bfloat16 and float16 four at once took 1.14 to 1.41 times as long as one, in
float32 as long (H200, tiles of 256 threads)."""


def pool(program: Program) -> Pool:
    """The features that matter to a program, and their values."""
    if program.window:
        return WINDOW
    if program.inner:
        return STRIDED if program.strided else TURNED
    return POOL if program.scan is None else SCAN


def default(program: Program) -> dict[str, str | int]:
    """A good start for the traced shape: 16-byte loads, about 8 to 32 elements a thread."""
    if pool(program) is not POOL:
        return {feature: values[0] for feature, values in pool(program).items()}
    size = max((BYTES[o.dtype] for o in program.operands if o.column), default=4)
    vector = max(16 // max(size, 2), 1) if size <= 4 else 2
    columns, wide = program.column_count, _wide(program)
    features: dict[str, str | int] = {
        "form": "tiles" if wide else "rows",
        "vector": vector,
        "threads": 256,
        "groups": 1,
        "items": 4,
        "unroll": 4,
        "grid": "persistent" if wide and program.reduces else "tile",
        "blocks": 1056,
        "prefetch": 1,
        "online": 1,
        "registers": "kept",
        "loads": "cached",
        "stores": "plain",
        "math": "precise",
        "finish": "last_block",
    }
    if not wide:
        return {**features, **_row_shape(program, vector)}
    most = 1 if _fills(program, vector) else 4
    return {**features, **_tile_shape(columns, vector, most)}


def _fills(program: Program, vector: int) -> bool:
    """Whether one load gives a thread enough to do."""
    return vector >= LOADED_AT_ONCE and not program.reduces


def _wide(program: Program) -> bool:
    """Whether the blocks of a GPU share rows, rather than have rows of their own."""
    return not program.reduces or (program.row_count < 132 and program.column_count > 16384)


def _tile_shape(columns: int, vector: int, most: int) -> dict[str, str | int]:
    """Tiles no longer than a row, so that no thread idles."""
    if columns < vector * 256:
        return {"unroll": 1, "threads": 128 if columns > vector * 64 else 64}
    return {"unroll": min(most, 1 << ((columns // (vector * 256)).bit_length() - 1))}


def _row_shape(program: Program, vector: int) -> dict[str, str | int]:
    """About four vectors a thread; a warp takes rows of up to 256 vectors alone."""
    vectors = -(-program.column_count // vector)
    threads = 8
    while threads < 1024 and threads * 4 < vectors and not (threads == 32 and vectors <= 256):
        threads *= 2
    items = 1
    while items * threads < vectors and items * vector < 32:
        items *= 2
    if items * threads < vectors:  # Too long for registers: a few blocks share a multiprocessor.
        threads = 512 if program.passes > 1 else 256
    return {"threads": threads, "items": items, "groups": 128 // threads if threads <= 32 else 1}


def others(program: Program) -> list[dict[str, str | int]]:
    """Decisively different starting points: other widths of a row's group, the other form."""
    start = default(program)
    found = []
    if start["form"] == "rows":
        threads, items = int(start["threads"]), int(start["items"])
        if threads >= 64 and items < 16:
            halved = {**start, "threads": threads // 2, "items": items * 2}
            found.append({**halved, "groups": 4 if threads == 64 else 1})
        if threads <= 512 and items > 1 and start["groups"] == 1:
            found.append({**start, "threads": threads * 2, "items": items // 2})
        found.append({**start, "items": 1, "unroll": 4})  # Re-read rows instead of keeping them.
    else:
        threads = 128 if _fills(program, int(start["vector"])) else 512
        found.append({**start, "unroll": 2, "threads": threads})
        grid = "tile" if start["grid"] == "persistent" else "persistent"
        found.append({**start, "grid": grid})
    return found


def fits(program: Program, features: Features) -> bool:
    """Whether the combination makes sense for the traced shape and can be launched."""
    threads, groups = int(features["threads"]), int(features["groups"])
    if features["form"] == "tiles":
        return threads >= 64 and groups == 1
    if threads > 32 and groups > 1:
        return False
    few = threads < 256 or _wide(program)
    if few and program.column_count > MOST_IN_TURN * threads:
        return False
    held = int(features["items"]) * int(features["vector"])
    return 32 <= threads * groups <= 1024 and held <= 64 and held * threads <= 65536


def mapping(features: Features) -> str:
    """The header's line: thread -> element, and the launch shape."""
    if features["form"] == "turned":
        return (
            f"tiles of {features['tile']} x {features['tile']} through shared memory, "
            f"{features['lines']} lines at a time; grid tiles"
        )
    if features["form"] == "strided":
        return (
            f"a thread a row, {features['unroll']} of its elements at once; "
            f"block {features['threads']}, grid rows / {features['threads']}"
        )
    if features["form"] == "window":
        return (
            f"a thread an output, which reads its window; block {features['threads']}, "
            f"grid outputs / {features['threads']}"
        )
    if features["form"] == "scan":
        return (
            f"a block of {features['threads']} threads a row, vectors of {features['vector']} "
            "columns, which it sums step by step; grid rows"
        )
    if features["form"] == "tiles":
        return (
            f"thread t of block (x, y) takes vectors of {features['vector']} columns of row y; "
            f"block {features['threads']}, grid (chunks, rows)"
        )
    return (
        f"{features['threads']} threads a row, vectors of {features['vector']} columns; "
        f"block ({features['threads']}, {features['groups']}), grid rows / {features['groups']}"
    )
