"""An exported library, installed where nothing of Warpsmith is, checked and timed.

    python -m benchmarks.library --runs RUN... --out benchmarks/results/h200_library.json
    python -m benchmarks.library --library DIR --device cpu --out FILE

Exports the winners of the runs (or takes an older export), installs the wheel into an empty folder
without a network, and runs every operator there in processes of its own: opcheck, fullgraph
compile, CUDA-graph capture, threads, streams, gradients, fallback; then times it against the
reference, beside the interval of its campaign. All of it with `PACKAGE_AGAINST=eager`: kernels that
are faster than eager alone run too, and are told apart. An operator that fails, crashes or hangs is
told and stops no other; one whose kernel no call here may use is in the record with the reason. The
record is written anew after every operator; operators that no time was left for are in it by name.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.export.artefact import Artefact, bound, read_artefact
from agent.export.manifest import read_manifest
from agent.export.runtime.machine import machine
from agent.runs import find_run
from benchmarks.keeping import keep_json
from benchmarks.library.installed import Site, install
from benchmarks.library.rows import NOWHERE, Row, lines
from benchmarks.library.times import quickest_us
from sandbox.doctor import resolve_device
from sandbox.errors import ConfigError
from sandbox.machine.device import fingerprint
from sandbox.records import to_record
from warpsmith import export

CHECK_S, TIME_S = 240.0, 60.0
"""Of one operator: longer is a hang."""
MORE = 4
"""Times the processes asked for that time an operator whose figure was disturbed."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", nargs="+", default=[], help="campaigns to export")
    parser.add_argument("--library", type=Path, help="an exported package instead")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=3, help="processes that time each operator")
    parser.add_argument("--parallel", type=int, default=3, help="operators checked at once")
    parser.add_argument("--seconds", type=float, default=420.0, help="of the device, altogether")
    parser.add_argument("--only", nargs="+", help="names of operators")
    asked = parser.parse_args()
    if bool(asked.runs) == (asked.library is not None):
        parser.error("give --runs or --library")
    try:
        prove(asked)
    except ConfigError as error:
        sys.exit(f"error: {error}")


def prove(asked: argparse.Namespace) -> None:
    device = resolve_device(asked.device)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="library")))
        folder = asked.library
        if folder is None:
            folder = scratch / "out"
            runs = [str(find_run(run)) for run in asked.runs]
            export(runs, folder, format="package", package="proven_kernels", device=device)
        manifest = read_manifest(folder)
        site = install(folder, str(manifest["package"]), scratch / "site", device)
        chosen = operators(folder, device)
        if asked.only:
            chosen = {name: a for name, a in chosen.items() if name in asked.only}
        rows = {name: Row.of(artefact, machine(device)) for name, artefact in chosen.items()}
        record = Record(asked, device, manifest, site.switch, rows)
        record.write()
        deadline = time.monotonic() + asked.seconds
        served = [row for row in rows.values() if row.used != NOWHERE]
        with ThreadPoolExecutor(max(1, asked.parallel)) as pool:
            list(pool.map(lambda row: checked(site, row, deadline, record), served))
        for row in (r for r in served if r.out_of_memory):
            checked(site, row, deadline, record)  # by itself this time
        timed(site, served, asked.pairs, deadline, record)
    print("\n".join(lines(list(rows.values()))))
    proven = [row.used for row in rows.values() if row.proven]
    print(
        f"{asked.out}: {len(proven)} of {len(served)} operators with a kernel proven "
        f"({len(rows) - len(served)} are the reference's here), "
        f"{proven.count('by default')} of them used by default, "
        f"{proven.count('with the switch')} with {site.switch} alone"
    )


def operators(folder: Path, device: str) -> dict[str, Artefact]:
    """By operator, its kernel of this machine, else any of the device's."""
    here = machine(device)
    found: dict[str, Artefact] = {}
    artefacts = [read_artefact(path) for path in sorted((folder / "artefacts").glob("*.json"))]
    for artefact in sorted(artefacts, key=lambda a: (here in a.decisive, bound(a))):
        if artefact.task.device == device:
            found[artefact.operator] = artefact
    if not found:
        raise ConfigError(f"{folder}: no operator for {device}; expected a library tuned for it")
    return dict(sorted(found.items()))


class Record:
    """The JSON file; any thread may write it."""

    def __init__(
        self,
        asked: argparse.Namespace,
        device: str,
        manifest: dict[str, Any],
        switch: str,
        rows: dict[str, Row],
    ) -> None:
        words = [Path(w).name if "/" in w else w for w in sys.argv[1:]]
        self._out, self._rows = asked.out, rows
        self._head = {
            "command": shlex.join(["python", "-m", "benchmarks.library", *words]),
            "date": datetime.now(UTC).date().isoformat(),
            "version": manifest["version"],
            "switch": switch,
            "left_out": manifest.get("left_out", {}),
            "environment": fingerprint(device),
        }
        self._begun = time.monotonic()
        self._writing = threading.Lock()

    def write(self) -> None:
        rows = [
            to_record(row) | {"used": row.used, "proven": row.proven}
            for row in list(self._rows.values())
        ]
        record = self._head | {"wall_s": round(time.monotonic() - self._begun, 1), "rows": rows}
        with self._writing:
            keep_json(self._out, record)


def checked(site: Site, row: Row, deadline: float, record: Record) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        row.not_run = "no time was left to check it"
        return
    request = {"what": "check", "seed": 0, **row.request()}
    said, ended = site.ask(request, min(CHECK_S, left))
    row.note_checks(said, ended)
    record.write()


def timed(site: Site, rows: Sequence[Row], pairs: int, deadline: float, record: Record) -> None:
    """Every operator in `pairs` fresh processes that count, and in up to MORE times as many while
    there are not so many or its interval is wide; one that ends its process is not asked
    again.
    """
    able = {row.operator: row for row in rows if row.passed("kernel")}
    done: dict[str, list[dict[str, Any]]] = {name: [] for name in able}
    for number in range(MORE * pairs):
        waiting = [
            name
            for name, row in able.items()
            if not row.not_timed and (row.pairs < pairs or row.wide)
        ]
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                for name in waiting if number < pairs else ():
                    able[name].not_timed = f"no time was left for its process {number + 1}"
                break
            operators = [able[name].request() for name in waiting]
            request = {"what": "time", "seed": 1000 * (number + 1), "operators": operators}
            said, ended = site.ask(request, min(TIME_S * len(waiting), left))
            for one in said:
                waiting.remove(one["operator"])
                if "failed" in one:
                    able[one["operator"]].not_timed = one["failed"]
                else:
                    done[one["operator"]].append(one)
            if waiting:  # the process ended in the first of them
                able[waiting.pop(0)].not_timed = ended or "it said nothing"
        quickest = quickest_us([said for each in done.values() for said in each])
        for name, row in able.items():
            row.note_times(done[name], quickest)
        record.write()


if __name__ == "__main__":
    main()
