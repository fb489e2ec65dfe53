"""Verdicts per GPU-hour: KernelBench's own evaluation and ours, same candidates, same machine.

    python -m benchmarks.throughput run --kernelbench PATH --out FILE --part harness --seconds 500
    python -m benchmarks.throughput run --kernelbench PATH --out FILE --part ours --seconds 500
    python -m benchmarks.throughput run --kernelbench PATH --out FILE --part ours --repeat 5
    python -m benchmarks.throughput run --kernelbench PATH --out FILE --part pipeline --repeat 4
    python -m benchmarks.throughput summarise FILE

PATH is a checkout of KernelBench with its `src`. Rows are appended to FILE (JSON lines), and what
is there already is not run again, so that several runs build one table. Their side: one new process
a candidate, as their scripts start it, 5 correctness and 100 timing trials, CUDA events, 180 s; the
GPU is held while the process lives. A crash is noticed at once here, where their scripts wait for
the time-out. Ours: one evaluator, preset `kernelbench`, one candidate after the other; the GPU is
held while a candidate is verified, started again and timed. What is computed once per task is shown
apart. `pipeline` sends the whole stream, `--repeat` times with sources made unequal, through our
evaluator as a search does: builds and loads go on while another candidate holds the GPU. So does
`ours --repeat`, with whole figures and a new evaluator for every repetition.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.candidates.probe import Probe
from benchmarks.candidates.stream import repeated, stream
from benchmarks.keeping import stop_cleanly
from benchmarks.throughput_table import summary
from kernelbench.checkout import checkout_version
from kernelbench.suite import load_tasks
from sandbox.errors import WarpsmithError
from sandbox.evaluator import LocalEvaluator
from sandbox.many import ahead, evaluate_many
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Request, Status, Task

CONFIG = EvalConfig(preset="kernelbench", torch_default_precision=True, baselines=())
HELD = ("open", "verify", "start", "warm", "time")
"""Stages in which a candidate has the GPU to itself."""
REFERENCE_SPEED = 1.0
"""What a candidate of the stream has to beat: a search decides after one pair (`search_pairs`)."""


@dataclass(frozen=True)
class Job:
    """One candidate, once, on one side."""

    part: str
    """`harness` for theirs, `ours`."""
    repeat: bool
    probe: Probe
    repetition: int
    warm: bool
    """Whether its libraries were built before."""

    @property
    def key(self) -> list[Any]:
        p = self.probe
        what = [p.problem, p.language.value, p.variant]
        return [self.part, "repeat" if self.repeat else "stream", *what, self.repetition, self.warm]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("--kernelbench", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--part", choices=("harness", "ours", "pipeline"), required=True)
    run.add_argument(
        "--repeat",
        type=int,
        help="20 right candidates, so many independent times; of the pipeline: streams",
    )
    run.add_argument("--seconds", type=float, default=500.0, help="stop starting new work after")
    run.add_argument("--only", nargs="+", metavar="level1/19", help="these problems alone")
    run.add_argument("--language", type=Language, choices=list(Language), help="this one alone")
    run.add_argument("--gpu-arch", default="Hopper", help="a family name of KernelBench's")
    run.add_argument("--builds", type=Path, help="folder that keeps builds between runs")
    verbs.add_parser("summarise").add_argument("file", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    if options.verb == "summarise":
        print(summary(read(options.file)))
        return
    started = time.monotonic()
    rows = Rows(options.out)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.builds or Path(temporary)).resolve()
        side = Harness(options, folder) if options.part == "harness" else Ours(options, folder)
        if isinstance(side, Ours) and options.part == "pipeline":
            rows.add({"kind": "run", **side.environment(), "command": shlex.join(sys.argv)})
            row: dict[str, Any] = {}
            try:
                side.pipeline(chosen(stream(), options), row)
            finally:
                if row:
                    rows.add(row)
                    print(summary([row]))
                side.close()
            return
        todo = [job for job in jobs(options) if not rows.has(job)]
        rows.add({"kind": "run", **side.environment(), "command": shlex.join(sys.argv)})
        left = len(todo)
        until_s = started + options.seconds
        judged = (
            side.repetitions(todo, until_s)
            if isinstance(side, Ours) and options.repeat
            else ((job, side.judge(job)) for job in before(until_s, todo))
        )
        try:
            for job, found in judged:
                row = {"kind": "row", "key": job.key, "expected": job.probe.expected.value, **found}
                rows.add(row)
                print(line(row), flush=True)
                left -= 1
        finally:
            side.close()
    print(f"{left} of {len(todo)} not started; {time.monotonic() - started:.0f} s")


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """In the order in which they run; builds are warm from the second time on."""
    probes = chosen(repeated() if options.repeat else stream(), options)
    for repetition in range(options.repeat or 1):
        for probe in probes:
            builds = probe.language is Language.CUDA_INLINE
            again = bool(options.repeat) and repetition > 0
            yield Job(options.part, bool(options.repeat), probe, repetition, builds and again)
            if builds and not options.repeat and probe.expected is not Status.COMPILE_ERROR:
                yield Job(options.part, False, probe, repetition, True)


def before(until_s: float, jobs: Iterable[Job]) -> Iterator[Job]:
    """Those that are asked for in time."""
    return takewhile(lambda _: time.monotonic() < until_s, jobs)


def chosen(probes: list[Probe], options: argparse.Namespace) -> list[Probe]:
    """Those of the problems and the language asked for."""
    return [
        p
        for p in probes
        if (not options.only or p.problem in options.only)
        and options.language in (None, p.language)
    ]


class Rows:
    """The file of results, and which of them are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        known = read(path) if path.exists() else []
        self._done = {
            json.dumps(row["key"])
            for row in known
            if row["kind"] == "row" and row["verdict"] != Status.SANDBOX_ERROR.value
        }

    def has(self, job: Job) -> bool:
        return json.dumps(job.key) in self._done

    def add(self, row: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines() if text.strip()]


class Side:
    """What both sides share: the tasks, and what is recorded about the machine."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self._tasks: dict[str, Task] = {}

    def task(self, probe: Probe) -> Task:
        if probe.problem not in self._tasks:
            spec = f"kernelbench:{self.options.kernelbench}:{probe.problem}"
            self._tasks[probe.problem] = load_tasks(spec, "cuda")[0]
        return self._tasks[probe.problem]

    def environment(self) -> dict[str, Any]:
        note = self.options.kernelbench / "COMMIT"
        known = checkout_version(self.options.kernelbench)
        commit = note.read_text().strip() if note.is_file() else known
        return {"date": datetime.now(UTC).isoformat(), "kernelbench": commit}

    def judge(self, job: Job) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class Harness(Side):
    """KernelBench's evaluation, a process of its own for each candidate."""

    def environment(self) -> dict[str, Any]:
        return {**super().environment(), "part": "harness", "protocol": harness.protocol()}

    def judge(self, job: Job) -> dict[str, Any]:
        probe = job.probe
        name = "-".join(str(part).replace("/", "_").replace(" ", "_") for part in job.key[2:5])
        backend = "triton" if probe.language is Language.TRITON else "cuda"
        asked = {"reference": self.task(probe).source, "candidate": probe.source}
        asked |= {"backend": backend, "gpu_arch": self.options.gpu_arch}
        return harness.ask(self.options.kernelbench, asked, self.folder / name)


class Ours(Side):
    """One evaluator; a new one for each repetition, whose figures then share no process."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        super().__init__(options, folder)
        self._evaluator = LocalEvaluator("cuda", cache_dir=folder / "cache")

    def environment(self) -> dict[str, Any]:
        facts = self._evaluator.facts.environment
        known = super().environment()
        return {**known, "part": "ours", "protocol": asdict(CONFIG), "environment": facts}

    def judge(self, job: Job) -> dict[str, Any]:
        task = self.task(job.probe)
        start = time.monotonic()
        size = self._bytes(task)
        prepare_s = time.monotonic() - start
        candidate = Candidate(task.id, job.probe.language, job.probe.source)
        start = time.monotonic()
        found = self._evaluator.evaluate(task, candidate, CONFIG, to_beat=REFERENCE_SPEED)
        seconds = time.monotonic() - start
        return {"seconds": seconds, "prepare_s": prepare_s, "bytes": size, **self.row(found)}

    def repetitions(
        self, jobs: Sequence[Job], until_s: float
    ) -> Iterator[tuple[Job, dict[str, Any]]]:
        """Each repetition by an evaluator of its own, its candidates through the pipeline."""
        used = False
        for _, group in groupby(before(until_s, jobs), key=lambda job: job.repetition):
            if used:
                self._evaluator.close()
                self._evaluator = LocalEvaluator("cuda", cache_dir=self.folder / "cache")
            used, begun = True, list[Job]()
            for found in evaluate_many(self._evaluator, self._asked(group, begun), ahead("cuda")):
                yield begun.pop(0), self.row(found)

    def _asked(self, jobs: Iterable[Job], begun: list[Job]) -> Iterator[Request]:
        for job in jobs:
            begun.append(job)
            task = self.task(job.probe)
            yield Request(task, Candidate(task.id, job.probe.language, job.probe.source), CONFIG)

    def row(self, found: Evaluation) -> dict[str, Any]:
        stages = dict(found.seconds)
        row: dict[str, Any] = {"gpu_s": held_s(stages), "stages": stages}
        row |= {"verdict": found.status.value, "passed": found.status is Status.PASSED}
        row["detail"] = found.detail
        if found.timing is not None:
            row["speedup"] = found.timing.speedup.value
            row["interval"] = [found.timing.speedup.low, found.timing.speedup.high]
            row["candidate_ms"] = found.timing.candidate_ms
            row["reference_ms"] = found.timing.reference_ms
            row["sets"] = found.timing.sets
            known = (
                (p.log_speedup, p.spread, p.reference_ms, p.candidate_ms)
                for p in found.timing.pairs
            )
            row["pairs"] = [[round(x, 5) for x in pair] for pair in known]
        return row

    def pipeline(self, probes: list[Probe], row: dict[str, Any]) -> None:
        """The whole stream at once; preparation of the tasks is part of the seconds. `row` always
        holds what is known so far; nothing is begun after --seconds.
        """
        requests = []
        for probe in probes:
            for copy in range(self.options.repeat or 1):
                task = self.task(probe)
                candidate = Candidate(task.id, probe.language, f"{probe.source}\n# {copy}\n")
                requests.append(Request(task, candidate, CONFIG, REFERENCE_SPEED))
        expected = [p.expected for p in probes for _ in range(self.options.repeat or 1)]
        ends, done = [], []
        start = time.monotonic()
        begun = takewhile(lambda _: time.monotonic() - start < self.options.seconds, requests)
        for found in evaluate_many(self._evaluator, begun, ahead("cuda")):
            done.append(found)
            ends.append(time.monotonic() - start)
            right = [found.status is status for found, status in zip(done, expected, strict=False)]
            row |= {
                "kind": "pipeline",
                "seconds": ends[-1],
                "gpu_s": sum(held_s(dict(found.seconds)) for found in done),
                "verdicts": [found.status.value for found in done],
                "expected": [status.value for status in expected[: len(done)]],
                "right": sum(right),
                "ends_s": ends,
                "not_begun": len(requests) - len(done),
            }

    def _bytes(self, task: Task) -> int | None:
        """Inputs and outputs of one call; prepares the task. None where it cannot be."""
        try:
            signature = self._evaluator.prepare(task, CONFIG).signature
        except WarpsmithError:  # an invalid reference, or a fault of ours: its evaluation says so
            return None
        return signature.input_bytes + signature.output_bytes

    def close(self) -> None:
        self._evaluator.close()


def held_s(stages: dict[str, float]) -> float:
    """Seconds for which a candidate had the GPU to itself."""
    return sum(stages.get(name, 0.0) for name in HELD)


def line(row: dict[str, Any]) -> str:
    part, _, problem, language, variant, repetition, warm = row["key"]
    speedup = f"{row['speedup']:7.3f}x" if row.get("speedup") else " " * 8
    return (
        f"{part:7} {problem:10} {language:11} {variant:24} {repetition} {'warm' if warm else '':4} "
        f"{row['expected']:14} {row['verdict']:14} {speedup} "
        f"GPU {row['gpu_s']:7.2f} s"
    )


if __name__ == "__main__":
    main()
