"""What an export may replace: nothing, or an older one of its own format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.export.artefact import Gathered
from agent.export.flashinfer import export_flashinfer
from agent.export.folder import BEGINS, KEYS, MANIFEST, STAGE, check_folder, format_of, staged
from agent.export.formats import FORMATS, PACKAGE, UNKNOWN, check_formats, export_formats
from agent.export.hub import export_hub
from agent.export.kernelbench_runs import export_kernelbench
from agent.export.manifest import read_manifest
from agent.export.modelnew import export_run, export_runs
from agent.export.package import export_package
from sandbox.errors import ConfigError
from tests.agent.export_cuda import cuda_artefact, gathered
from tests.agent.export_library import cpp_campaign
from tests.agent.scripts import campaign, script

OLDEST = {
    "modelnew": {"schema_version": 1, "run": "first"},
    "package": {"schema_version": 2, "package": "a_b", "version": "0.1.0", "left_out": {}},
    "kernels": {"schema_version": 2, "repository": "a-b", "version": "0", "left_out": {}},
    "kernelbench": {"schema_version": 1, "left_out": {}},
    "flashinfer": {"schema_version": 2, "dataset": "warpsmith", "left_out": {}},
}
"""What the first version of each wrote, but for what follows."""
FOREIGN = {
    "an extension": '{"manifest_version": 3, "name": "mine", "version": "1.0"}',
    "nearly ours": '{"schema_version": 1, "run": "mine", "kernels": ["softmax"]}',
    "a list": "[]",
    "no JSON": "mine",
    "too deep": "[" * 100_000,
}
OWNED = ("source", "dist", "pages", "artefacts", "build", "runs", "modelnew", "definitions")


def old_manifest(format: str) -> dict:
    entry = {"task_id": "test/a", "candidate_id": "0"}
    record = OLDEST[format] | {"kernels": [entry]}
    record |= {"files": {}} if record["schema_version"] == 2 else {}
    return record | ({"without_layer": {}} if format == "kernels" else {})


def export(format: str, run: Path, folder: Path) -> list[Path]:
    """By the function of each format, as the commands and `revalidate` call it."""
    ready = gathered(cuda_artefact())
    match format:
        case "package":
            return export_package(ready, folder, "a_b")
        case "kernels":
            return export_hub(ready, folder, "a_b")
        case "flashinfer":
            return export_flashinfer(ready, folder, lambda task: None)
        case "kernelbench":
            return export_kernelbench([], folder, lambda task: None)
    return export_run(run, folder)


def contents(folder: Path) -> dict[str, str]:
    return {str(p): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "first"
    campaign(folder, {"a": [script(1, speedup=2.0)]})
    return folder


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """A folder of the user's, with everything that an export would replace."""
    for name in OWNED:
        (tmp_path / "mine" / name).mkdir(parents=True)
        (tmp_path / "mine" / name / "notes.txt").write_text("mine")
    (tmp_path / "mine" / "test__a.py").write_text("mine")
    return tmp_path / "mine"


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_without_a_manifest_is_left_alone(run, users, format):
    before = contents(users)
    with pytest.raises(ConfigError, match="holds other files, such as artefacts; expected a new"):
        export(format, run, users)
    assert contents(users) == before


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_with_a_manifest_of_another_tool_is_left_alone(run, users, format, text):
    (users / MANIFEST).write_text(text)
    before = contents(users)
    with pytest.raises(ConfigError, match=r"holds a manifest.json that no export wrote; expected"):
        export(format, run, users)
    assert contents(users) == before


@pytest.mark.parametrize("kept", [0, 9, 60, -3])
@pytest.mark.parametrize("format", FORMATS)
def test_a_manifest_that_was_cut_short_is_damaged_and_nobody_elses(tmp_path, format, kept):
    text = json.dumps(old_manifest(format), indent=2) + "\n"
    (tmp_path / MANIFEST).write_text(text[:kept])
    with pytest.raises(ConfigError, match=r"holds a damaged manifest.json; expected a new"):
        check_folder(tmp_path, format)
    with pytest.raises(ConfigError, match=r"manifest.json: is damaged .*; export the library aga"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("other", FORMATS)
@pytest.mark.parametrize("format", FORMATS)
def test_an_export_of_another_format_is_left_alone(tmp_path, format, other):
    (tmp_path / MANIFEST).write_text(json.dumps(old_manifest(other)))
    if format == other:
        check_folder(tmp_path, format)
    else:
        with pytest.raises(ConfigError, match=f"holds an export of --format {other}; expected"):
            check_folder(tmp_path, format)


def test_every_format_is_told_from_a_folder():
    assert set(KEYS) == set(FORMATS) == set(OLDEST)


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_written_to_an_empty_folder_and_over_its_own(run, tmp_path, format):
    (tmp_path / "out").mkdir()
    first = export(format, run, tmp_path / "out")
    assert format_of(tmp_path / "out") == format
    assert (tmp_path / "out" / MANIFEST).read_text().startswith(BEGINS)
    assert export(format, run, tmp_path / "out") == first


def test_a_file_is_no_folder(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file; expected a new or empty folder"):
        export_run(run, tmp_path / "file")


def test_a_file_of_the_users_beside_an_older_export_is_left_alone(run, tmp_path):
    [kernel, _] = export_run(run, tmp_path / "out")
    kernel.write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"test__a.py: no export wrote it; move it"):
        export_run(run, tmp_path / "out")
    assert contents(tmp_path) == before


def test_exports_of_several_runs_may_follow_each_other_in_one_folder(run, tmp_path):
    campaign(tmp_path / "second", {"b": [script(1, speedup=2.0)]})
    for each in (run, tmp_path / "second", run):
        export_run(each, tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"test__a.py", "test__b.py", MANIFEST}


def test_of_several_runs_none_is_written_where_one_cannot_be(run, tmp_path):
    campaign(tmp_path / "second", {"b": []})
    (tmp_path / "out" / "second").mkdir(parents=True)
    (tmp_path / "out" / "second" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="second: holds other files"):
        export_runs([run, tmp_path / "second"], tmp_path / "out")
    assert not (tmp_path / "out" / "first").exists()


def test_two_runs_of_one_name_do_not_replace_each_other(run, tmp_path):
    (tmp_path / "other").mkdir()
    campaign(tmp_path / "other" / "first", {"b": [script(1, speedup=2.0)]})
    with pytest.raises(ConfigError, match="have one name: export them apart"):
        exported([run, tmp_path / "other" / "first"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(exported([run, run.parent / "first" / ".." / "first"], tmp_path / "out")) == 2


def exported(runs, folder, *formats):
    wanted = check_formats(formats or ["modelnew"], "a_b" if formats else PACKAGE, [])
    return export_formats(runs, folder, wanted, "cpu", lambda: pytest.fail("nothing is judged"))


def test_an_export_that_fails_leaves_no_folder_of_its_own(tmp_path):
    with pytest.raises(ConfigError, match="nothing for FlashInfer-Bench"):
        export_flashinfer(Gathered((), ()), tmp_path / "out", lambda task: None)
    assert not (tmp_path / "out").exists()


def test_of_several_formats_those_that_have_nothing_stop_no_other(tmp_path):
    run, told = cpp_campaign(tmp_path / "run", row_losses="speedup=2.0"), []
    names = ["flashinfer", "kernels", "modelnew"]
    wanted = check_formats(names, "a_b", [])
    paths = export_formats([run], tmp_path / "out", wanted, "cpu", pytest.fail, told.append)
    assert {p.relative_to(tmp_path / "out").parts[0] for p in paths} == {"kernels", "modelnew"}
    assert told[0].startswith("nothing for FlashInfer-Bench: test/row_losses: targets holds int")
    with pytest.raises(ConfigError, match=r"^nothing for FlashInfer-Bench: test/row_losses: tar"):
        exported([run], tmp_path / "alone", "flashinfer")


def test_of_several_formats_none_is_written_where_one_cannot_be(run, tmp_path):
    (tmp_path / "kernelbench").mkdir()
    (tmp_path / "kernelbench" / MANIFEST).write_text("{}")
    formats = check_formats(["modelnew", "kernelbench"], "a_b", [])
    with pytest.raises(ConfigError, match="kernelbench: holds a manifest"):
        export_formats([run], tmp_path, formats, "cpu", lambda: pytest.fail("nothing is judged"))
    assert not (tmp_path / "modelnew").exists()


def test_nothing_to_export_leaves_a_folder_of_the_users_alone(users):
    (users / MANIFEST).write_text("{}")
    before = contents(users)
    with pytest.raises(ConfigError):
        export_flashinfer(Gathered((), ()), users, lambda task: None)
    assert contents(users) == before


@pytest.mark.parametrize("older", [(), (MANIFEST, "runs/a.py")])
def test_an_export_that_is_interrupted_changes_nothing(tmp_path, older):
    for name in older:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    before = contents(tmp_path)

    def interrupted():
        with staged(tmp_path, ["runs"]) as stage:
            (stage / "runs").mkdir()
            (stage / "runs" / "b.py").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert contents(tmp_path) == before


def test_what_a_killed_export_left_is_in_nobodys_way(tmp_path):
    (tmp_path / f"{STAGE}killed").mkdir()
    (tmp_path / f"{STAGE}killed" / "half.py").write_text("half")
    check_folder(tmp_path, "package")
    with staged(tmp_path) as stage:
        (stage / MANIFEST).write_text("new")
    assert contents(tmp_path) == {str(tmp_path / MANIFEST): "new"}


def test_a_data_set_that_holds_nothing_new_leaves_the_older_one(tmp_path):
    export_flashinfer(gathered(cuda_artefact()), tmp_path, lambda task: None)
    older = contents(tmp_path)
    with pytest.raises(ConfigError, match="nothing for FlashInfer-Bench"):
        export_flashinfer(Gathered((), (("task", "no win"),)), tmp_path, lambda task: None)
    assert contents(tmp_path) == older


def test_what_only_a_library_has_is_not_taken_for_files_of_kernels():
    for given in (("mine", [], UNKNOWN), (PACKAGE, ["sm_90"], UNKNOWN), (PACKAGE, [], "MIT")):
        with pytest.raises(ConfigError, match="expected another --format, or leave them out"):
            check_formats(["modelnew"], *given)
        assert check_formats(["modelnew", "package"], *given).package == given[0]
