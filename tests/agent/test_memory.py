"""Technique notes: written from confirmed wins alone, recalled by likeness, leaking nothing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import OptimizeConfig, load_optimize
from agent.journals.journal import Journal
from agent.loop.campaign import run_campaign
from agent.memory.features import operators, techniques
from agent.memory.notes import Memory, Note, append_notes, line_of, note_lines, read_notes
from agent.memory.recall import Skills, ranked, words
from agent.memory.remember import notes_of
from agent.models.settings import ModelConfig
from agent.proposers import open_proposers
from agent.replay import replay_run
from agent.runs import open_run
from agent.strategies.best_of_n import BestOfN
from agent.types import Measured
from sandbox.errors import ConfigError
from sandbox.figures import Interval
from sandbox.types import Language, Task
from tests.agent.scripts import local_engine
from tests.doubles.openai_server import OpenAIServer

SOFTMAX = """\
class Model(nn.Module):
    def forward(self, x):
        return F.softmax(x.float() @ self.w, dim=-1)
def get_inputs():
    return [torch.randn(3)]
"""
NOTE = Note(
    id="1",
    task_id="builtin/softmax",
    task_hash="h1",
    operators=("matmul", "softmax"),
    device="cpu",
    hardware="EPYC",
    dtype="float32",
    language=Language.CPP,
    bottleneck="memory-bound",
    techniques=("vectorisation", "threads"),
    feature="fusion",
    speedup=Interval(2.0, 1.9, 2.1),
    over_parent=1.25,
    roofline=0.6,
    source="class ModelNew: secret\n",
)


def task(id: str, body: str = "return F.softmax(x, -1)", device: str = "cpu") -> Task:
    source = f"class Model(nn.Module):\n    def forward(self, x):\n        {body}\n"
    return Task(id, source, device)


def test_operators_are_the_references_own_in_one_spelling():
    assert operators(SOFTMAX) == ("matmul", "softmax")
    norm = "class Model:\n    def __init__(self):\n        self.n = nn.LayerNorm(3)"
    assert operators(norm) == ("layernorm",)
    assert operators("class Model:\n    def forward(s, x): return F.layer_norm(x)") == (
        "layernorm",
    )
    made = "class Model:\n    def __init__(s):\n        s.register_buffer('b', torch.ones(3))"
    assert operators(made) == ()
    assert operators("no python (") == ()


def test_techniques_are_named_as_questions_name_them():
    source = "__shared__ float s[32]; float4 v; __shfl_down_sync(m, x, 1);"
    assert techniques(source, Language.CUDA) == ("tiling", "vector access", "warp primitives")
    openmp = "#pragma omp parallel for\n#pragma omp simd reduction(+ : s)"
    found = techniques(openmp, Language.CPP)
    assert found == ("vectorisation", "accumulators", "threads")


def test_a_note_says_what_bounded_what_was_done_and_what_was_measured():
    assert words(NOTE) == (
        "matmul, softmax in float32, memory-bound: cpp with vectorisation, threads "
        "(asked for: fusion): 2.00x [1.90, 2.10] against eager, 1.25x of what it was made from, "
        "60 % of the roofline on EPYC"
    )
    unknown = replace(NOTE, bottleneck="unknown", feature="", over_parent=None, roofline=None)
    assert words(unknown) == (
        "matmul, softmax in float32: cpp with vectorisation, threads: 2.00x [1.90, 2.10] against"
        " eager on EPYC"
    )


def test_the_most_alike_comes_first_and_strangers_never():
    other = replace(NOTE, id="2", task_hash="h2", operators=("conv2d",))
    near = replace(NOTE, id="3", task_hash="h3", operators=("softmax",))
    gpu = replace(NOTE, id="4", task_hash="h4", device="cuda")
    wanted = Task("t", SOFTMAX, "cpu")
    assert [n.id for n in ranked([other, near, gpu, NOTE], wanted, None)] == ["1", "3"]


def test_of_notes_on_one_task_the_fastest_is_recalled_and_equal_ones_in_a_fixed_order():
    slow = replace(NOTE, id="0", speedup=Interval(1.2, 1.1, 1.3))
    assert [n.id for n in ranked([slow, NOTE], Task("t", SOFTMAX, "cpu"), None)] == ["1"]
    twin = replace(NOTE, id="9", task_hash="h9")
    for notes in ([NOTE, twin], [twin, NOTE]):
        assert [n.id for n in ranked(notes, Task("t", SOFTMAX, "cpu"), None)] == ["1", "9"]


def test_what_bounds_the_task_decides_between_notes_that_are_else_alike():
    launch = replace(NOTE, id="2", task_hash="h2", bottleneck="launch-bound")
    measured = Measured(eager_ms=0.004, floor_ms=0.001, launch_s=2e-6)
    found = ranked([NOTE, launch], Task("t", SOFTMAX, "cpu"), measured)
    assert [n.id for n in found] == ["2", "1"]


def test_the_file_takes_each_note_once_and_survives_a_torn_line(tmp_path):
    path = tmp_path / "deep" / "notes.jsonl"
    assert append_notes(path, [NOTE, NOTE]) == 1
    assert append_notes(path, [NOTE]) == 0
    path.write_text(path.read_text() + '{"torn')
    assert append_notes(path, [replace(NOTE, id="2")]) == 1
    assert [note.id for note in read_notes(path)] == ["1", "2"]
    assert read_notes(path)[0] == NOTE


def test_a_note_whose_kernel_holds_a_line_separator_is_one_line(tmp_path):
    path = tmp_path / "notes.jsonl"
    note = replace(NOTE, source="# one\u2028two\x85\nclass ModelNew: ...\n")
    assert [append_notes(path, [note]) for _ in range(2)] == [1, 0]
    assert read_notes(path) == [note]


def test_a_newer_note_is_left_out_and_an_unreadable_file_is_said(tmp_path):
    path = tmp_path / "notes.jsonl"
    record = json.loads(line_of(NOTE)) | {"schema_version": 99}
    path.write_text(json.dumps(record) + "\n")
    assert read_notes(path) == []
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_notes(path)
    assert read_notes(tmp_path / "none") == []


def test_a_file_of_something_else_is_not_taken_for_a_memory(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("what I wrote\n[1, 2]\n")
    for refused in (lambda: read_notes(path), lambda: append_notes(path, [NOTE])):
        with pytest.raises(ConfigError, match="holds no notes"):
            refused()
    assert path.read_text() == "what I wrote\n[1, 2]\n"
    with pytest.raises(ConfigError, match="no such memory file"):
        note_lines(Memory(str(tmp_path / "none"), write=False))
    assert note_lines(Memory(str(tmp_path / "none"))) == []


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, []),
        ({"sources": True}, ["builtin/softmax"]),
        ({"sources": True, "held_out": ("builtin/*",)}, ["kernelbench/level1/1_x"]),
        (
            {"sources": True, "held_out_sources": True},
            ["builtin/softmax", "kernelbench/level1/1_x"],
        ),
    ],
)
def test_kernels_of_held_out_tasks_are_never_read_unless_allowed(tmp_path, settings, shown):
    """Whoever wrote the file: another campaign may have allowed what this one does not."""
    path = tmp_path / "notes.jsonl"
    held_out = replace(NOTE, id="2", task_hash="h2", task_id="kernelbench/level1/1_x")
    append_notes(path, [NOTE, held_out])
    memory = Memory(str(path), **settings)
    lines = note_lines(memory)
    assert [json.loads(x)["task_id"] for x in lines if json.loads(x)["source"]] == shown
    told = Skills([NOTE], memory).about(Task("t", SOFTMAX, "cpu"), None)
    assert (told.source is not None) == ("builtin/softmax" in shown)


# --- through a campaign -------------------------------------------------------------------------

TASKS = [task("builtin/won"), task("builtin/refuted"), task("kernelbench/held")]


def answering(prompt: str, number: int) -> str:
    confirmed = 1.0 if "id: builtin/refuted" in prompt else 2.0
    line = f"# scripted: speedup=2.0 confirmed={confirmed}"
    return f"```python\n{line}\nS = 'omp parallel'\nclass ModelNew: secret = {number}\n```\n"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch):
    with OpenAIServer([], any_model=True, answering=answering) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield server


def run(runs: Path, name: str, memory: Memory | None, tasks: Sequence[Task] = TASKS) -> list[Note]:
    """A campaign; returns the notes that its journal supports."""
    config = OptimizeConfig(
        device="cpu",
        models=(ModelConfig("m"),),
        strategy=BestOfN(),
        memory=memory,
        keep_replies=False,
        proposals_per_round=1,
        max_candidates_per_task=1,
    )
    engine = local_engine()
    with (
        open_run(name, config, runs) as journal,
        open_proposers(journal, config, {}) as proposers,
    ):
        run_campaign(tasks, proposers, engine, journal, config.campaign())
        found = notes_of(journal, memory or Memory("unused"))
    engine.close()
    return found


def prompts(runs: Path, name: str) -> str:
    with Journal(runs / name, read_only=True) as journal:
        rows = [r for t in journal.tasks() for r in journal.proposals(t.id)]
    return "\n".join(row.proposal.prompt or "" for row in rows)


def test_only_confirmed_wins_are_noted_and_no_kernel_unless_asked_for(tmp_path, endpoint):
    memory = Memory(str(tmp_path / "notes.jsonl"))
    run(tmp_path, "first", memory)
    notes = read_notes(tmp_path / "notes.jsonl")
    assert [n.task_id for n in notes] == ["builtin/won", "kernelbench/held"]
    assert [(n.techniques, n.source) for n in notes] == [(("threads",), None)] * 2
    assert notes[0].speedup.value == 2.0
    assert "secret" not in (tmp_path / "notes.jsonl").read_text()


def test_kernels_are_written_for_tasks_that_are_not_held_out(tmp_path, endpoint):
    run(tmp_path, "first", Memory(str(tmp_path / "notes.jsonl"), sources=True))
    sources = {n.task_id: n.source for n in read_notes(tmp_path / "notes.jsonl")}
    assert "secret" in (sources["builtin/won"] or "")
    assert sources["kernelbench/held"] is None


def test_the_next_campaign_is_told_and_without_memory_none_is(tmp_path, endpoint):
    memory = Memory(str(tmp_path / "notes.jsonl"))
    run(tmp_path, "first", memory)
    run(tmp_path, "told", memory, [task("other")])
    run(tmp_path, "untold", None, [task("other")])
    assert "# Confirmed on similar tasks before" in prompts(tmp_path, "told")
    assert "softmax in float32" in prompts(tmp_path, "told")
    assert "Confirmed on similar" not in prompts(tmp_path, "untold")
    assert "Confirmed on similar" not in prompts(tmp_path, "first"), "there was nothing to tell"


def test_a_campaign_keeps_to_the_notes_it_began_with(tmp_path, endpoint):
    memory = Memory(str(tmp_path / "notes.jsonl"))
    run(tmp_path, "first", memory)
    run(tmp_path, "second", memory, [task("other")])
    append_notes(tmp_path / "notes.jsonl", [replace(NOTE, id="new", hardware="a newer machine")])
    run(tmp_path, "second", memory, [task("other"), task("another")])
    assert "a newer machine" not in prompts(tmp_path, "second")
    (tmp_path / "notes.jsonl").unlink()
    assert replay_run(tmp_path / "second", "again", tmp_path)[1] == []


def test_a_memory_that_is_only_read_stays_as_it_is(tmp_path, endpoint):
    path = tmp_path / "notes.jsonl"
    append_notes(path, [NOTE])
    before = path.read_text()
    run(tmp_path, "first", Memory(str(path), write=False))
    assert path.read_text() == before


def test_memory_is_off_unless_a_config_names_a_file(tmp_path):
    assert load_optimize().memory is None
    path = tmp_path / "c.yaml"
    path.write_text("memory: {file: n.jsonl, recalled: 2}\n")
    assert load_optimize(str(path)).memory == Memory("n.jsonl", recalled=2)
    path.write_text("memory: {recal: 2}\n")
    with pytest.raises(ConfigError, match="did you mean 'memory\\.recalled'"):
        load_optimize(str(path))
