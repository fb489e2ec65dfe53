"""YAML to typed configuration: presets by name, unknown keys refused with the nearest name.

Precedence: defaults of the dataclass, then the preset or file, then what the command line says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import Discriminator, TypeAdapter, ValidationError

from agent.features.search import Order
from agent.keys import nearest, refuse_misfits
from agent.limits import FieldError, Least, refuse_too_small
from agent.loop import budget
from agent.loop.budget import CampaignConfig
from agent.memory.notes import Memory
from agent.models.ledger import Caps
from agent.models.prices import Price
from agent.models.settings import ModelConfig
from agent.presets import preset_names, read_yaml
from agent.proposing.tuner import Tuning
from agent.strategies.choice import STRATEGIES, AnyStrategy
from agent.strategies.fsr import Fsr
from agent.strategies.portfolio import Portfolio
from sandbox.errors import ConfigError
from sandbox.records import to_record
from sandbox.types import EvalConfig, Language

T = TypeVar("T")
DEFAULT_PRESET = "quickstart"
LEARNING_PRESET = "learn"
"""The default of a campaign that learns, to which a few candidates a task would teach nothing."""
LOCAL = "local:"
"""Begins the name of a model that is a checkpoint on disk."""
LEAST = budget.LEAST | {
    "lanes": Least(1),
    "seed_candidates": Least(0),
    "max_reply_tokens": Least(1),
    # A cap of 0 sends nothing that counts: replies that are kept are still used.
    "max_requests": Least(0),
    "max_tokens": Least(0),
    "max_usd": Least(0),
}


@dataclass(frozen=True)
class OptimizeConfig:
    """One run of `warpsmith optimize`, saved with it as config.yaml."""

    tasks: tuple[str, ...] = ("builtin",)
    """As `warpsmith tasks list` understands them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    engine: Literal["ray", "local"] = "ray"
    ray_address: str | None = None
    """Of a running cluster; by default Ray is started on this machine."""
    gpu_type: str | None = None
    """Ray's name of the accelerator that lanes must have, such as `H200`."""
    lanes: int | None = None
    """Of the local engine; by default one per GPU, or one."""
    model: str | None = None
    """Name at the OpenAI-compatible endpoint, or `local:FOLDER` for a transformers checkpoint; the
    built-in feature proposer without one."""
    models: tuple[ModelConfig, ...] = ()
    """Instead of `model`: several with weights, or one with settings."""
    language: Language | None = None
    """That models are asked for; by default cpp on the CPU and cuda on a GPU."""
    max_reply_tokens: int | None = None
    """Of one reply, reasoning included, of models without a `max_tokens` of their own; a cap on
    tokens or money needs one."""
    strategy: Annotated[AnyStrategy, Discriminator("kind")] = field(default_factory=Fsr)
    """Of models; the built-in proposer has its own."""
    features: Order = "search"
    """How the built-in proposer goes through its pool: by what it has seen, or by chance."""
    learn: bool = False
    """The local model's weights learn from every round; its strategy asks in groups."""
    train: str = "small"
    """How it is sampled and trained: a preset of configs/train, or a file."""
    own_gpu: bool = False
    """The GPU that the local model is on (each rank's) is no lane's: it samples while lanes
    measure. In a cluster that is joined, Ray is not to have it."""
    greedy: bool = False
    """The local model answers with its likeliest tokens in place of a sample."""
    seed_candidates: int = 0
    """A task's first so many come from the built-in proposer, for the strategy to go on from."""
    tuning: Tuning | None = None
    """Constants that replies declare are searched beside the model; by default not."""
    memory: Memory | None = None
    """Technique notes of earlier campaigns, and of this one's confirmed wins; by default none."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By model, over those of configs/prices/default.yaml."""
    max_requests: int | None = None
    """Caps on what models may cost, over the whole run."""
    max_tokens: int | None = None
    max_usd: float | None = None
    keep_replies: bool = True
    """Replies are kept for all runs of this user; False keeps them for this run alone."""
    seed: int = 0
    proposals_per_round: int = CampaignConfig.proposals_per_round
    max_candidates_per_task: int = CampaignConfig.max_candidates_per_task
    max_candidates: int | None = None
    max_updates: int | None = None
    max_seconds: float | None = None
    tasks_at_once: int | None = None
    confirm: bool = CampaignConfig.confirm
    search_figures: bool = CampaignConfig.search_figures
    evaluation: EvalConfig = field(default_factory=EvalConfig)

    def __post_init__(self) -> None:
        refuse_too_small(self, LEAST)
        if not self.tasks:
            raise FieldError("tasks", "is empty; expected at least one task")
        object.__setattr__(self, "tasks", tuple(dict.fromkeys(self.tasks)))
        if self.model == LOCAL:
            raise FieldError("model", f"is {LOCAL!r}; expected a checkpoint's folder behind it")
        if self.model is not None and self.models:
            raise ValueError("has both `model` and `models`; expected one of them")
        if self.language is Language.TORCH:
            wanted = "expected 'cpp', 'cuda', 'cuda_inline' or 'triton'"
            raise FieldError("language", f"is 'torch', which holds no kernel; {wanted}")
        if self.own_gpu and self.local is None:
            raise FieldError("own_gpu", "is for weights of ours; expected --model local:FOLDER")
        if self.own_gpu and self.engine != "ray":  # one interpreter would sample and measure
            raise FieldError("own_gpu", "needs lanes in processes of their own; take engine ray")
        if self.learn and self.greedy:
            raise FieldError("learn", "compares samples of a prompt; greedy replies are all equal")
        if self.learn and self.local is None:
            raise FieldError("learn", "needs weights of its own; expected --model local:FOLDER")
        if len({m.name for m in self.models}) < len(self.models):
            raise ValueError("two of `models` have the same name")
        if isinstance(self.strategy, Portfolio):
            unknown = set(self.strategy.models) - {m.name for m in self.asked}
            if unknown:
                raise ValueError(f"strategy.models names {min(unknown)!r}, which is not asked")

    @property
    def local(self) -> Path | None:
        """The checkpoint whose weights propose, in this process."""
        if self.model is None or not self.model.startswith(LOCAL):
            return None
        return Path(self.model.removeprefix(LOCAL))

    @property
    def asked(self) -> tuple[ModelConfig, ...]:
        """The models it asks at endpoints; none without a model."""
        if self.local is not None:
            return ()
        if self.model is None:
            most = self.max_reply_tokens
            return tuple(m if m.max_tokens else replace(m, max_tokens=most) for m in self.models)
        return (ModelConfig(self.model, max_tokens=self.max_reply_tokens),)

    @property
    def caps(self) -> Caps:
        return Caps(self.max_requests, self.max_tokens, self.max_usd)

    def campaign(self) -> CampaignConfig:
        """The part that the loop itself needs; `device` is resolved by then."""
        names = {f.name for f in dataclasses.fields(CampaignConfig)}
        values = {k: v for k, v in vars(self).items() if k in names}
        across = self.strategy.across if isinstance(self.strategy, Portfolio) else None
        return CampaignConfig(**values, allocation=across)

    @property
    def asking(self) -> AnyStrategy:
        """The strategy as it asks: a portfolio knows the models it chooses from."""
        strategy = self.strategy
        if isinstance(strategy, Portfolio) and not strategy.models and len(self.asked) > 1:
            return replace(strategy, models=tuple(m.name for m in self.asked))
        return strategy


WHERE = ("engine", "ray_address", "gpu_type", "lanes", "own_gpu", "tasks_at_once")
HOW_MUCH = ("max_candidates_per_task", "max_candidates", "max_updates", "max_seconds", "confirm")
CAPS = ("max_requests", "max_tokens", "max_usd", "max_reply_tokens")
COSTS = ("prices", *CAPS, "keep_replies")
MAY_CHANGE = frozenset((*WHERE, *HOW_MUCH, *COSTS))
"""Keys that a resumed run may set anew; never what it works on, or how that is judged."""


def load_optimize(
    source: str | None = None, *, typed: bool = False, **overrides: object
) -> OptimizeConfig:
    """From a preset's name or a YAML file (by default `quickstart`, or `learn` for one that
    learns) and what overrides it.

    Overrides that are None are left out. What nobody asked for gives way: a total of candidates is
    not cut by the default preset's few a task. Raises ConfigError naming the file and the key, or
    the override alone: as an option, such as `--max-usd`, where it was `typed`.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    default = LEARNING_PRESET if given.get("learn") else DEFAULT_PRESET
    origin, values = read_yaml(source or default, "optimize")
    named = {key: f"--{key.replace('_', '-')}" if typed else key for key in given}
    refuse_misfits(OptimizeConfig, values, origin)
    refuse_misfits(OptimizeConfig, given, "optimize")
    values |= given
    total = given.get("max_candidates")
    if source is None and "max_candidates_per_task" not in given and isinstance(total, int):
        values["max_candidates_per_task"] = max(total, values["max_candidates_per_task"])
    whose = {key: "optimize" if key in given else origin for key in ("evaluation", "strategy")}
    values["evaluation"] = evaluation_values(values.get("evaluation"), whose["evaluation"])
    if values.get("strategy") is not None:
        values["strategy"] = strategy_values(values["strategy"], whose["strategy"])
    prices = values.get("prices") or {}
    if isinstance(prices, Mapping):
        values["prices"] = read_yaml("default", "prices")[1] | dict(prices)
    models = values.get("models")
    if values.get("model") is not None and models and isinstance(models, list | tuple):
        values |= _chosen(str(values["model"]), models, origin)
    config = validate(OptimizeConfig, values, origin, named)
    _refuse_unused(config, origin, named)
    return config


def _refuse_unused(config: OptimizeConfig, origin: str, named: Mapping[str, str]) -> None:
    """Of what this call gives, what would do nothing. A file may hold it: for the models, say, that
    are typed beside it. But no run is to be taken for one that trains: a file's `train` needs its
    checkpoint, unless it is the default, which every saved config holds.
    """
    for key, name in named.items():
        if key in CAPS and not config.asked:
            raise ConfigError(f"{name} is for models at an endpoint; expected --model NAME")
        if key in ("ray_address", "gpu_type") and config.engine != "ray":
            wanted = "leave it out, or take --engine ray"
            raise ConfigError(f"{name} is of a Ray cluster, and the engine is local; {wanted}")
        if key == "train" and config.local is None:
            raise ConfigError(f"{name} is for a checkpoint; expected --model local:FOLDER")
    if config.train != OptimizeConfig.train and config.local is None:
        remedy = "expected --model local:FOLDER, or leave it out"
        raise ConfigError(f"{origin}: train is for a checkpoint; {remedy}")


def _chosen(name: str, models: Sequence[Any], origin: str) -> dict[str, Any]:
    """`model` beside `models` picks one of them."""
    known = {str(m.get("name")): m for m in models if isinstance(m, Mapping)}
    if name not in known:
        raise ConfigError(f"{origin}: models has no {name!r}; it has {', '.join(known)}")
    return {"model": None, "models": [known[name]]}


def load_evaluation(preset: str, asked_by: str = "") -> EvalConfig:
    """A preset of configs/evaluation, or a YAML file with fields of EvalConfig over those of the
    preset that its `preset` names (by default quick).
    """
    origin, values = _evaluation_file(preset, asked_by)
    return validate(EvalConfig, values, origin)


def _evaluation_file(preset: str, asked_by: str) -> tuple[str, dict[str, Any]]:
    origin, values = read_yaml(preset, "evaluation", asked_by)
    if preset in (names := preset_names("evaluation")):
        return origin, values
    base = str(values.get("preset", "quick"))
    if base not in names:
        hint = nearest(base, names)
        meant = f"did you mean {hint!r}?" if hint else f"expected one of {', '.join(names)}"
        raise ConfigError(f"{origin}: preset {base!r} is what the keys go over; {meant}")
    return origin, read_yaml(base, "evaluation")[1] | values


def evaluation_values(given: object, origin: str) -> dict[str, Any]:
    """`evaluation:` is a preset's name, or fields over those of its `preset` (by default quick)."""
    if isinstance(given, str):
        given = {"preset": given}
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{origin}: evaluation is {given!r}; expected a preset's name or keys")
    own = dict(given or {})
    preset = str(own.get("preset", "quick"))
    asked_by = f"{origin}: evaluation"
    load_evaluation(preset, asked_by)  # A fault in a file of its own is told of that file.
    base = _evaluation_file(preset, asked_by)[1]
    return base | own | {"preset": base["preset"]}


def protocol_of(config: EvalConfig) -> str:
    """What figures were measured by, in words: its preset, and every field that is not as there."""
    known = load_evaluation(config.preset)
    changed = [f.name for f in dataclasses.fields(config) if f.name != "preset"]
    changed = [name for name in changed if getattr(config, name) != getattr(known, name)]
    words = ", ".join(f"{name} {_in_words(getattr(config, name))}" for name in changed)
    return f"{config.preset} with {words}" if words else config.preset


def _in_words(value: object) -> str:
    if isinstance(value, tuple):
        return " and ".join(map(str, value)) or "none"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def strategy_values(given: object, origin: str, path: str = "strategy") -> dict[str, Any]:
    """`strategy:` is a preset's name or file, or settings over the preset that `kind` names."""
    if isinstance(given, str):
        return _strategy_file(given, f"{origin}: {path}")
    kind = str(given.get("kind")) if isinstance(given, Mapping) else ""
    if not isinstance(given, Mapping) or kind not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError(f"{origin}: {path} is {given!r}; expected a name or a kind of {known}")
    refuse_misfits(STRATEGIES[kind], given, origin, f"{path}.")
    preset = read_yaml(kind, "strategy")[1]
    merged = preset | dict(given)
    across = given.get("across") or {}
    if "across" in preset and isinstance(across, Mapping):
        merged["across"] = preset["across"] | dict(across)
    return _with_arms(merged, origin, f"{path}.")


def _strategy_file(source: str, asked_by: str) -> dict[str, Any]:
    """Of a preset or a file, whose own faults are told of it."""
    origin, values = read_yaml(source, "strategy", asked_by)
    if str(values.get("kind")) not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError(f"{origin}: kind is {values.get('kind')!r}; expected one of {known}")
    kind = STRATEGIES[values["kind"]]
    refuse_misfits(kind, values, origin)
    whole = _with_arms(values, origin, "")
    validate(kind, whole, origin)
    return whole


def _with_arms(values: dict[str, Any], origin: str, prefix: str) -> dict[str, Any]:
    """A portfolio's arms are strategies like any other: presets' names, or settings over them."""
    arms = values.get("arms")
    if not isinstance(arms, list):
        return values
    known = [strategy_values(arm, origin, f"{prefix}arms.{i}") for i, arm in enumerate(arms)]
    return values | {"arms": known}


def validate(
    kind: type[T], values: Mapping[str, Any], origin: str, named: Mapping[str, str] | None = None
) -> T:
    """The dataclass from plain values; raises ConfigError for the first thing wrong, blaming
    `origin`, or what the key is `named` where it did not come from there.
    """
    refuse_misfits(kind, values, origin)
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        path, why = _first_wrong(error, values)
        key, *inner = path or [""]
        if named is None or key not in named:
            raise ConfigError(f"{origin}: {'.'.join(path)}{why}") from error
        within = f": {'.'.join(inner)}" if inner else ""
        raise ConfigError(f"{named[key]}{within}{why}") from error


KINDS = {
    "dataclass_type": "keys and values",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "tuple_type": "a list",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
"""What YAML calls the types for which pydantic has a name of Python's."""
MISSING = "missing"
"""What pydantic calls the error of a key that has no default."""


def _first_wrong(error: ValidationError, values: object) -> tuple[list[str], str]:
    """The key's path, empty where the whole is wrong, and the words that follow it."""
    first = error.errors()[0]
    path = _key_path(first["loc"], values)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        return [*path, cause.field], f" {cause.why}"
    why = first["msg"].removeprefix("Value error, ")
    if first["type"] == MISSING and path:
        return path, " is missing; it has no default"
    expected = KINDS.get(first["type"], why.removeprefix("Input should be "))
    if expected != why:
        return path, f" is {first['input']!r}; expected {expected}"
    return path, f": {why}" if path else why


def _key_path(loc: Sequence[str | int], values: object) -> list[str]:
    """As the file has it: pydantic names the kind of a union's member as if it were a key."""
    path = []
    for part in loc:
        if isinstance(values, Mapping):
            if part not in values and values.get("kind") == part:
                continue
            values = values.get(part)
        elif isinstance(values, list | tuple) and isinstance(part, int):
            values = values[part]
        path.append(str(part))
    return path


def to_yaml(config: OptimizeConfig) -> str:
    return yaml.safe_dump(to_record(config), sort_keys=False)
