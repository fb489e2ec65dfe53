"""Real C++ kernels in a journal, as a campaign leaves them: what tests of exports start from.

The figures are scripted, by the line in each source; the kernels, and what is made of them, are
real. Campaigns whose figures are measured are in test_export_campaign.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.engines.engine import LocalEngine
from agent.journals.journal import Journal
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.proposing.scripted import ScriptedEvaluator
from agent.types import FIRST_TURN, Attempt, Proposal, Turn
from sandbox.machine.device import fingerprint
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Shape, Task

HEAD = '''
import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

LIBRARY = ctypes.CDLL(
    load_inline(
        name="kernel",
        cpp_sources=[r"""{source}"""],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O3"],
    )
)
LIBRARY.{name}.argtypes = [{types}]
LIBRARY.{name}.restype = None

'''
POINTER, SIZE, FLOAT = "ctypes.c_void_p", "ctypes.c_int64", "ctypes.c_float"
BIAS_RELU = """
import torch
from torch import nn

ROWS, FEATURES = 64, 32

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(x + self.bias)

def get_inputs():
    return [torch.randn(ROWS, FEATURES)]

def get_init_inputs():
    return [FEATURES]
"""
BIAS_RELU_CPP = (
    HEAD.format(
        source="""
#include <cstdint>
extern "C" void bias_relu(const float* x, const float* bias, float* out, int64_t rows,
                          int64_t features) {
  for (int64_t i = 0; i < rows * features; ++i) {
    const float y = x[i] + bias[i % features];
    out[i] = y < 0.0f ? 0.0f : y;
  }
}
""",
        name="bias_relu",
        types=", ".join([POINTER] * 3 + [SIZE] * 2),
    )
    + """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        out = torch.empty_like(x)
        rows, features = x.shape
        pointers = x.data_ptr(), self.bias.data_ptr(), out.data_ptr()
        LIBRARY.bias_relu(*pointers, rows, features)
        return out
"""
)
DECAYED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.decay = decay

    def forward(self, x, scale):
        state, states = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = state * self.decay + x[:, step]
            states.append(state)
        return torch.tanh(torch.stack(states, 1)) * scale, state

def get_inputs():
    return [torch.randn(48, 16), 0.5]

def get_init_inputs():
    return [0.75]
"""
DECAYED_CPP = (
    HEAD.format(
        source="""
#include <cmath>
#include <cstdint>
extern "C" void decayed(const float* x, float* out, float* last, int64_t rows, int64_t steps,
                        float decay, float scale) {
  for (int64_t row = 0; row < rows; ++row) {
    float state = 0.0f;
    for (int64_t i = row * steps; i < (row + 1) * steps; ++i) {
      state = state * decay + x[i];
      out[i] = std::tanh(state) * scale;
    }
    last[row] = state;
  }
}
""",
        name="decayed",
        types=", ".join([POINTER] * 3 + [SIZE] * 2 + [FLOAT] * 2),
    )
    + """
class ModelNew(nn.Module):
    def __init__(self, decay):
        super().__init__()
        self.decay = decay

    def forward(self, x, scale):
        out, last = torch.empty_like(x), x.new_empty(x.shape[0])
        pointers = x.data_ptr(), out.data_ptr(), last.data_ptr()
        LIBRARY.decayed(*pointers, *x.shape, self.decay, scale)
        return out, last
"""
)
SIGNS = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return (x > 0).to(torch.int64)

def get_inputs():
    return [torch.randn(16, 16)]

def get_init_inputs():
    return []
"""
SIGNS_CPP = (
    HEAD.format(
        source="""
#include <cstdint>
extern "C" void signs(const float* x, int64_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] > 0.0f;
}
""",
        name="signs",
        types=", ".join([POINTER] * 2 + [SIZE]),
    )
    + """
class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x, dtype=torch.int64)
        LIBRARY.signs(x.data_ptr(), out.data_ptr(), x.numel())
        return out
"""
)
ROW_LOSSES = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def forward(self, logits, targets):
        return F.cross_entropy(logits, targets, reduction="none")

def get_inputs():
    return [torch.randn(24, 10), torch.randint(0, 10, (24,))]

def get_init_inputs():
    return []
"""
ROW_LOSSES_CPP = (
    HEAD.format(
        source="""
#include <cmath>
#include <cstdint>
extern "C" void row_losses(const float* logits, const int64_t* targets, float* out, int64_t rows,
                           int64_t classes) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = logits + row * classes;
    float sum = 0.0f;
    for (int64_t i = 0; i < classes; ++i) sum += std::exp(x[i] - x[targets[row]]);
    out[row] = std::log(sum);
  }
}
""",
        name="row_losses",
        types=", ".join([POINTER] * 3 + [SIZE] * 2),
    )
    + """
class ModelNew(nn.Module):
    def forward(self, logits, targets):
        out = logits.new_empty(logits.shape[0])
        pointers = logits.data_ptr(), targets.data_ptr(), out.data_ptr()
        LIBRARY.row_losses(*pointers, *logits.shape)
        return out
"""
)
RUNNING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return x * 2

def get_inputs():
    return [torch.randn(4)]

def get_init_inputs():
    return []
"""
SHAPES = (Shape("given"), Shape("small", (("ROWS", 4),)))
TASKS = {
    "bias_relu": (Task("test/bias_relu", BIAS_RELU, "cpu", shapes=SHAPES), BIAS_RELU_CPP),
    "decayed": (Task("test/decayed", DECAYED, "cpu"), DECAYED_CPP),
    "signs": (Task("test/signs", SIGNS, "cpu"), SIGNS_CPP),
    "row_losses": (Task("test/row_losses", ROW_LOSSES, "cpu"), ROW_LOSSES_CPP),
    "running": (Task("test/running", RUNNING, "cpu"), SIGNS_CPP),
}


@dataclass
class HereEvaluator(ScriptedEvaluator):
    """Scripted figures that say they were measured on a machine, by default this one."""

    environment: dict[str, str] = field(default_factory=lambda: fingerprint("cpu"))

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        found = super().evaluate(task, candidate, config, to_beat=to_beat)
        parameters = "name" if "bias" in candidate.source else "none"
        return replace(
            found, environment=self.environment, parameters=parameters, precision="float32"
        )


@dataclass(frozen=True)
class CppProposer:
    """Proposes each task's own kernel, once, with a script line."""

    lines: dict[str, str]
    name: str = "scripted"
    wants_measured: bool = False

    def unsupported(self, task: Task) -> str | None:
        return None if task.id in self.lines else "the script has no line for this task"

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        if history:
            return []
        _, source = TASKS[task.id.rpartition("/")[2]]
        text = f"# scripted: {self.lines[task.id]}\n{source}"
        candidate = Candidate(task.id, Language.CPP, text)
        return [Proposal(candidate, self.name, strategy="script", prompt="make it fast")]


def cpp_campaign(folder: Path, environment: dict[str, str] | None = None, **lines: str) -> Path:
    """A run whose tasks `name` have a winner with the script line `line`."""
    folder.mkdir(parents=True)
    here = fingerprint("cpu") if environment is None else environment
    engine = LocalEngine(lambda *_, **__: HereEvaluator(environment=here))
    proposer = CppProposer({f"test/{name}": line for name, line in lines.items()})
    try:
        with Journal(folder) as journal:
            config = CampaignConfig(max_candidates_per_task=1, proposals_per_round=1)
            tasks = [TASKS[name][0] for name in lines]
            run_campaign(tasks, [proposer], engine, journal, config)
    finally:
        engine.close()
    return folder
