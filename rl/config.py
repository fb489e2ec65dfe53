"""How a policy is made, sampled and trained, as data: presets of configs/train.

Unknown keys are refused. configs/train/cuda-l1.yaml tells published values from ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent.config import validate
from agent.presets import read_yaml
from rewards.terms import RewardConfig
from sandbox.errors import ConfigError
from sandbox.records import to_record
from sandbox.types import digest

Split = Literal["train", "held_out_task", "held_out_family", "held_out_size"]
SPLITS: tuple[Split, ...] = ("train", "held_out_task", "held_out_family", "held_out_size")
EVALUATED = re.compile(r"kernelbench[:/]|hf:|file/level\d/")
"""How specs of evaluation suites begin, and ids of their tasks; on the Hub are KernelBench's. So
are, as far as their places tell, files of a checkout's levels that are given as a folder's.
"""
NEW = "new"
"""As `model`: a small transformer from nothing, with a tokenizer of its own."""

SEEDS = (1 << 32) - 1
"""The last one that numpy takes, which trainers seed too."""


@dataclass(frozen=True)
class ShapeConfig:
    """Of a policy made from nothing."""

    vocabulary: int = 4096
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    feed_forward: int = 704
    context: int = 4096
    """Tokens of prompt and reply together."""

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ValueError(f"heads is {self.heads}; expected at least 1")
        # Positions turn pairs of a head's values.
        if self.hidden < 1 or self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden is {self.hidden}; expected an even multiple of heads ({self.heads})"
            )
        if min(self.vocabulary - 300, self.layers, self.feed_forward, self.context) < 1:
            raise ValueError("expected a vocabulary over 300, and sizes of at least 1")


@dataclass(frozen=True)
class SamplingConfig:
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 1024
    batch: int = 16
    """Replies generated side by side; of a server, requests at once."""
    greedy: bool = False
    """The likeliest token each time, whatever the temperature: for judging a policy."""
    engine: Literal["hf", "vllm-server"] = "hf"
    """transformers in this process, or a server that is told each version's adapters."""
    base_url: str | None = None
    """Of the server, such as http://localhost:8000/v1."""

    def __post_init__(self) -> None:
        if (self.engine == "vllm-server") != (self.base_url is not None):
            raise ValueError(
                f"engine is {self.engine} and base_url {self.base_url}; expected a base_url "
                "with vllm-server alone"
            )
        if self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                f"temperature is {self.temperature:g} and top_p {self.top_p:g}; expected above 0 "
                "and in 0..1"
            )
        if min(self.max_new_tokens, self.batch) < 1:
            raise ValueError("expected max_new_tokens and batch of at least 1")


@dataclass(frozen=True)
class LoraConfig:
    """Adapters in place of full fine-tuning."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.rank, self.alpha) < 1 or not 0 <= self.dropout < 1:
            raise ValueError("expected rank and alpha of at least 1, and dropout in 0..1")


@dataclass(frozen=True)
class SftConfig:
    """Supervised fine-tuning on verified kernels and repair turns."""

    epochs: float = 3.0
    learning_rate: float = 1e-3
    adam_beta2: float = 0.999
    batch: int = 8
    """Examples of a step, of each process where several train."""
    accumulate: int = 1
    max_tokens: int = 4096
    """Longer examples are left out, and counted."""
    save_steps: int = 200
    """Between the checkpoints that a killed call goes on from."""
    warmup_share: float = 0.05

    def __post_init__(self) -> None:
        if self.epochs <= 0 or self.learning_rate <= 0:
            raise ValueError(
                f"epochs is {self.epochs:g} and learning_rate {self.learning_rate:g}; expected "
                "both above 0"
            )
        if min(self.batch, self.accumulate, self.max_tokens, self.save_steps) < 1:
            raise ValueError("expected batch, accumulate, max_tokens and save_steps of at least 1")
        if not 0 <= self.warmup_share < 1 or not 0 < self.adam_beta2 < 1:
            raise ValueError("expected warmup_share and adam_beta2 in 0..1")


@dataclass(frozen=True)
class SelfConfig:
    """Self-supervised rounds: sample, keep what passes, fine-tune. No negative signal."""

    rounds: int = 2
    tasks: int | None = None
    """To sample on, drawn from those to train on; by default all of them."""
    samples_per_task: int = 16
    """Distinct kernels: for a reply whose code the task has already another one is asked, until
    three rounds in a row bring nothing new.
    """
    epochs: float = 2.0
    learning_rate: float = 3e-4
    """Of a round: the policy is to keep what it knows."""
    batch: int = 8
    """Of a round, whose examples are few; of each process where several train."""

    def __post_init__(self) -> None:
        tasks = 1 if self.tasks is None else self.tasks
        if min(self.rounds, tasks, self.samples_per_task, self.batch) < 1:
            raise ValueError("expected rounds, tasks, samples_per_task and batch of at least 1")
        if self.epochs <= 0 or self.learning_rate <= 0:
            raise ValueError(
                f"epochs is {self.epochs:g} and learning_rate {self.learning_rate:g}; expected "
                "both above 0"
            )


@dataclass(frozen=True)
class GrpoConfig:
    """One update on groups of rollouts that answered the same prompt."""

    group: int = 8
    """G: replies to one prompt."""
    batch: int | None = None
    """Replies of one forward and backward pass, for what memory there is; a divisor of `group`, by
    default all of it. The step is the same."""
    tasks: int | None = None
    """Of a run, drawn from those to train on; by default all of them, each in every update."""
    updates: int | None = None
    """Of the weights in one run of `train rl`; by default as many as the campaign's candidates."""
    learning_rate: float = 1e-6
    iterations: int = 1
    """mu: optimizer steps on each generation of rollouts (GRPO, arXiv 2402.03300, algorithm 1).
    From the second on, what has moved as far as the clip has no gradient there."""
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    """DAPO's clip-higher."""
    beta: float = 0.0
    """Of KL against the run's first weights, which are then held beside the policy's."""
    ahead: int = 0
    """Updates that the weights may have had since they wrote what they learn from: with 1, half of
    the tasks are sampled and judged while the weights learn from the other half
    (agent/loop/lessons.py). Replies then count by how much likelier they have become since."""
    spread: bool = False
    """Of several ranks each holds a part of the weights, their gradients and the optimizer's states
    (rl/spread.py), not all of them."""
    turns: int = 1
    """Rounds of an episode: what failed is shown its verdict and repaired by the same weights."""
    discount: float = 0.4
    """gamma: what a turn is worth is its own reward and gamma times that of its repair (Kevin-32B,
    arXiv 2507.11948)."""
    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    scale: Literal["group", "batch", "none"] = "group"
    """What advantages are divided by; none leaves the difference from the group's mean."""
    advantage: Literal["group", "leave-one-out"] = "group"
    """What a reward is compared with: the mean of its group, or of the others in it (RLOO,
    arXiv 2402.14740); the latter needs `scale: none`, which divides by nothing."""
    resample: int = 1
    """Further generations, by the same weights, of a task whose replies were all worth the same
    (dynamic sampling: DAPO, arXiv 2503.14476), before an update goes on without it."""
    max_grad_norm: float = 0.1
    smooth_clip: float | None = None
    """CUDA-L1's clip of (r - mu) / sigma over this run's rewards; None leaves rewards alone."""
    smooth_window: int = 100
    """Updates whose rewards mu and sigma are taken over."""

    def __post_init__(self) -> None:
        if self.group < 2:
            raise ValueError(f"group is {self.group}; a baseline needs at least 2 replies")
        if self.batch is not None and (self.batch < 1 or self.group % self.batch):
            raise ValueError(f"batch is {self.batch}; expected a divisor of group ({self.group})")
        if self.loss == "bnpo" and self.batch not in (None, self.group):
            raise ValueError("loss bnpo is normalised by batch; leave out batch, or take dapo")
        for name in ("iterations", "updates", "tasks", "smooth_window"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name} is {count}; expected at least 1")
        if self.learning_rate < 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; expected at least 0")
        for name in ("epsilon", "epsilon_high", "max_grad_norm", "smooth_clip"):
            if (size := getattr(self, name)) is not None and size <= 0:
                raise ValueError(f"{name} is {size}; expected above 0")
        if not 1 <= self.turns <= 4 or not 0 <= self.discount <= 1:
            raise ValueError("expected turns in 1..4 and discount in 0..1")
        if self.advantage == "leave-one-out" and self.scale != "none":
            raise ValueError(f"advantage leave-one-out needs scale none, not {self.scale}")
        if self.ahead and self.turns > 1:
            raise ValueError(
                f"ahead is {self.ahead} and turns {self.turns}: an episode's turns are by the same "
                "weights, which would change meanwhile; leave out either"
            )
        for name in ("ahead", "resample"):
            if (count := getattr(self, name)) < 0:
                raise ValueError(f"{name} is {count}; expected at least 0")
        if self.beta < 0:
            raise ValueError(f"beta is {self.beta}; expected at least 0")

    @property
    def least(self) -> int:
        """Known rewards without which a group teaches nothing: what a few replies say of each
        other, against a whole step of the optimizer, is chance.
        """
        return math.ceil(self.group / 2)


@dataclass(frozen=True)
class HeldOut:
    """Shares of families and of the remaining compositions that are never trained on, told by
    hashes: whatever a task is called, and whatever its sizes are, it is where its like are. Of what
    is left, tasks of some sizes.
    """

    families: float = 0.1
    tasks: float = 0.1
    sizes: tuple[str, ...] = ()
    """Names of shapes, such as 8192x4096: what is timed at one is never trained on. Devices differ
    in theirs, and some task must have one of them."""
    judged: int | None = None
    """How many of them a policy is judged on, drawn by hashes; by default all."""

    def __post_init__(self) -> None:
        if not 0 <= self.families <= 1 or not 0 <= self.tasks <= 1:
            raise ValueError(
                f"families is {self.families:g} and tasks {self.tasks:g}; expected shares in 0..1"
            )
        if self.judged is not None and self.judged < 1:
            raise ValueError(f"judged is {self.judged}; expected at least 1")

    def split(self, composition: str, family: str, size: str) -> Split:
        if _share(f"family {family}") < self.families:
            return "held_out_family"
        if _share(f"task {composition}") < self.tasks:
            return "held_out_task"
        return "held_out_size" if size in self.sizes else "train"


@dataclass(frozen=True)
class TrainConfig:
    """One policy and every stage of its training."""

    model: str = NEW
    """`new`, a folder, or a model's name at a hub."""
    name: str = "policy"
    """As reports name it, with its version."""
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tasks: tuple[str, ...] = ("builtin",)
    """That self-supervised and RL rollouts work on; never an evaluation suite, unless
    `transductive`."""
    transductive: bool = False
    """Train on the evaluated tasks themselves, as CUDA-L1 does; stamped on every result."""
    held_out: HeldOut = field(default_factory=HeldOut)
    campaign: str = "quickstart"
    """Preset or file of configs/optimize: how rollouts are evaluated."""
    exemplars: int = 2
    unshown_share: float = 0.0
    """Of the prompts of an update: without exemplars, as a policy is judged. None in CUDA-L1."""
    selection: Literal["buckets", "random"] = "buckets"
    """How exemplars are chosen among what passed (agent/strategies/contrastive.py)."""
    bucket_width: float = 0.15
    temperature: float | None = None
    """tau of the draw of buckets; by default the standard deviation of their means."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    lora: LoraConfig | None = None
    gradient_checkpointing: bool = False
    memory_share: float = 1.0
    """Of its GPU's memory that the policy may take while it samples and learns in RL."""
    offload: bool = False
    """In RL, and where a campaign samples: weights and what the optimizer keeps are in the host's
    memory while neither goes on, so that lanes on the same GPU have all of it."""
    optimizer: str = "adamw_torch"
    """As transformers names it: adamw_torch, adafactor, adamw_8bit, galore_adamw, ..."""
    sft: SftConfig = field(default_factory=SftConfig)
    self_supervised: SelfConfig = field(default_factory=SelfConfig)
    rl: GrpoConfig = field(default_factory=GrpoConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampling.engine == "vllm-server" and self.rl.ahead:
            raise ValueError(
                "rl.ahead compares with how likely replies were when they were sampled, which a "
                "server is not asked; leave it out, or take sampling.engine hf"
            )
        if self.sampling.engine == "vllm-server" and self.lora is None:
            raise ValueError(
                "sampling.engine vllm-server is told adapters, and all weights are trained; "
                "set lora, or take engine hf"
            )
        if not 0 < self.memory_share <= 1:
            raise ValueError(f"memory_share is {self.memory_share:g}; expected above 0, at most 1")
        if self.offload and self.rl.spread:
            raise ValueError(
                "offload moves a policy whole, and rl.spread leaves each rank a part of it; leave "
                "out either"
            )
        if self.exemplars < 1 or self.bucket_width <= 0 or not 0 <= self.unshown_share <= 1:
            raise ValueError(
                "expected exemplars of 1 or more, bucket_width above 0 and unshown_share in 0..1"
            )
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}; expected above 0")
        if not 0 <= self.seed <= SEEDS:
            raise ValueError(f"seed is {self.seed}; expected 0 to {SEEDS}")
        if self.model == NEW and self.dtype != "float32":
            raise ValueError(
                f"dtype is {self.dtype}, and a model from nothing is trained whole; take float32"
            )
        if (suite := evaluated(self.tasks)) is not None and not self.transductive:
            raise ValueError(
                f"{suite} is an evaluation suite; name other tasks, or set transductive: true"
            )


def evaluated(tasks: Iterable[str]) -> str | None:
    """The first of these specs or ids that is an evaluation suite's, if there is one."""
    return next((task for task in tasks if EVALUATED.match(task)), None)


def refuse_evaluated(tasks: Iterable[str], transductive: bool) -> None:
    """Raises ConfigError where a policy would be trained on what it is to be judged by."""
    if not transductive and (task := evaluated(tasks)) is not None:
        raise ConfigError(
            f"{task} is an evaluation suite's, and never trained on; take other tasks, or set "
            "transductive: true in the train config, with which all that comes of it is stamped"
        )


def load_train(source: str, **overrides: object) -> TrainConfig:
    """From a preset's name or a YAML file; raises ConfigError naming the file and the key."""
    origin, values = read_yaml(source, "train")
    values |= {key: value for key, value in overrides.items() if value is not None}
    config = validate(TrainConfig, values, origin)
    _refuse_infinite(to_record(config), origin)
    return config


def _refuse_infinite(record: Mapping[str, object], origin: str, prefix: str = "") -> None:
    """Raises ConfigError for the first number that is none, or no end: no bound above sees it, and
    one update makes NaN of all weights.
    """
    for key, value in record.items():
        if isinstance(value, Mapping):
            _refuse_infinite(value, origin, f"{prefix}{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{origin}: {prefix}{key} is {value}; expected a finite number")


def _share(text: str) -> float:
    """Uniform in 0..1, the same for the same text."""
    return int(digest(text), 16) / 16**16
