"""Training data from journals: the campaign's own prompts, distinct, split by task and family."""

from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="needs the train extra")

from datasets import Dataset, DatasetDict

from agent.config import OptimizeConfig
from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.model import ScriptedModel
from agent.proposing.model_proposer import ModelProposer
from agent.proposing.replies import extract
from agent.proposing.scripted import scripted_evaluation
from agent.strategies.best_of_n import BestOfN
from agent.types import Measured, Turn
from kernelbench.similarity import Known
from kernelbench.suite import load_tasks
from rewards import speedup
from rl.config import HeldOut, TrainConfig
from rl.data import (
    build_dataset,
    composition_of,
    examples_of,
    family_of,
    load_examples,
    reply_of,
    save_dataset,
    split_of,
)
from rl.plain import plain
from sandbox.errors import ConfigError
from sandbox.types import EvalConfig, Status, Task

FACTS = {"CPU": "two cores"}
MEASURED = Measured(eager_ms=0.5)
TRAIN = TrainConfig()
EVERYTHING = HeldOut(families=0.0, tasks=0.0)


@pytest.fixture
def journal(tmp_path: Path):
    """Three kernels of each of two tasks, each half as fast again as the one before."""
    with Journal(tmp_path) as found:
        found.record_config(OptimizeConfig())
        found.record_facts(FACTS)
        for task in [*load_tasks("builtin/sigmoid", "cpu"), *load_tasks("builtin/relu", "cpu")]:
            found.record_task(task)
            found.record_measured(task.id, MEASURED)
            proposals = FeatureProposer().propose(task, [], 3)
            found.record_proposals(0, proposals)
            for number, proposal in enumerate(proposals):
                figure = scripted_evaluation(
                    proposal.candidate, EvalConfig(), Status.PASSED, 1.5 ** (number + 1)
                )
                found.record_evaluation(task, figure, reward=speedup.reward(figure))
        yield found


def test_a_policy_learns_the_prompt_that_the_campaign_asks(journal):
    task = journal.tasks()[0]
    proposer = ModelProposer(ScriptedModel([]), FACTS, BestOfN(), policy=EvalConfig())
    [ask] = proposer.asks(task, [], 1, Turn(0, MEASURED))
    learnt = [
        e for e in examples_of(journal, TRAIN) if e.task_id == task.id and e.kind == "propose"
    ]
    assert [e.messages for e in learnt] == [ask.messages] * 3


def test_every_reply_holds_the_kernel_that_was_verified(journal):
    sources = {
        plain(a.proposal.candidate.source) for t in journal.tasks() for a in journal.attempts(t.id)
    }
    assert {extract(e.reply).source for e in examples_of(journal, TRAIN)} == sources
    assert all("features_" not in source for source in sources)


def test_a_contrast_leads_to_something_faster_than_all_that_is_shown(journal):
    found = [e for e in examples_of(journal, TRAIN) if e.kind == "contrast"]
    assert len(found) == 4
    for example in found:
        text = example.messages[1]["content"]
        assert extract(example.reply).source not in text
        assert "(score: " in text
        assert f"{example.speedup / 0.98:.2f}x" not in text


def test_a_lesson_shows_as_many_exemplars_as_the_campaign_will(journal):
    """And from its buckets: one that holds all leaves nothing slower to be shown beside it."""
    for shown in (1, 2):
        config = TrainConfig(exemplars=shown)
        found = [e for e in examples_of(journal, config) if e.kind == "contrast"]
        most = [e.messages[1]["content"].count("## Implementation ") for e in found]
        assert max(most) == shown
    wide = TrainConfig(exemplars=2, bucket_width=10.0)
    found = [e for e in examples_of(journal, wide) if e.kind == "contrast"]
    assert {e.messages[1]["content"].count("## Implementation ") for e in found} == {1}


def test_equal_kernels_count_once_and_data_survives_the_disk(journal, tmp_path):
    once = list(examples_of(journal, TRAIN))
    dataset = build_dataset(once + once, EVERYTHING)
    save_dataset(dataset, tmp_path / "data")
    kept = load_examples(tmp_path / "data")
    assert sorted(kept, key=repr) == sorted(once, key=repr)
    with pytest.raises(ConfigError, match="exists already"):
        save_dataset(dataset, tmp_path / "data")


def test_nothing_is_printed_while_data_are_written(journal, tmp_path, capfd):
    save_dataset(build_dataset(examples_of(journal, TRAIN), EVERYTHING), tmp_path / "data")
    assert capfd.readouterr() == ("", "")


def test_what_is_held_out_is_not_trained_on(journal):
    with pytest.raises(ConfigError, match="hold out less"):
        build_dataset(examples_of(journal, TRAIN), HeldOut(families=1.0))


def test_a_lesson_begins_with_the_statements_that_its_kernel_quotes():
    """Two that are alike have numbers of their own."""
    [task] = load_tasks("synthetic/rows-0-10834", "cuda")
    [proposal] = FeatureProposer().propose(task, [], 1)
    statements = [
        "1: a = torch.sigmoid(x)",
        "2: a = torch.log1p(torch.abs(a))",
        "3: a = torch.maximum(a, y)",
        "4: a = torch.log1p(torch.abs(a))",
        "5: return torch.log_softmax(a, dim=-1)",
    ]
    for kind in ("propose", "contrast"):
        reply = reply_of(proposal, kind)
        before, code = reply.split("```python")
        assert "\n".join(statements) in before
        assert all(f"\n// {statement}\n" in code for statement in statements)


def _proposed(journal):
    return [e for e in examples_of(journal, TRAIN) if e.kind == "propose"]


def test_tasks_that_call_the_same_operators_are_one_family():
    sigmoid, relu, softmax = (
        load_tasks(f"builtin/{name}", "cpu")[0] for name in ("sigmoid", "relu", "softmax")
    )
    assert family_of(sigmoid) == "sigmoid"
    assert len({family_of(t) for t in (sigmoid, relu, softmax)}) == 3


def test_references_that_differ_in_names_and_sizes_alone_are_in_one_split():
    """Suites of two seeds have compositions in common: a fifth of what one held out, the other
    trained on.
    """
    held_out = HeldOut(families=0.1, tasks=0.3)
    splits: dict[str, set[str]] = {}
    for spec in ("synthetic:rows:300", "synthetic:rows:300@1", "synthetic:any:300"):
        for task in load_tasks(spec, "cpu"):
            splits.setdefault(composition_of(task), set()).add(split_of(task, held_out))
    assert all(len(found) == 1 for found in splits.values())
    assert len(splits) < 880
    assert len(set.union(*splits.values())) == 3


def test_a_size_is_held_out_of_what_is_left_to_train_on():
    tasks = load_tasks("synthetic:rows:300", "cpu")
    without, held_out = HeldOut(0.1, 0.1), HeldOut(0.1, 0.1, sizes=("512x512",))
    moved = [t for t in tasks if split_of(t, held_out) != split_of(t, without)]
    assert 15 < len(moved) < 60
    for task in moved:
        assert (split_of(task, without), split_of(task, held_out)) == ("train", "held_out_size")
    left = [t for t in tasks if split_of(t, held_out) == "train"]
    assert {t.shapes[0].name for t in moved} == {"512x512"}
    assert "512x512" not in {t.shapes[0].name for t in left}


def test_a_data_set_of_another_version_is_named(journal, tmp_path):
    dataset = build_dataset(examples_of(journal, TRAIN), EVERYTHING).remove_columns("composition")
    save_dataset(dataset, tmp_path / "data")
    with pytest.raises(ConfigError, match="make it again"):
        load_examples(tmp_path / "data")


def test_a_data_set_that_says_something_else_is_one_line(journal, tmp_path):
    whole = build_dataset(examples_of(journal, TRAIN), EVERYTHING)
    rows = whole["train"].to_list()
    others = {
        "no rows": whole["train"].select([]),
        "no messages": Dataset.from_list([{**rows[0], "messages": None}]),
        "half a message": Dataset.from_list([rows[0] | {"messages": [{"role": "user"}]}]),
        "no text": Dataset.from_list([{**rows[0], "reply": 3}]),
    }
    for name, other in others.items():
        DatasetDict(train=other).save_to_disk(tmp_path / name)
        with pytest.raises(ConfigError, match=f"{name}: .*; `warpsmith data examples` makes it"):
            load_examples(tmp_path / name)
    save_dataset(whole, tmp_path / "data")
    for file in ("dataset_dict.json", "train/state.json", "train/dataset_info.json"):
        before = (tmp_path / "data" / file).read_text()
        for text in ("[]", "{"):
            (tmp_path / "data" / file).write_text(text)
            with pytest.raises(ConfigError, match="damaged training data; `warpsmith data ex"):
                load_examples(tmp_path / "data")
        (tmp_path / "data" / file).write_text(before)
    assert len(load_examples(tmp_path / "data")) == len(rows)


def test_a_folder_that_exists_is_refused_before_anything_is_made(tmp_path, cli):
    """Thousands of kernels took minutes, and were then not written."""
    (tmp_path / "data").mkdir()
    made = ("--made", "no_such_suite=1000")
    done = cli(tmp_path, "data", "examples", "no_such_run", "--to", "data", *made)
    assert (done.code, done.err) == (2, "warpsmith: data: exists already; name another folder\n")


class Torn:
    """A data set in the midst of whose writing the process ends."""

    def save_to_disk(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
        raise KeyboardInterrupt


def test_a_data_set_that_was_half_written_is_made_anew_by_the_same_command(journal, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        save_dataset(Torn(), tmp_path / "data")
    dataset = build_dataset(examples_of(journal, TRAIN), EVERYTHING)
    save_dataset(dataset, tmp_path / "data")
    assert len(load_examples(tmp_path / "data")) == len(dataset["train"])


NAMED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.{0} = nn.Linear(64, 64)
        self.{1} = nn.LayerNorm(64)

    def forward(self, x):
        return {2}(self.{1}(self.{0}(x)))

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
HELPER = (
    "\n\nclass {0}(nn.Module):\n    def forward(self, x):\n        return torch.{1}(x, dim=-1)\n"
)


def _named(tmp_path: Path, text: str) -> Task:
    (tmp_path / "problem.py").write_text(text)
    [task] = load_tasks(str(tmp_path / "problem.py"), "cpu")
    return task


def test_what_a_reference_calls_its_parts_and_helpers_tells_nothing_and_what_these_do_tells(
    tmp_path: Path,
) -> None:
    one, two = (
        _named(tmp_path, NAMED.format(*names))
        for names in (("linear", "norm", "torch.relu"), ("fc", "ln", "torch.relu"))
    )
    assert composition_of(one) == composition_of(two)
    assert family_of(one) == family_of(two) == "LayerNorm Linear relu"
    assert Known.of([("one", one.source)]).too_alike(two.source) == "one"
    imported = NAMED.replace("from torch import nn", "from torch import nn, relu")
    assert family_of(_named(tmp_path, imported.format("fc", "ln", "relu"))) == family_of(one)
    helped = [
        _named(tmp_path, NAMED.format("fc", "ln", f"{name}()") + HELPER.format(name, what))
        for name, what in (("Head", "softmax"), ("Last", "softmax"), ("Head", "cumsum"))
    ]
    assert composition_of(helped[0]) == composition_of(helped[1]) != composition_of(helped[2])
    assert [family_of(task).split()[-1] for task in helped] == ["softmax", "softmax", "cumsum"]
