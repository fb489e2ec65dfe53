"""How many subtly wrong kernels the judge notices, and how many right ones it refuses.

    python -m benchmarks.mutation --device cpu --repetitions 20 --seconds 550 --out FILE

Every correct kernel is judged `--repetitions` times and every mutant once, by verification alone,
against cases with fresh secret seeds. Run it again with the same FILE to go on where it stopped;
it ends with code 0 when all is done, at least 98 % of the mutants are killed and no correct kernel
was refused. A mutant counts as killed by any verdict but PASSED; a fault of ours is judged again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.mutation.kernel import Kernel
from benchmarks.mutation.kernels.catalogue import kernels
from benchmarks.mutation.operators import Mutant, excluded, mutants
from benchmarks.mutation.verifier import Verifier
from sandbox.cache import write_text
from sandbox.errors import DeviceError, SandboxFault
from sandbox.judging import judge
from sandbox.types import Evaluation, Status, digest

LEAST_KILLED = 0.98
CORRECT = "correct"
POOL_USES = 12
"""Mutants judged against one pool of cases before it is renewed."""
SPARE_ROUNDS = 5
"""For verdicts that were a fault of ours."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=550.0, help="stop starting work after")
    parser.add_argument("--only", nargs="+", metavar="KERNEL")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    chosen = [k for k in kernels(options.device) if not options.only or k.name in options.only]
    rows = load(options.out)
    verifier = Verifier(options.device)
    try:
        # Round by round over all kernels, so that a run cut short says something of each.
        for _ in range(options.repetitions + SPARE_ROUNDS):
            for kernel in chosen:
                try:
                    for row in one_round(
                        verifier, kernel, options.device, options.repetitions, rows
                    ):
                        note(row, rows)
                except (SandboxFault, DeviceError, torch.OutOfMemoryError) as error:
                    print(f"AGAIN {kernel.name}: {error}", flush=True)
                save(options.out, rows, verifier.facts.environment)
                if time.monotonic() > deadline:
                    break
            if time.monotonic() > deadline:
                break
    finally:
        verifier.close()
    sys.exit(report(rows, chosen, options.device, options.repetitions))


def one_round(
    verifier: Verifier, kernel: Kernel, device: str, repetitions: int, rows: list[Row]
) -> Iterator[Row]:
    """Against fresh cases: the correct kernel once more, and the next of its mutants."""
    done = Counter(row["mutant"] for row in rows if row["kernel"] == kernel.name)
    todo = [mutant for mutant in mutants(kernel, device) if not done[mutant.name]][:POOL_USES]
    if done[CORRECT] < repetitions:
        todo.insert(0, Mutant(kernel, CORRECT, ""))
    if not todo:
        return
    task = kernel.reference(device)
    pools = verifier.pools(task)
    for mutant in todo:
        yield row_of(mutant, verifier.judge(task, mutant.kernel.candidate(device), pools))


def note(row: Row, rows: list[Row]) -> None:
    """Keep a verdict, and name one that is not as expected; a fault of ours is no verdict."""
    name, status = f"{row['kernel']}/{row['mutant']}", row["status"]
    if status == Status.SANDBOX_ERROR:
        print(f"AGAIN {name}: {row['detail']}", flush=True)
        return
    rows.append(row)
    if (status == Status.PASSED) != (row["mutant"] == CORRECT):
        print(f"UNEXPECTED {name}: {status} {row['detail']} {row['line']}", flush=True)


def row_of(mutant: Mutant, found: Evaluation) -> Row:
    row: Row = {
        "kernel": mutant.kernel.name,
        "mutant": mutant.name,
        "status": found.status.value,
    }
    passed = found.status is Status.PASSED
    if passed != (mutant.name == CORRECT) or found.status is Status.SANDBOX_ERROR:
        row |= {"detail": found.detail, "line": mutant.line}
    return row


def load(path: Path) -> list[Row]:
    """Verdicts of an earlier run; ends the program where another judge gave them."""
    ours = judge_hash()
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    if record["judge"] != ours:
        sys.exit(f"{path}: the judge (sandbox/) has changed since it was written; use a new file")
    return list(record["rows"])


@cache
def judge_hash() -> str:
    """Of the sandbox's sources as this program began: one record, one judge."""
    folder = Path(judge.__file__).parents[1]
    return digest([path.read_text() for path in sorted(folder.rglob("*.py"))])


def save(path: Path, rows: list[Row], environment: dict[str, str]) -> None:
    head = {
        "date": datetime.now(UTC).isoformat(),
        "command": shlex.join(["python", "-m", "benchmarks.mutation", *sys.argv[1:]]),
        "environment": environment,
        "judge": judge_hash(),
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(path, f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{lines}\n]}}\n')


def report(rows: list[Row], chosen: list[Kernel], device: str, repetitions: int) -> int:
    """Print the figures; 0 where all is done and good."""
    names = {kernel.name for kernel in chosen}
    rows = [row for row in rows if row["kernel"] in names]
    right = [row for row in rows if row["mutant"] == CORRECT]
    refused = [row for row in right if row["status"] != Status.PASSED]
    # Where the right one is refused, refusing the wrong ones says nothing.
    void = {row["kernel"] for row in refused}
    wrong = [row for row in rows if row["mutant"] != CORRECT and row["kernel"] not in void]
    stillborn = [row for row in wrong if row["status"] == Status.COMPILE_ERROR]
    survived = [row for row in wrong if row["status"] == Status.PASSED]
    crashed = sum(row["status"] == Status.RUNTIME_ERROR for row in wrong)
    wanted = sum(1 for kernel in chosen for _ in mutants(kernel, device))
    left_out = sum(len(excluded(kernel)) for kernel in chosen)
    for row in survived:
        print(f"survived: {row['kernel']}/{row['mutant']}: {row['line']}")
    for row in stillborn:
        print(f"not a mutant, it does not compile: {row['kernel']}/{row['mutant']}")
    for row in refused:
        print(f"refused: {row['kernel']}: {row['status']} {row['detail']}")
    share = 1 - len(survived) / max(len(wrong), 1)
    print(
        f"{len(wrong)} of {wanted} mutants of {len(names)} kernels judged, {share:.1%} killed, "
        f"{crashed} of them by a crash; {left_out} places left out as equivalent; "
        f"{len(right)} of {repetitions * len(names)} verdicts on correct ones, "
        f"{len(refused)} refused"
    )
    complete = len(wrong) >= wanted and len(right) >= repetitions * len(names)
    good = share >= LEAST_KILLED and not refused and not stillborn
    return 0 if complete and good else 1


if __name__ == "__main__":
    main()
