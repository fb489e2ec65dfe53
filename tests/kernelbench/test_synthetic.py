"""Synthetic tasks: the same for a seed, distinct, not too like what is evaluated, admitted."""

import ast

import pytest

from agent.features.proposer import FeatureProposer
from kernelbench import synthetic
from kernelbench.similarity import Known, shape_of
from kernelbench.suite import load_tasks, loaders
from kernelbench.synthetic import compose
from kernelbench.synthetic_folder import RECORD, Folder
from sandbox.admission import Admission, Level
from sandbox.errors import ConfigError, SandboxFault, TaskError
from sandbox.types import EvalConfig

CONFIG = EvalConfig()
FORWARD = "import torch\nclass Model:\n    def forward(self, x):\n        {}\n"


class Validator:
    """Refuses what takes a mean, and fails once on each id in `faults`."""

    def __init__(self, faults: tuple[str, ...] = ()) -> None:
        self.asked: list[str] = []
        self.faults = set(faults)

    def validate(self, task, config, *, compiled=False):
        self.asked.append(task.id)
        if task.id in self.faults:
            self.faults.discard(task.id)
            raise SandboxFault("the machine was out of memory")
        verdict = Level.DEGENERATE if ".mean(" in task.source else Level.SOUND
        return Admission(task.id, task.hash, task.device, config.id, verdict)


def test_the_same_seed_gives_the_same_tasks_and_more_of_them_begin_alike():
    few, many = load_tasks("synthetic:any:20@3", "cpu"), load_tasks("synthetic:any:40@3", "cpu")
    assert [t.hash for t in many[:20]] == [t.hash for t in few]
    other = load_tasks("synthetic:any:20@4", "cpu")
    assert {t.source for t in other} != {t.source for t in few}
    assert load_tasks(few[7].id, "cpu") == [few[7]]


@pytest.mark.slow
def test_thousands_of_compositions_differ_in_more_than_their_numbers():
    shapes = [shape_of(t.source) for t in load_tasks("synthetic:any:1500", "cpu")]
    assert len(set(shapes)) > 1450


def test_a_task_has_one_to_five_operators_and_sizes_for_each_device():
    for number in range(40):
        body = ast.parse(compose("any", 0, number)).body
        model = next(n for n in body if isinstance(n, ast.ClassDef))
        forward = next(n for n in model.body if getattr(n, "name", "") == "forward")
        assert 1 <= len(forward.body) <= 5
    for device in ("cpu", "cuda"):
        [task] = load_tasks("synthetic/any-0-0", device)
        assert len(task.shapes) == 2


@pytest.mark.slow
def test_rows_are_what_the_feature_proposer_writes_kernels_for():
    proposer = FeatureProposer()
    tasks = load_tasks("synthetic:rows:6", "cpu")
    assert [proposer.unsupported(task) for task in tasks] == [None] * 6


@pytest.mark.parametrize(
    "spec", ["synthetic:rows", "synthetic:rows:0", "synthetic:columns:3", "synthetic:rows:3@x"]
)
def test_a_spec_that_is_wrong_is_told_the_right_form(spec):
    with pytest.raises(TaskError, match="expected synthetic:rows:COUNT@SEED"):
        load_tasks(spec, "cpu")


def test_names_constants_and_the_way_of_calling_do_not_tell_references_apart():
    known = Known.of([("a", FORWARD.format("return torch.tanh(x) * 2.0"))])
    assert known.too_alike(FORWARD.format("return torch.tanh(z) * 7")) == "a"
    assert known.too_alike(FORWARD.format("return z.sort()")) is None
    assert known.too_alike(FORWARD.format("return torch.sort(z) - z.mean()")) is None


KERNELBENCH_STYLE = """
class Model(nn.Module):
    \"\"\"Says what it computes.\"\"\"
    def __init__(self):
        super({0}).__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        \"\"\"Args and what is returned.\"\"\"
        return torch.tanh(x)
"""


@pytest.mark.parametrize("named", ["", "Model, self"])
def test_what_every_module_says_hides_no_likeness(named):
    known = Known.of([("evaluated", KERNELBENCH_STYLE.format(named))])
    assert known.too_alike(FORWARD.format("return z.tanh()")) == "evaluated"
    assert known.too_alike(FORWARD.format("return z.sigmoid()")) is None


def test_a_task_like_an_evaluated_one_is_never_tried(tmp_path):
    tasks = load_tasks("synthetic:rows:10", "cpu")
    validator = Validator()
    made = Folder(tmp_path / "made").fill(tasks, tasks[:2], validator, {}, CONFIG)
    assert made.too_alike >= 2
    assert not {t.id for t in tasks[:2]} & set(validator.asked)


def test_what_cannot_be_scored_is_not_in_the_folder_and_a_fault_is_tried_again(tmp_path):
    tasks = load_tasks("synthetic:rows:30", "cpu")
    validator = Validator(faults=(tasks[3].id,))
    folder = Folder(tmp_path / "made")
    first = folder.fill(tasks, [], validator, {}, CONFIG)
    assert (first.left, first.admitted + first.refused) == (1, 29)
    assert first.refused > 0
    again = folder.fill(tasks, [], validator, {}, CONFIG)
    assert validator.asked == [t.id for t in tasks] + [tasks[3].id]
    assert again.left == 0
    kept = load_tasks(str(tmp_path / "made"), "cpu")
    assert len(kept) == again.admitted
    assert all(".mean(" not in t.source for t in kept)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        Folder(tmp_path).fill([], [], Validator(), {}, CONFIG)
    assert not (tmp_path / RECORD).exists()
    with pytest.raises(ConfigError, match=r"mine.py: is a file; name a new or empty folder"):
        Folder(tmp_path / "mine.py").fill([], [], Validator(), {}, CONFIG)


def test_tasks_are_loaded_one_by_one_as_together(monkeypatch: pytest.MonkeyPatch) -> None:
    together = {task.id: task for task in load_tasks("synthetic:any:20@3", "cpu")}
    composed: list[int] = []
    compose = synthetic.compose

    def counted(kind: str, seed: int, number: int) -> str:
        composed.append(number)
        return compose(kind, seed, number)

    monkeypatch.setattr(synthetic, "compose", counted)
    apart = loaders("synthetic:any:20@3", "cpu")
    assert (list(apart), composed) == (list(together), [])
    chosen = list(apart)[7]
    assert apart[chosen]() == together[chosen]
    assert len(composed) == 1
    assert [load() for load in loaders("builtin/relu", "cpu").values()] == load_tasks("relu", "cpu")
