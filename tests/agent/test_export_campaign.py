"""From a measured campaign to an installed library that is judged again: nothing scripted but the
model's reply."""

import json
from pathlib import Path

import pytest

from tests.agent.export_venv import install, run_python
from tests.conftest import run
from tests.doubles.openai_server import OpenAIServer
from tests.test_end_to_end import CONFIG, PROBLEM, RIGHT, reply

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(400)]
USE = """
import torch
import measured_kernels as kernels

x = torch.randn(48, 256)
op = kernels.operator("recurrence")
found = op(x)
kernels.switch("recurrence", on=False)
torch.testing.assert_close(found, op(x))
assert kernels.counts()["recurrence"] == {"kernel": 1, "switched off": 1}, kernels.table()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A folder with a finished run and its export in `out`."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "recurrence.py").write_text(PROBLEM.replace("48, 64", "48, 256"))
    (folder / "config.yaml").write_text(
        CONFIG.replace("max_candidates_per_task: 4", "max_candidates_per_task: 1")
    )
    with OpenAIServer([reply(RIGHT)], key="key") as server:
        done = run(
            folder,
            *("optimize", "recurrence.py", "--model", "scripted", "--engine", "local"),
            *("--device", "cpu", "--config", "config.yaml", "--name", "first"),
            environment={"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "key"},
        )
    assert done.code == 0, done.err
    options = ("--format", "package", "--package", "measured_kernels", "--licence", "MIT")
    exported = run(folder, "export", "first", "--to", "out", *options)
    assert exported.code == 0, done.out + exported.err
    assert exported.out.split()[-1] == "out/manifest.json"
    return folder


def test_a_measured_winner_runs_where_it_is_installed(library, tmp_path):
    [wheel] = (library / "out" / "dist").glob("*.whl")
    run_python(install(wheel, tmp_path / "venv"), tmp_path, "-c", USE)


def test_a_measured_winner_still_wins_when_it_is_judged_again(library):
    done = run(library, "revalidate", "out", "--device", "cpu")
    assert done.code == 0, done.out + done.err
    assert "recurrence" in done.out
    [kernel] = json.loads((library / "out" / "manifest.json").read_text())["kernels"]
    purposes = [f["purpose"] for f in kernel["findings"]]
    assert purposes == ["search", "confirm", "revalidate"]
    assert len({f["machine"] for f in kernel["findings"]}) == 1
    assert kernel["findings"][-1]["speedup"]["low"] > 1
