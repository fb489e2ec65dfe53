"""What people hand in -> Submissions: folders of kernels, KernelBench runs, exports, JSON lines.

| input | how a kernel names its task |
|---|---|
| folder, at whatever depth | `softmax.py`, `builtin__softmax.py`, `level1/19_ReLU.py` |
| KernelBench's `runs/NAME` | `level_1_problem_19_sample_0_kernel.py` |
| folder that `warpsmith export` wrote | its `manifest.json` |
| `.json`, `.jsonl`: an object a line | `level_id`, `task_id` (its number), `custom_code` |

Nothing is run here. What cannot be used is one `Problem` each and stops nothing else; text that is
no Python, or none at all, is a submission, which its evaluation will refuse: a failure is never
lost here, nor is a later sample taken for the first.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.building.language import detect_language, language_of
from sandbox.errors import ConfigError
from sandbox.types import Candidate, Language, Task
from sandbox.words import number_of

UPSTREAM = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel")
NUMBERED = re.compile(r"kernelbench/level(\d+)/(\d+)_")
MANIFEST = "manifest.json"
TRANSDUCTIVE = "-transductive"
"""In the name of a policy that was taught the tasks it is scored on (rl/policy.py)."""
FORMS = "a folder of kernels, a KernelBench run, an export, a .json/.jsonl file or a run's name"


@dataclass(frozen=True)
class Submission:
    """One kernel for one task of the suite."""

    candidate: Candidate
    sample: int
    """From 0; several samples of a task are attempts at it."""
    origin: str
    """File, and line where it holds several."""
    taught: str = ""
    """The policy that wrote it, where that was taught evaluated tasks."""

    def __str__(self) -> str:
        return f"{self.candidate.task_id} sample {self.sample}"


@dataclass(frozen=True)
class Problem:
    """One line about a part of the input that was left out."""

    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"


@dataclass(frozen=True)
class Found:
    submissions: tuple[Submission, ...] = ()
    """In the suite's order of tasks, then by sample."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Raw:
    """A kernel before it is known whether its task exists."""

    task: Task | None
    named: str
    """How its task was named, for messages."""
    sample: int
    source: str
    origin: str
    language: str | None = None
    reference: str | None = None
    """The problem's text as the input has it; None where it has none."""
    taught: str = ""
    """As a Submission's."""


@dataclass
class Suite:
    """The tasks by every name that an input may use."""

    tasks: Sequence[Task]
    names: dict[str, list[Task]] = field(init=False)
    """Several where two suites have a task of that name."""
    numbers: dict[tuple[int, int], Task] = field(init=False)

    def __post_init__(self) -> None:
        self.names, self.numbers = {}, {}
        for task in self.tasks:
            parts = task.id.split("/")
            for start in range(len(parts)):
                for name in {"/".join(parts[start:]), "__".join(parts[start:])}:
                    self.names.setdefault(name, []).append(task)
            match = NUMBERED.match(task.id)
            if match is not None:
                self.numbers.setdefault((int(match[1]), int(match[2])), task)

    def by_path(self, path: Path) -> list[Task]:
        """By the file's name, with as many folders before it as make it a task's name."""
        parts = path.with_suffix("").parts
        names = ("/".join(parts[start:]) for start in range(len(parts)))
        return next((self.names[name] for name in names if name in self.names), [])


def read_submissions(path: Path, tasks: Sequence[Task]) -> Found:
    """Everything usable in `path`, and a line for what is not; ConfigError if it cannot be read."""
    suite = Suite(tasks)
    if path.is_dir():
        raws = _exported(path, suite) if (path / MANIFEST).is_file() else _folder(path, suite)
    elif path.suffix in (".json", ".jsonl") and path.is_file():
        raws = _lines(path, suite)
    elif path.suffix == ".py" and path.is_file():
        remedy = f"of one, warpsmith evaluate TASK {path}"
        raise ConfigError(f"{path}: is one kernel; expected {FORMS}; {remedy}")
    else:
        what = "is none that can be read" if path.exists() else "no such input"
        raise ConfigError(f"{path}: {what}; expected {FORMS}")
    try:
        return collect(raws, tasks)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def collect(raws: Iterable[Raw | Problem], tasks: Sequence[Task]) -> Found:
    """Unknown tasks and second samples of one number become problems."""
    problems: list[Problem] = []
    foreign: list[Raw] = []
    kept: dict[tuple[str, int], Submission] = {}
    for raw in raws:
        origin = _as_utf8(raw.origin)
        if isinstance(raw, Problem):
            problems.append(Problem(origin, raw.reason))
            continue
        if raw.task is None:
            named = _as_utf8(raw.named)
            why = f"{named} is no task of the suite{_meant(named, tasks)}"
            problems.append(Problem(origin, why))
            continue
        key = (raw.task.id, raw.sample)
        if key in kept:
            first = kept[key].origin
            problems.append(
                Problem(origin, f"{raw.task.id} has a sample {raw.sample} already: {first}")
            )
            continue
        if raw.reference is not None and _bare(raw.reference) != _bare(raw.task.source):
            foreign.append(raw)
        candidate = Candidate(raw.task.id, _language(raw), raw.source)
        kept[key] = Submission(candidate, raw.sample, origin, raw.taught)
    if foreign:
        count = number_of(len(foreign), "reference")
        what = f"{count} unlike the suite's, the first of {foreign[0].named}"
        problems.append(Problem(foreign[0].origin, f"{what}: made for another version of it"))
    order = {task.id: number for number, task in enumerate(tasks)}
    chosen = sorted(kept.values(), key=lambda s: (order[s.candidate.task_id], s.sample))
    return Found(tuple(chosen), tuple(problems))


def _as_utf8(name: str) -> str:
    """As every file and terminal can show it: a file's name may be of any bytes."""
    return name.encode(errors="replace").decode()


def _meant(named: str, tasks: Sequence[Task]) -> str:
    """`; did you mean 'relu'?`, for a mistyped name."""
    known = {name for task in tasks for name in (task.id, task.id.rpartition("/")[2])}
    close = difflib.get_close_matches(named.replace("__", "/"), sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _language(raw: Raw) -> Language:
    """The named one, else the one told from the source; text that is no Python counts as torch."""
    try:
        if raw.language is not None:
            return language_of(raw.source, raw.origin, raw.language)
        return detect_language(raw.source, raw.origin)
    except (ConfigError, ValueError, RecursionError):  # ValueError: a null byte
        return Language.TORCH


def _bare(source: str) -> str:
    """The text without comments, docstrings and layout; as it is where that is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [
                statement
                for statement in node.body
                if not (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                )
            ]
    return ast.dump(tree)


def _folder(folder: Path, suite: Suite) -> Iterator[Raw | Problem]:
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder)
        if any(part.startswith((".", "_")) for part in relative.parts):
            continue
        source = _text(path)
        if isinstance(source, Problem):
            yield source
            continue
        match = UPSTREAM.fullmatch(path.stem)
        if match is None:
            meant = suite.by_path(relative)
            if len(meant) > 1:
                files = " or ".join(task.id.replace("/", "__") + ".py" for task in meant)
                yield Problem(str(path), f"is of {len(meant)} tasks; name it {files}")
            else:
                yield Raw(next(iter(meant), None), relative.stem, 0, source, str(path))
        else:
            level, number, sample = map(int, match.groups())
            task = suite.numbers.get((level, number))
            yield Raw(task, f"level{level}/{number}", sample, source, str(path))


def _exported(folder: Path, suite: Suite) -> Iterator[Raw | Problem]:
    path = folder / MANIFEST
    text = _text(path)
    if isinstance(text, Problem):
        yield text
        return
    try:
        entries = json.loads(text)["kernels"]
    except (ValueError, RecursionError) as error:
        yield Problem(str(path), f"is damaged, or was never JSON: {error}")
        return
    except (KeyError, TypeError) as error:
        yield Problem(str(path), f"not a manifest of `warpsmith export`: {error}")
        return
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case {"file": str(name), "task_id": str(task_id), "language": str(language)}:
                path = folder / name if _inside(name) else folder / Path(name).name
                source = _text(path)
                if isinstance(source, Problem):
                    yield source
                else:
                    found = next(iter(suite.names.get(task_id, ())), None)
                    proposer = str(entry.get("proposer"))
                    taught = proposer if TRANSDUCTIVE in proposer else ""
                    yield Raw(found, task_id, 0, source, str(path), language, taught=taught)
            case _:
                yield Problem(str(path), f"{entry!r:.60} has no file, task_id and language")


def _inside(name: str) -> bool:
    """Whether a manifest's path stays in its folder."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts


def _lines(path: Path, suite: Suite) -> Iterator[Raw | Problem]:
    text = _text(path)
    if isinstance(text, Problem):
        yield text
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _line(line, f"{path}:{number}", suite)


def _line(line: str, origin: str, suite: Suite) -> Raw | Problem:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Problem(origin, f"not JSON, or cut short: {error}")
    match record:
        case {
            "level_id": int() | str() as level,
            "task_id": int() | str() as number,
            "custom_code": code,
        }:
            pass
        case _:
            return Problem(origin, "expected an object with level_id, task_id and custom_code")
    sample = record.get("sample_id", 0)
    named = f"level{level}/{number}"
    if not isinstance(code, str | None):
        return Problem(origin, f"{named}: custom_code is {code!r:.40}; expected text")
    if type(sample) is not int or sample < 0:
        return Problem(origin, f"{named}: sample_id is {sample!r}; expected a number from 0")
    try:
        task = suite.numbers.get((int(level), int(number)))
    except ValueError:
        task = None
    reference = record.get("ref_code")
    return Raw(
        task,
        named,
        sample,
        code or "",
        origin,
        reference=reference if isinstance(reference, str) else None,
    )


def _text(path: Path) -> str | Problem:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return Problem(str(path), "not UTF-8 text")
    except OSError as error:
        return Problem(str(path), f"cannot be read ({error.strerror})")
