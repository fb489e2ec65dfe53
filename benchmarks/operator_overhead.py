"""What a call through an exported operator costs, in CPU microseconds of the calling thread.

`python -m benchmarks.operator_overhead [--device cuda] [--compiled] [--ordered]`: beside the plain
reference and the kernel by itself, calls that the kernel does and calls that fall back to the
reference, without and with gradients. Nothing is judged; the kernel is one short operation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from agent.export.overhead import Probe, cpu_s, probe
from agent.export.runtime.machine import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compiled", action="store_true", help="with torch.compile too")
    parser.add_argument("--ordered", action="store_true", help="calls that follow each other")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine(asked.device)}, torch {torch.__version__}; CPU us of the calling thread")
    with probe(asked.device, ordered=asked.ordered) as made:
        for name, call, gradients in calls(made, asked.compiled):
            with torch.set_grad_enabled(gradients):
                print(f"{name:44}{cpu_s(call) * 1e6:8.1f}", flush=True)


def calls(made: Probe, compiled: bool) -> list[tuple[str, Callable[[], Any], bool]]:
    """(name, call, whether gradients are asked for)."""
    hit, miss, n = made.hit, made.miss, made.inputs
    custom, overload = made.custom, made.custom.op
    x, y = (t[0].clone().requires_grad_() for t in (hit, miss))
    found: list[tuple[str, Callable[[], Any], bool]] = [
        ("reference", lambda: made.reference(*miss[:n]), False),
        ("kernel by itself", lambda: made.kernel(*hit[:n]), False),
        ("operator, kernel", lambda: custom(*hit), False),
        ("operator, fallback", lambda: custom(*miss), False),
        ("operator, kernel, through the dispatcher", lambda: overload(*hit, "[]"), False),
        ("operator, fallback, through the dispatcher", lambda: overload(*miss, "[]"), False),
        ("forward with gradient: reference", lambda: made.reference(y), True),
        ("forward with gradient: kernel", lambda: custom(x, *hit[1:]), True),
        ("forward with gradient: fallback", lambda: custom(y, *miss[1:]), True),
        ("and backward: reference", lambda: _back(made.reference(y), y), True),
        ("and backward: kernel", lambda: _back(custom(x, *hit[1:]), x), True),
        ("and backward: fallback", lambda: _back(custom(y, *miss[1:]), y), True),
    ]
    if compiled:
        plain, through = torch.compile(made.reference), torch.compile(lambda *a: custom(*a))
        found += [
            ("compiled reference", lambda: plain(hit[0]), False),
            ("compiled operator, kernel", lambda: through(*hit), False),
        ]
    return found


def _back(result: torch.Tensor, leaf: torch.Tensor) -> None:
    torch.autograd.grad(result.sum(), leaf)


if __name__ == "__main__":
    main()
