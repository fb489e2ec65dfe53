"""A model's replies become verdicts, one winner and a file that runs: the whole path, nothing faked
but the model, whose HTTP server is real."""

import hashlib
import importlib.util
import json
from pathlib import Path
from textwrap import indent
from types import ModuleType

import pytest
import torch

from agent.journals.journal import Journal
from sandbox.types import Status
from tests.conftest import PROTOCOL, run
from tests.doubles.openai_server import OpenAIServer

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.decay = decay

    def forward(self, x):  # (ROWS, STEPS) float32
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = state * self.decay + x[:, step]
            states.append(state)
        return torch.tanh(torch.stack(states, 1))

def get_inputs():
    return [torch.randn(48, 64)]

def get_init_inputs():
    return [0.75]
"""
"""Some 200 small operations in eager, one in C++: a win by a factor on any machine."""

RIGHT = r'''import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cmath>
#include <cstdint>

// One row per iteration: state = state * decay + x, out = tanh(state).
extern "C" void decayed(const float* x, float* out, int64_t rows, int64_t steps, float decay) {
  for (int64_t row = 0; row < rows; ++row) {
    float state = 0.0f;
    for (int64_t i = row * steps; i < (row + 1) * steps; ++i) {
      state = state * decay + x[i];
      out[i] = std::tanh(state);
    }
  }
}
"""

LIBRARY = ctypes.CDLL(
    load_inline(
        name="decayed",
        cpp_sources=[SRC],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O3"],
    )
)
LIBRARY.decayed.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_float]
LIBRARY.decayed.restype = None


class ModelNew(nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.decay = decay

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        LIBRARY.decayed(x.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], self.decay)
        return out
'''
WRONG = RIGHT.replace("float state = 0.0f;", "float state = 1e-3f;")
MEMOISED = RIGHT.replace(
    "        out =",
    """        if x.data_ptr() in KNOWN:
            return KNOWN[x.data_ptr()]
        out = KNOWN[x.data_ptr()] =""",
).replace("LIBRARY = ", "KNOWN = {}\nLIBRARY = ")
SUPERBATCH = (
    RIGHT
    + """
import time
import sandbox.worker.session as session


def go(self, request, fds):
    time.sleep(0.03)  # One launch for all calls: what it costs does not depend on their number.
    model = ModelNew(0.75)
    self.results += [model(*self.arguments(index)) for index in request["sets"]]
    return {}


session.Session.do_go = go
"""
)
pytestmark = [pytest.mark.timeout(240), pytest.mark.alone]
KEY = "secret-of-this-test"
REPLIES = {
    WRONG: Status.WRONG_VALUE,
    MEMOISED: Status.WRONG_VALUE,
    SUPERBATCH: Status.REJECTED,
    RIGHT: Status.PASSED,
}
"""In the order the model gives them, each a repair of the one before where there are turns left."""

CONFIG = f"""
max_candidates_per_task: {len(REPLIES)}
proposals_per_round: 1
evaluation:
{indent(PROTOCOL, "  ")}
"""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a campaign that ran once, what it printed, and what the server was asked."""
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "recurrence.py").write_text(PROBLEM)
    (folder / "config.yaml").write_text(CONFIG)
    with OpenAIServer([reply(source) for source in REPLIES], key=KEY) as server:
        done = run(
            folder,
            *("optimize", "recurrence.py", "--model", "scripted", "--engine", "local"),
            *("--device", "cpu", "--config", "config.yaml", "--name", "first"),
            environment={"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY},
        )
    assert done.code == 0, done.err
    return folder, done, server.requests


@pytest.fixture(scope="module")
def exported(campaign) -> Path:
    folder, _, _ = campaign
    done = run(folder, "export", "first", "--to", "out")
    assert done.out.split() == ["out/file__recurrence.py", "out/manifest.json"]
    return folder / "out"


def test_every_kernel_has_its_status(campaign):
    folder, _, _ = campaign
    with Journal(folder / "runs" / "first", read_only=True) as journal:
        rows = journal.proposals("file/recurrence")
    found = {r.proposal.candidate.source: r.evaluation for r in rows}
    assert {source: e.status for source, e in found.items()} == REPLIES
    assert ", in haste: " in found[MEMOISED].detail
    assert "harness" in found[SUPERBATCH].detail
    assert all(e.detail and "\n" not in e.detail for e in found.values() if not e.passed)
    ran = [e for e in found.values() if e.status is not Status.REJECTED]
    assert all({"build", "load"} <= set(e.seconds) for e in ran)


def test_there_is_one_winner_and_it_was_measured_again(campaign):
    folder, done, _ = campaign
    [task] = json.loads(run(folder, "show", "first", "--json").out)["tasks"]
    assert (task["verdict"], task["confirmed"], task["candidates"]) == ("win", True, len(REPLIES))
    assert task["best"]["source"] == RIGHT
    assert task["speedup"]["low"] > 1
    assert f"{len(REPLIES)} candidates, 1 win" in done.out
    assert "model: scripted" in done.out
    [plan] = done.err.splitlines()  # what will be asked of the model, before it is
    assert plan.startswith("scripted: ")


def test_the_model_is_told_what_was_wrong(campaign):
    _, _, requests = campaign
    assert [r.path for r in requests] == ["/v1/chat/completions"] * len(REPLIES)
    first, second, third, _ = (r.body["messages"][-1]["content"] for r in requests)
    assert "class Model(nn.Module)" in first
    assert "WRONG_VALUE" in second
    assert WRONG.strip() in second
    assert ", in haste: " in third


def test_the_winner_is_audited(campaign):
    folder, _, _ = campaign
    done = run(folder, "audit", "first")
    assert done.code == 0, done.err
    assert "every timed output was compared" in " ".join(done.out.split())


def test_the_key_is_nowhere_on_disk(campaign):
    folder, _, _ = campaign
    kept = [p.read_bytes() for p in folder.rglob("*") if p.is_file()]
    assert kept
    assert not any(KEY.encode() in content for content in kept)


def test_the_manifest_says_what_was_proven(exported):
    record = json.loads((exported / "manifest.json").read_text())
    [entry] = record["kernels"]
    assert (record["run"], entry["task_id"], entry["language"]) == (
        "first",
        "file/recurrence",
        "cpp",
    )
    assert (entry["status"], entry["confirmed"], entry["proposer"]) == ("PASSED", True, "scripted")
    assert 1 < entry["interval"]["low"] <= entry["speedup"]
    kernel = exported / entry["file"]
    assert entry["sha256"] == hashlib.sha256(kernel.read_bytes()).hexdigest()


def test_the_exported_file_stands_alone_and_equals_the_reference(
    exported, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    text = (exported / "file__recurrence.py").read_text()
    for package in ("agent", "sandbox", "kernelbench", "warpsmith"):
        assert f"import {package}" not in text
        assert f"from {package}" not in text
    problem = module_of(exported.parent / "recurrence.py")
    kernel = module_of(exported / "file__recurrence.py")
    inputs = problem.get_inputs()
    wanted = problem.Model(*problem.get_init_inputs())(*inputs)
    found = kernel.ModelNew(*problem.get_init_inputs())(*inputs)
    torch.testing.assert_close(found, wanted)


def reply(source: str) -> str:
    return f"Here it is.\n\n```python\n{source}```\n"


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
