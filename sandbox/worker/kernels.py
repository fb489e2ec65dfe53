"""What a candidate's compiled kernels take: registers, spills, shared memory, as cupy reports them.

A claim like all that this process says, and read for feedback only. Known by their attributes, so
that cupy is imported by nobody but the candidate. Kernels that its functions hide are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

MOST = 16
REGISTERS = 65536
"""Of 32 bits on a multiprocessor, on every GPU since compute capability 5.0 (CUDA C++ Programming
Guide, technical specifications per compute capability)."""
MOST_THREADS = 2048


def described(module: ModuleType | None) -> list[str]:
    """A line for each kernel among the module's names, or in a list or mapping there."""
    lines = []
    for name, found in _named(module):
        try:
            registers, spilled = int(found.num_regs), int(found.local_size_bytes)  # type: ignore[attr-defined]
            shared = int(found.shared_size_bytes)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001  foreign objects may raise anything when looked at
            continue
        spills = f"{spilled} bytes of local memory" if spilled else "no local memory"
        line = f"kernel {name}: {registers} registers a thread, {spills}, {shared} bytes shared"
        if registers > 0:
            resident = min(MOST_THREADS, REGISTERS // registers)
            line += f"; registers allow {resident} threads"
        lines.append(line)
    return list(dict.fromkeys(lines))[:MOST]


def _named(module: ModuleType | None) -> Iterator[tuple[str, object]]:
    for name, value in [] if module is None else list(vars(module).items()):
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(inner, list | tuple | type({}.values())):
            yield from ((name, item) for item in inner if _is_kernel(item))
        elif _is_kernel(value):
            yield name, value


def _is_kernel(value: object) -> bool:
    return type(value).__name__ in ("RawKernel", "Function") and not isinstance(value, type)
