"""The forms that winners can be exported in, and several of them at once from one reading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from agent.export.artefact import Nothing, costed, gather, winners
from agent.export.binaries import refuse_unknown
from agent.export.flashinfer import export_flashinfer
from agent.export.folder import check_folder
from agent.export.hub import export_hub
from agent.export.kernelbench_runs import export_kernelbench
from agent.export.modelnew import export_runs, folders_of
from agent.export.notices import notices
from agent.export.package import check_name, export_package
from agent.export.standalone import Judge
from agent.journals.journal import Journal
from agent.journals.outcome import reports
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Evaluation, Evaluator, Task

FORMATS = ("modelnew", "package", "kernels", "kernelbench", "flashinfer")
PACKAGE = "tuned_kernels"
"""Its name where nobody gave one."""
UNKNOWN = "unknown"
"""Licence of kernels that nobody told."""


@dataclass(frozen=True)
class Formats:
    """What was asked for."""

    names: tuple[str, ...]
    package: str
    archs: tuple[str, ...]
    licence: str = UNKNOWN


def check_formats(
    names: Sequence[str], package: str, archs: Sequence[str], licence: str = UNKNOWN
) -> Formats:
    """Raises ConfigError."""
    for name in names:
        if name not in FORMATS:
            raise ConfigError(f"format is {name!r}; expected one of {', '.join(FORMATS)}")
    for arch in archs:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
            raise ConfigError(f"architecture is {arch!r}; expected one such as sm_90")
        refuse_unknown(arch)
    check_name(package)
    if set(names) == {"modelnew"} and (archs or licence != UNKNOWN or package != PACKAGE):
        raise ConfigError(
            "a package's name, architectures and licence are for a library, and format modelnew is "
            "files of kernels; expected another --format, or leave them out"
        )
    return Formats(tuple(dict.fromkeys(names)), package, tuple(archs), _spdx(licence))


def _spdx(licence: str) -> str:
    """As SPDX spells it; raises ConfigError where it is no such expression."""
    if licence == UNKNOWN:
        return licence
    try:
        return canonicalize_license_expression(licence)
    except InvalidLicenseExpression as error:
        wanted = "an SPDX expression such as MIT or Apache-2.0, LicenseRef-NAME for another, or"
        raise ConfigError(f"licence is {licence!r}; expected {wanted} {UNKNOWN}") from error


def export_formats(
    runs: Sequence[Path],
    folder: Path,
    formats: Formats,
    device: str,
    make_evaluator: Callable[[], Evaluator],
    tell: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """The files in the folder, or in a folder of each form where there are several.

    Converted kernels are judged once, whatever forms they are for; tasks of another device are not.
    `tell` gets a line for each form for which nothing is left, where others were written, one for
    each run without a win, and those of agent/export/notices.py. Raises ConfigError where a folder
    holds something else, or nothing can be exported in any form.
    """
    runs = list({run.resolve(): run for run in runs}.values())
    with ExitStack() as stack:
        judge = _Once(device, make_evaluator, stack)
        several = len(formats.names) > 1
        inner = {name: folder / name if several else folder for name in formats.names}
        # Every one before the first is written, and before anything takes time.
        for name, place in inner.items():
            for each in folders_of(runs, place) if name == "modelnew" else (place,):
                check_folder(each, name)
        written: list[Path] = []
        nothing: dict[str, Nothing] = {}
        for name, place in inner.items():
            try:
                written += _export(name, runs, place, formats, judge)
            except Nothing as error:
                nothing[name] = error
        if not written:
            raise next(iter(nothing.values()))
        for why in nothing.values():
            tell(str(why))
        done = inner.keys() - nothing.keys() - {"modelnew"}
        libraries = {name: place for name, place in inner.items() if name in done}
        for line in [*filter(None, map(without_wins, runs)), *notices(libraries, formats.package)]:
            tell(line)
        return written


def without_wins(run: Path) -> str | None:
    """`no wins in runs/first: 3 no win, 1 not tried`, as `show` has it; None where there is one."""
    with Journal(run, read_only=True) as journal:
        rows = reports(journal)
    if any(row.exportable for row in rows):
        return None
    counts = Counter(row.verdict for row in rows).most_common()
    reasons = ", ".join(f"{count} {verdict}" for verdict, count in counts)
    return f"no wins in {run}: {reasons or 'no task was begun'}"


def _export(
    name: str, runs: Sequence[Path], folder: Path, formats: Formats, judge: _Once
) -> list[Path]:
    if name == "modelnew":
        return export_runs(runs, folder)
    if name == "kernelbench":
        return export_kernelbench(winners(runs, formats.licence), folder, judge.of)
    gathered = gather(runs, formats.licence)
    if name == "flashinfer":
        return export_flashinfer(gathered, folder, judge.of)
    gathered = replace(gathered, artefacts=tuple(map(costed, gathered.artefacts)))
    write = export_package if name == "package" else export_hub
    return write(gathered, folder, formats.package, formats.archs)


class _Once:
    """Judges each candidate once, with an evaluator that is made when it is first needed."""

    def __init__(
        self, device: str, make_evaluator: Callable[[], Evaluator], stack: ExitStack
    ) -> None:
        self._device, self._make, self._stack = device, make_evaluator, stack
        self._evaluator: Evaluator | None = None
        self._known: dict[tuple[str, str], Evaluation] = {}

    def of(self, task: Task) -> Judge | None:
        """None where the task's device is not here."""
        return self._judge if task.device == self._device else None

    def _judge(self, task: Task, candidate: Candidate, config: EvalConfig) -> Evaluation:
        key = (task.hash, candidate.id)
        if key not in self._known:
            if self._evaluator is None:
                self._evaluator = self._stack.enter_context(closing(self._make()))
            self._known[key] = self._evaluator.evaluate(task, candidate, config)
        return self._known[key]
