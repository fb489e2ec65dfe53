"""A library is judged again: verdicts, the table that follows, exit codes."""

import errno
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import warpsmith
from agent.export.artefact import Gathered, gather, read_artefact
from agent.export.manifest import read_manifest
from agent.export.package import export_package
from agent.export.revalidate import Verdict, compare, lines, revalidate
from agent.proposing.scripted import scripted_evaluation
from sandbox.errors import ConfigError
from sandbox.machine.device import fingerprint
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task
from tests.agent.export_library import cpp_campaign

NAME = "checked_kernels"
ELSEWHERE = {"device": "cpu", "cpu": "Other", "threads": "96"}


@dataclass
class Again:
    """An evaluator whose second opinion is scripted: (status, speedup) by task."""

    opinions: dict[str, tuple[Status, float]]
    closed: bool = False

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        status, speedup = self.opinions.get(task.id, (Status.PASSED, 3.0))
        found = scripted_evaluation(candidate, config, status, speedup)
        return replace(found, environment=fingerprint("cpu"), parameters="name")

    def __call__(self) -> "Again":
        """It makes itself, as `revalidate` asks."""
        return self

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def gathered(tmp_path_factory) -> Gathered:
    run = tmp_path_factory.mktemp("campaign") / "run"
    return gather([cpp_campaign(run, bias_relu="speedup=3", signs="speedup=3")])


@pytest.fixture(scope="module")
def exported(gathered, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "out"
    export_package(gathered, folder, NAME)
    return folder


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    return shutil.copytree(exported, tmp_path / "out")


def found(folder: Path, field: str) -> dict[str, list[object]]:
    """By operator, of the shape that is timed, machine by machine."""
    record = json.loads((folder / "source" / NAME / "library.json").read_text())
    return {
        o["name"]: [r[field] for r in o["rows"] if r["state"] != "correct, not timed"]
        for o in record["operators"]
    }


def states(folder: Path) -> dict[str, list[object]]:
    return found(folder, "state")


@pytest.mark.slow
def test_a_library_that_cannot_be_written_is_refused_before_anything_is_judged(
    folder, monkeypatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    judges = Again({})
    with pytest.raises(ConfigError, match=r"out: cannot be written \(Read-only file system\)"):
        revalidate(folder, "cpu", judges)
    assert not judges.closed  # none was made


@pytest.mark.parametrize(
    ("status", "speedup", "verdict", "state"),
    [
        (Status.PASSED, 3.0, Verdict.PASSES, "active"),
        (Status.PASSED, 2.0, Verdict.DRIFTS, "active"),
        (Status.PASSED, 1.1, Verdict.REGRESSES, "faster than eager, not faster than compile"),
        (Status.WRONG_VALUE, 1.0, Verdict.INVALID, "WRONG_VALUE when checked again"),
        (Status.SANDBOX_ERROR, 1.0, Verdict.UNJUDGED, "active"),
    ],
)
@pytest.mark.slow
def test_the_table_follows_what_is_found(folder, status, speedup, verdict, state):
    outcomes = revalidate(folder, "cpu", Again({"test/signs": (status, speedup)}))
    assert {o.artefact.operator: o.verdict for o in outcomes} == {
        "bias_relu": Verdict.PASSES,
        "signs": verdict,
    }
    assert states(folder)["signs"] == [state]
    assert verdict.value in lines(outcomes)[2]
    count = 2 if verdict is Verdict.PASSES else 1  # that of bias_relu is among them
    assert f"{verdict.value}: {count}" in lines(outcomes)[-1].split(", ")
    assert len(list((folder / "dist").glob("*.whl"))) == 1
    read_manifest(folder)  # covers what was written anew


@pytest.mark.slow
def test_a_library_from_elsewhere_is_used_after_it_was_checked_here(gathered, tmp_path):
    moved = tuple(
        replace(
            a,
            findings=tuple(
                replace(f, evaluation=replace(f.evaluation, environment=ELSEWHERE))
                for f in a.findings
            ),
        )
        for a in gathered.artefacts
    )
    export_package(Gathered(moved, ()), tmp_path, NAME)
    outcomes = revalidate(tmp_path, "cpu", Again({"test/signs": (Status.PASSED, 0.8)}))
    assert all(o.before is None for o in outcomes)
    assert "new here" in lines(outcomes)[1]
    record = json.loads((tmp_path / "source" / NAME / "library.json").read_text())
    rows = {(o["name"], r["machine"]): r for o in record["operators"] for r in o["rows"][::-1]}
    assert rows["signs", "Other x96"]["state"] == "active"
    here = [row for (name, machine), row in rows.items() if machine != "Other x96"]
    assert sorted(row["state"] for row in here) == ["active", "no win"]
    assert all(row["checked"].startswith("revalidated ") for row in here)


@pytest.mark.parametrize(("speedup", "beats"), [(3.0, True), (1.1, True), (1.0, False)])
@pytest.mark.slow
def test_what_is_faster_than_eager_alone_is_known_after_it_was_checked(folder, speedup, beats):
    revalidate(folder, "cpu", Again({"test/signs": (Status.PASSED, speedup)}))
    assert found(folder, "beats_eager") == {"bias_relu": [True], "signs": [beats]}


def test_a_kernel_that_passes_and_is_not_called_says_why(folder, monkeypatch):
    monkeypatch.setattr("agent.export.artefact.operator_ms", lambda *_: 9.0)
    outcomes = revalidate(folder, "cpu", Again({}))
    assert {o.verdict for o in outcomes} == {Verdict.PASSES}
    why = "the reference does its calls: saves less than calling an operator costs"
    assert {o.detail for o in outcomes} == {why}
    assert f"passes: {why}" in "\n".join(lines(outcomes))


@pytest.mark.slow
def test_every_opinion_is_kept(folder):
    revalidate(folder, "cpu", Again({}))
    revalidate(folder, "cpu", Again({}))
    [path] = (folder / "artefacts").glob("signs-*")
    purposes = [f.purpose for f in read_artefact(path).findings]
    assert purposes == ["search", "confirm", "revalidate", "revalidate"]


@pytest.mark.slow
def test_kernels_of_another_device_are_not_judged(folder):
    outcomes = revalidate(folder, "cuda", Again({}))
    assert {o.verdict for o in outcomes} == {Verdict.UNJUDGED}
    assert states(folder) == {"bias_relu": ["active"], "signs": ["active"]}


def test_a_failure_of_ours_is_no_verdict_on_a_kernel():
    candidate = Candidate("test/x", Language.CPP, "")
    fault = scripted_evaluation(candidate, EvalConfig(), Status.SANDBOX_ERROR, 1.0)
    assert compare(None, fault) is Verdict.UNJUDGED
    assert not Verdict.UNJUDGED.fine


@pytest.mark.parametrize("damage", ["missing", "tampered", "manifest", "deep", "modelnew"])
def test_what_is_no_library_is_one_clear_line(folder, capsys, damage):
    if damage == "missing":
        shutil.rmtree(folder)
    elif damage == "tampered":
        [path] = (folder / "artefacts").glob("signs-*")
        path.write_text(path.read_text().replace("> 0.0f", ">= 0.0f"))
    elif damage == "manifest":
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace('"recompute"', '"none"'))
    elif damage == "deep":
        (folder / "manifest.json").write_text("[" * 100_000)
    else:
        (folder / "manifest.json").write_text('{"schema_version": 1, "kernels": []}')
    with pytest.raises(SystemExit) as end:
        warpsmith.main(["revalidate", str(folder), "--device", "cpu"])
    [line] = capsys.readouterr().err.splitlines()
    assert end.value.code == warpsmith.UNUSABLE
    assert line.startswith("warpsmith: ")


def test_what_was_put_beside_the_artefacts_is_not_judged(folder):
    [signs] = (folder / "artefacts").glob("signs-*")
    (folder / "artefacts" / "other.json").write_text(signs.read_text().replace("signs", "other"))
    assert {o.artefact.operator for o in revalidate(folder, "cpu", Again({}))} == {
        "bias_relu",
        "signs",
    }


def test_a_damaged_library_is_not_written_anew(folder):
    [page] = (folder / "pages").glob("signs-*")
    page.write_text("changed")
    with pytest.raises(ConfigError, match="not as exported"):
        revalidate(folder, "cpu", Again({}))
    assert page.read_text() == "changed"
