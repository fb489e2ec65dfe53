"""What others' harnesses say of exported kernels, beside our own figures.

    warpsmith export RUN --to DIR --format kernelbench --format flashinfer
    python -m benchmarks.exported DIR --kernelbench CHECKOUT --out FILE

KernelBench: its static checker and its evaluation (5 correctness and 100 timing trials, CUDA
events) of every file under DIR/kernelbench/runs, a process each, against CHECKOUT's problem of that
number. FlashInfer-Bench: `flashinfer-bench run` over a copy of DIR/flashinfer with its own
defaults, a process for all. Needs a GPU; FlashInfer-Bench must be installed. FILE is replaced after
every kernel.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.keeping import header, keep_json, stop_cleanly
from kernelbench.checkout import checkout_version
from kernelbench.submissions import NUMBERED
from kernelbench.suite import load_tasks
from sandbox.errors import ConfigError

RUNNER = "from flashinfer_bench.cli.main import cli; cli()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path, help="folder of both formats")
    parser.add_argument("--kernelbench", type=Path, required=True, help="a checkout with its src")
    parser.add_argument("--gpu-arch", default="Hopper", help="a family name of KernelBench's")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    stop_cleanly()
    record: dict[str, Any] = {
        **header("exported"),
        "kernelbench_version": checkout_version(options.kernelbench),
        "kernelbench": [],
        "flashinfer_version": metadata.version("flashinfer-bench"),
        "flashinfer": [],
    }
    with tempfile.TemporaryDirectory() as temporary:
        for entry in kernels(options.export / "kernelbench"):
            row = by_kernelbench(entry, options, Path(temporary) / entry["candidate_id"])
            record["kernelbench"].append(row)
            print(json.dumps(row), flush=True)
            keep_json(options.out, record)
        copy = Path(temporary) / "flashinfer"
        shutil.copytree(options.export / "flashinfer", copy)
        record |= by_flashinfer(copy)
        for row in record["flashinfer"]:
            print(json.dumps(row), flush=True)
        keep_json(options.out, record)


def kernels(folder: Path) -> list[dict[str, Any]]:
    """The manifest's entries that KernelBench can find, each with its `text`.

    Raises ConfigError where there is none.
    """
    try:
        entries = json.loads((folder / "manifest.json").read_text())["kernels"]
    except FileNotFoundError as error:
        raise ConfigError(f"{folder}: no manifest.json; expected what `export` wrote") from error
    found = [entry for entry in entries if entry["file"].startswith("runs/")]
    if not found:
        raise ConfigError(f"{folder}: holds no kernel of a KernelBench problem")
    return [{**entry, "text": (folder / entry["file"]).read_text()} for entry in found]


def by_kernelbench(
    entry: dict[str, Any], options: argparse.Namespace, build: Path
) -> dict[str, Any]:
    """Its verdict on one exported kernel, beside ours."""
    match = NUMBERED.match(entry["task_id"])
    assert match is not None, "export puts no other task under runs/"
    spec = f"kernelbench:{options.kernelbench}:level{match[1]}/{match[2]}"
    [task] = load_tasks(spec, "cuda")
    asked = {"reference": task.source, "candidate": entry["text"], "backend": entry["backend"]}
    asked |= {"gpu_arch": options.gpu_arch, "static": True}
    found = harness.ask(options.kernelbench, asked, build)
    kept = ("seconds", "verdict", "passed", "refused", "reference_ms", "candidate_ms", "speedup")
    return {
        "task_id": entry["task_id"],
        "language": entry["language"],
        "converted": entry["converted_from"] is not None,
        "ours": {"status": entry["status"], "speedup": entry["speedup"]},
        "theirs": {name: found[name] for name in (*kept, "detail") if name in found},
    }


def by_flashinfer(dataset: Path) -> dict[str, Any]:
    """What its runner adds to the traces of the data set, and how it ended."""
    before = {path: lines_of(path) for path in traces(dataset)}
    ours = {line["solution"]: line["evaluation"] for lines in before.values() for line in lines}
    start = time.monotonic()
    command = [sys.executable, "-c", RUNNER, "run", "--local", str(dataset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = []
    for path in traces(dataset):
        for line in lines_of(path)[len(before.get(path, [])) :]:
            found, known = line["evaluation"], ours.get(line["solution"])
            row = {name: line[name] for name in ("definition", "solution")}
            row["axes"] = line["workload"]["axes"]
            row["ours"] = None if known is None else known["performance"]
            row |= {name: found.get(name) for name in ("status", "correctness", "performance")}
            if row["status"] != "PASSED":
                row["log"] = found.get("log", "")[-600:]
            rows.append(row)
    return {
        "flashinfer": rows,
        "flashinfer_s": round(time.monotonic() - start, 1),
        "flashinfer_exit": done.returncode,
        "flashinfer_said": done.stderr[-2000:] if done.returncode else "",
    }


def traces(dataset: Path) -> list[Path]:
    return sorted((dataset / "traces").rglob("*.jsonl"))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
