"""What making a CUDA context costs while other GPUs of the host do the same.

    python -m benchmarks.contexts --gpus 1,2,4 --at-once 1,2 --out FILE
    python -m benchmarks.contexts --gpus 4 --set CUDA_DEVICE_MAX_CONNECTIONS=1 --out FILE
    python -m benchmarks.contexts --gpus 4 --own-device --out FILE

Every candidate runs in a process of its own, which makes a context and leaves it behind: where the
driver does that for one process of the host at a time, more GPUs judge no more candidates. On each
GPU so many processes at a time are forked from one that has imported torch, make a context, run one
operator and end. A neighbour on every GPU has a context all the time, as an evaluator has: the
first of a GPU costs 0.1 s more (H200). That of the first GPU tells meanwhile how long its own
allocations take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.keeping import header, keep_json, stop_cleanly
from sandbox.doctor import gpu_count
from sandbox.walls.devices import gpu_devices, keep_to, own_devices

NEIGHBOUR_BYTES = 256 << 20
WAIT_S = 60.0
"""For every process to have imported torch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", default="1", help="numbers of GPUs, as in 1,2,4")
    parser.add_argument("--at-once", default="1", help="processes a GPU, as in 1,2")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="environment")
    parser.add_argument("--own-device", action="store_true", help="other GPUs' files are denied")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    stop_cleanly()
    try:
        numbers = [int(n) for n in asked.gpus.split(",")]
        each = [int(n) for n in asked.at_once.split(",")]
        variables = dict(pair.split("=", 1) for pair in asked.set)
    except ValueError:
        parser.error("expected numbers as in 1,2,4, and NAME=VALUE")
    if max(numbers) > gpu_count():
        parser.error(f"--gpus {asked.gpus}: this machine has {gpu_count()}")
    os.environ.update(variables)  # before any process that uses CUDA starts
    runs: list[dict[str, Any]] = []
    record = {**header("contexts"), "set": variables, "own_device": asked.own_device, "runs": runs}
    for gpus in numbers:
        for at_once in each:
            runs.append(run(gpus, at_once, asked.seconds, asked.own_device))
            print(json.dumps(runs[-1]), flush=True)
            if asked.out:
                keep_json(asked.out, record)


def run(gpus: int, at_once: int, seconds: float, own_device: bool) -> dict[str, Any]:
    """All makers and the neighbour for so long; seconds of each part, and contexts a second."""
    spawn = get_context("spawn")
    told, gate = spawn.SimpleQueue(), spawn.Barrier(2 * gpus)
    processes = []
    for gpu in range(gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
        processes.append(
            spawn.Process(target=maker, args=(at_once, seconds, own_device, gate, told))
        )
        processes[-1].start()
        processes.append(spawn.Process(target=neighbour, args=(seconds, gate, told, gpu == 0)))
        processes[-1].start()
    del os.environ["CUDA_VISIBLE_DEVICES"]
    found: dict[str, list[list[float]]] = {"made": [], "allocated": []}
    for _ in processes:
        kind, rows = told.get()
        found[kind] += rows
    for process in processes:
        process.join()
    made, allocated = found["made"], found["allocated"]
    return {
        "gpus": gpus,
        "at_once": at_once,
        "contexts": len(made),
        "per_second": round(len(made) / max((gone for *_, gone in made), default=seconds), 2),
        "create_s": spread([create for create, *_ in made]),
        "end_s": spread([end for _, end, _ in made]),
        "neighbour_allocation_ms": spread([1e3 * taken for (taken,) in allocated]),
    }


def spread(values: Sequence[float]) -> list[float]:
    """Median, nine tenths, most."""
    if not values:
        return []
    ordered = sorted(values)
    ninth = ordered[min(len(ordered) - 1, round(0.9 * len(ordered)))]
    return [round(v, 4) for v in (statistics.median(ordered), ninth, ordered[-1])]


def maker(at_once: int, seconds: float, own_device: bool, gate: Any, told: Any) -> None:
    """Keeps so many processes under way, each of which makes a context and ends."""
    own: tuple[Path, ...] = ()
    if own_device:  # GPUs are numbered as their files are where all are of one kind
        gpu = int(os.environ["CUDA_VISIBLE_DEVICES"])
        own = own_devices(gpu_devices(), gpu)
        os.environ["CUDA_VISIBLE_DEVICES"] = uuid_of(gpu)  # the only one that there is has index 0
    gate.wait(WAIT_S)
    begun = time.monotonic()
    until = begun + seconds
    living: dict[int, int] = {}
    rows = []
    while living or time.monotonic() < until:
        while len(living) < at_once and time.monotonic() < until:
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                child(write, own)
            os.close(write)
            living[pid] = read
        pid, _ = os.waitpid(-1, 0)
        gone = time.monotonic()
        pipe = os.fdopen(living.pop(pid))
        words = pipe.read().split()
        pipe.close()
        if len(words) == 2:
            rows.append([float(words[0]), gone - float(words[1]), gone - begun])
    told.put(("made", rows))


def uuid_of(gpu: int) -> str:
    ask = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", f"--id={gpu}"]
    return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()


def child(write: int, devices: Sequence[Path]) -> None:
    """Ends at once, as a worker does that is killed."""
    if devices:
        keep_to(devices)
    start = time.monotonic()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    done = time.monotonic()
    os.write(write, f"{done - start} {done}".encode())
    os._exit(0)


def neighbour(seconds: float, gate: Any, told: Any, asks: bool) -> None:
    """Has a context; one that `asks` has its allocations take their turn with the makers."""
    torch.zeros(1, device="cuda")
    gate.wait(WAIT_S)
    until = time.monotonic() + seconds
    rows = []
    while time.monotonic() < until:
        time.sleep(0.01)
        if not asks:
            continue
        start = time.monotonic()
        held = torch.empty(NEIGHBOUR_BYTES, dtype=torch.uint8, device="cuda")
        del held
        torch.cuda.empty_cache()
        rows.append([time.monotonic() - start])
    told.put(("allocated", rows))


if __name__ == "__main__":
    main()
