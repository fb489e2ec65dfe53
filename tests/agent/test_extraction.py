"""From a model file to tasks: regions, ranking, samples, what is written, what is refused."""

from pathlib import Path

import pytest
import torch

from agent.extraction import figures, profile, samples
from agent.extraction.extract import extract
from agent.extraction.model import check_model_file, load_user_model
from agent.extraction.regions import Form, regions
from agent.extraction.report import FoundRegion
from agent.extraction.units import units
from agent.extraction.worker import extract as work
from kernelbench.suite import load_tasks
from sandbox.errors import ConfigError

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
BLOCKS = (
    HEAD
    + """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))

class Model(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, words):
        x = self.table(words)
        for block in self.blocks:
            x = block(x)
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.randint(0, 50, (4, 8))]

def get_init_inputs():
    return [3]
"""
)
CNN = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.norm(self.conv(x)))
        y += 1.0
        return y.mean((2, 3))

def make_model():
    return Net()

def get_inputs():
    return [torch.rand(2, 3, 8, 8)]
"""
)
GROWING = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.grow = nn.Linear(16, 16)
        nn.init.constant_(self.grow.weight, 100.0)

    def forward(self, x):
        return F.silu(self.grow(F.silu(x)))

def get_inputs():
    return [torch.rand(4, 8, 16)]

def get_init_inputs():
    return []
"""
)
CALLED = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Softplus()

    def forward(self, x):
        wide = self.act(x[:2])
        if x.sum() > 1e9: x = -x
        return wide, self.act(x), self.act(x + 100), self.act(x - 50)

def get_inputs():
    return [torch.rand(64, 64)]

def get_init_inputs():
    return []
"""
)
DECIDING = BLOCKS.replace(
    "        for block", "        if x.sum() > 1e9: x = -x\n        for block"
)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(profile, "SECONDS", 0.05)


SOFTMAX = """
import torch

def make_model():
    return torch.nn.Softmax(-1)

def get_inputs():
    return [torch.randn(64, 512)]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.py"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _however_small(monkeypatch):
    """What a region takes of the whole, on a busy machine, decides nothing here."""
    monkeypatch.setattr("agent.extraction.worker.SMALLEST", 0.0)


def found_in(tmp_path: Path, text: str, top: int = 20) -> tuple[dict[str, dict], dict[str, str]]:
    """Regions by name, and sources by name."""
    path = written(tmp_path, text)
    reply = work({"model": str(path), "device": "cpu", "top": top})
    return {r["name"]: r for r in reply["extraction"]["regions"]}, reply["sources"]


def loaded(tmp_path: Path, text: str):
    return load_user_model(written(tmp_path, text), "cpu")


def test_regions_are_what_could_be_one_kernel(tmp_path):
    user = loaded(tmp_path, BLOCKS)
    [unit] = units(user.model, user.inputs).units
    found = {(r.form, r.name) for r in regions(unit.traced)}
    assert found == {
        (Form.OPERATOR, "embedding"),
        (Form.OPERATOR, "linear"),
        (Form.EPILOGUE, "linear_gelu"),
        (Form.EPILOGUE, "linear_add"),
        (Form.FUSED, "layer_norm"),
        (Form.FUSED, "gelu"),
        (Form.FUSED, "add_layer_norm"),
        (Form.FUSED, "add_softmax"),
    }


def test_fused_regions_never_overlap_and_are_convex(tmp_path):
    user = loaded(tmp_path, BLOCKS)
    [unit] = units(user.model, user.inputs).units
    fused = [r for r in regions(unit.traced) if r.form is Form.FUSED]
    nodes = [n for r in fused for n in r.nodes]
    assert len(nodes) == len(set(nodes))
    order = {n: i for i, n in enumerate(unit.traced.graph.nodes)}
    for region in fused:
        first_use = min(order[u] for n in region.outputs for u in n.users if u not in region.nodes)
        inside = max(order[n] for n in region.nodes if any(n in i.users for i in region.inputs))
        assert inside <= first_use


@pytest.mark.slow
def test_equal_regions_are_one_task_that_counts_its_calls(tmp_path):
    found, _ = found_in(tmp_path, BLOCKS)
    assert found["gelu"]["calls"] == 3
    assert found["gelu"]["places"] == ["blocks.0", "blocks.1", "blocks.2"]
    assert found["add_layer_norm"]["calls"] == 2
    # Two linears of different sizes, three times each.
    assert sorted(r["calls"] for n, r in found.items() if n.startswith("linear_4")) == [3, 3]


def test_every_task_is_a_problem_that_loads_and_gives_what_it_says(tmp_path):
    _, sources = found_in(tmp_path, BLOCKS)
    for name, text in sources.items():
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        [task] = load_tasks(str(path), "cpu")
        assert (task.id, task.dtype) == (f"file/{name}", "float32")
        module = {}
        exec(task.source, module)
        model = module["Model"](*module["get_init_inputs"]())
        model(*module["get_inputs"]())
    assert "F.gelu(x0)" in sources["gelu"]
    assert "self.weight = nn.Parameter(" in sources["add_layer_norm"]


@pytest.mark.slow
def test_a_task_depends_on_nothing_of_the_models_file(tmp_path):
    _, sources = found_in(tmp_path, BLOCKS)
    for text in sources.values():
        assert "blocks" not in text
        assert "Block" not in text


def test_writes_in_place_and_batch_norm_become_plain_operators(tmp_path):
    found, sources = found_in(tmp_path, CNN)
    [name] = [n for n, r in found.items() if r["form"] == "fused"]
    assert found[name]["operations"] == ["batch_norm", "relu_", "add_", "mean"]
    assert "F.batch_norm(" in sources[name]
    assert "torch.relu(" in sources[name]
    assert 'self.register_buffer("running_var", ' in sources[name]


@pytest.mark.slow
def test_a_model_that_cannot_be_traced_is_taken_in_parts(tmp_path):
    found, _ = found_in(tmp_path, DECIDING)
    assert found["gelu"]["calls"] == 3
    path = written(tmp_path, DECIDING)
    reply = work({"model": str(path), "device": "cpu", "top": 1})
    assert list(reply["extraction"]["untraceable"]) == [""]


def test_a_model_in_half_precision_gives_tasks_in_it(tmp_path):
    text = CNN.replace("return Net()", "return Net().bfloat16()")
    found, sources = found_in(tmp_path, text.replace("(2, 3, 8, 8)", "(2, 3, 8, 8).bfloat16()"))
    assert not any(r["refused"] for r in found.values())
    [name] = [n for n, r in found.items() if r["form"] == "fused"]
    module = {}
    exec(sources[name], module)
    assert module["DTYPE"] == "bfloat16"
    model, [x] = module["Model"](), module["get_inputs"]()
    assert {x.dtype, model.weight.dtype, model(x).dtype} == {torch.bfloat16}


def test_mixed_dtypes_are_refused_by_name(tmp_path):
    text = CNN.replace("return y.mean((2, 3))", "return (y.to(torch.float64) * 2).cumsum(0)")
    found, _ = found_in(tmp_path, text)
    reasons = {r["refused"] for r in found.values() if r["refused"]}
    assert "it is in float64; tasks are in float32, float16, bfloat16" in reasons


def test_amdahl_says_what_a_faster_region_is_worth():
    region = FoundRegion("gelu", "fused", ("gelu",), "", ("",), 1, 1.0, 0.5)
    assert region.doubled == pytest.approx(4 / 3)
    assert region.gone == pytest.approx(2.0)


@pytest.mark.parametrize(
    "tensor",
    [
        3.0 + 2.0 * torch.randn(64, 32),
        torch.relu(torch.randn(64, 32)),
        torch.randn(4, 8, 16).transpose(1, 2),
        torch.randn(4, 8, 48)[..., :16],
        torch.randn(4, 8, 48).bfloat16()[..., :16],
        torch.full((16,), 0.3).half(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(16),
        torch.tensor(2.5),
        torch.randint(-3, 9, (64,)),
        torch.randint(0, 5, (64,), dtype=torch.int32),
        torch.rand(64, 4) < 0.25,
        torch.zeros(8, 8).masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -torch.inf),
        torch.randn(64, 64).masked_fill(torch.rand(64, 64) < 0.3, -torch.inf),
    ],
    ids=["normal", "relu", "transposed", "sliced", "bfloat16",
         "float16", "channels_last", "ones", "scalar", "integers",
         "int32", "bool", "causal", "masked"],
)  # fmt: skip
def test_a_tensor_is_drawn_again_with_its_layout_and_range(tensor):
    wanted = samples.sample(tensor)
    drawn = samples.sample(eval(samples.draw(wanted), {"torch": torch}))
    assert drawn.signature == wanted.signature
    assert wanted.low <= drawn.low <= drawn.high <= wanted.high
    assert drawn.mean == pytest.approx(wanted.mean, abs=0.2 + 0.6 * wanted.std)
    assert drawn.hidden == wanted.hidden


def test_every_occurrence_is_told_with_its_own_figures_and_drawn_from_all(tmp_path):
    found, sources = found_in(tmp_path, GROWING)
    first, second = found["silu"]["occurrences"]
    assert (first["calls"], first["seen"]) == (1, 1)
    small, large = (o["inputs"]["x0"]["high"] for o in (first, second))
    assert small <= 1 < 100 < large
    low = min(o["inputs"]["x0"]["low"] for o in (first, second))
    assert f".clamp({low}, {large})" in sources["silu"]
    assert "Captured from a model, 2 occurrences together:" in sources["silu"]
    [linear] = found["linear"]["occurrences"]
    assert set(linear["inputs"]) == {"x0", "weight", "bias"}


def test_a_part_that_is_called_in_several_ways_is_a_task_for_each_shape(tmp_path):
    found, sources = found_in(tmp_path, CALLED)
    wide, square = (found[f"softplus_{sizes}"] for sizes in ("2x64", "64x64"))
    assert (wide["calls"], square["calls"]) == (1, 3)
    [occurrence] = square["occurrences"]
    assert occurrence["seen"] == 3
    assert -50 <= occurrence["inputs"]["x0"]["low"] < 0
    assert 100 < occurrence["inputs"]["x0"]["high"] <= 101
    assert "torch.randn((64, 64))" in sources["softplus_64x64"]


def test_several_tensors_have_the_figures_of_one_that_holds_them_all():
    parts = [torch.randn(50, 40), torch.randn(50, 40).mul(3).add(5), torch.full((50, 40), -2.0)]
    found = figures.pooled([samples.sample(part) for part in parts])
    whole = samples.sample(torch.stack(parts))
    assert (found.low, found.high) == (whole.low, whole.high)
    assert found.mean == pytest.approx(whole.mean, rel=1e-2)
    assert found.std == pytest.approx(whole.std, rel=1e-2)
    causal = torch.zeros(8, 8).masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), -torch.inf)
    masks = [samples.sample(causal), samples.sample(torch.zeros(8, 8))]
    assert figures.pooled(masks).hidden == "random"
    assert figures.pooled(masks[:1] * 2) == masks[0]


@pytest.mark.slow
def test_files_and_record_are_written_and_replaced(tmp_path):
    path = written(tmp_path, BLOCKS)
    first = extract(path, tmp_path / "tasks", "cpu", 5)
    assert len(first.files) == 5
    again = extract(path, tmp_path / "tasks", "cpu", 2)
    assert sorted(p.name for p in (tmp_path / "tasks").iterdir()) == sorted(
        ["extraction.json", *(p.name for p in again.files)]
    )
    assert len(load_tasks(str(tmp_path / "tasks"), "cpu")) == 2


@pytest.mark.slow
def test_a_file_of_the_users_beside_an_older_extraction_is_left_alone(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "extraction.json").write_text('{"files": ["old.py"]}')
    for name in ("softmax.py", "old.py"):
        (tmp_path / "tasks" / name).write_text("mine")
    with pytest.raises(ConfigError, match=r"softmax\.py: no extraction wrote it; move it"):
        extract(written(tmp_path, SOFTMAX), tmp_path / "tasks", "cpu", 1)
    assert {p.read_text() for p in (tmp_path / "tasks").glob("*.py")} == {"mine"}
    assert (tmp_path / "tasks" / "old.py").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def def", "not Python"),
        ("x = 1", "no class Model and no make_model(); a model file defines"),
        ("class Model: pass\ndef get_inputs(): return []", "no get_init_inputs()"),
        ("def make_model(): pass", "no get_inputs()"),
        (CNN.replace("return Net()", "return 3"), "the model is a int; expected a torch.nn"),
        (CNN.replace("return Net()", "raise OSError('no file')"), "make_model() failed: OSError"),
        (CNN.replace("return Net()", "raise SystemExit(3)"), "make_model() failed: SystemExit: 3"),
        ("import nowhere\n" + CNN, "the file failed: ModuleNotFoundError: No module named"),
        (CNN.replace("[torch.rand(2, 3, 8, 8)]", "torch.rand(2)"), "returns a Tensor; expected a"),
        (CNN.replace("[torch.rand(2, 3, 8, 8)]", "[3]"), "returns no tensor"),
        (CNN.replace("2, 3, 8, 8", "2, 4, 8, 8"), "forward failed: RuntimeError: "),
    ],
)  # fmt: skip
def test_a_file_that_is_no_model_is_one_clear_line(tmp_path, text, words):
    with pytest.raises(ConfigError) as told:
        loaded(tmp_path, text)
    message = str(told.value)
    assert message.startswith(f"{tmp_path / 'model.py'}: ")
    assert words in message
    assert "\n" not in message


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match="no such file; a model file defines"):
        check_model_file(tmp_path / "model.py")


def test_a_folder_with_other_files_is_not_touched(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        extract(written(tmp_path, CNN), tmp_path / "tasks", "cpu", 3)


@pytest.mark.slow
def test_a_process_that_dies_or_prints_is_told_in_one_line(tmp_path):
    crash = "\nimport ctypes\nctypes.string_at(0)\n"
    with pytest.raises(ConfigError, match="ended by SIGSEGV"):
        extract(written(tmp_path, CNN + crash), tmp_path / "tasks", "cpu", 3)
    noisy = CNN + "\nprint('noise')\nimport os\nos.write(2, b'\\xff')\n"
    assert extract(written(tmp_path, noisy), tmp_path / "tasks", "cpu", 1).files


@pytest.mark.slow
def test_how_to_go_on_can_be_typed_whatever_the_folder_is_called(tmp_path, cli):
    written(tmp_path, SOFTMAX)
    done = cli(tmp_path, "extract", "model.py", "--to", "its parts", "--device", "cpu")
    assert done.out.splitlines()[-1] == "to go on: warpsmith optimize 'its parts'"
