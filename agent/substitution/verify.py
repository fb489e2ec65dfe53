"""The patched model against the model, outputs and gradients, end to end.

The evaluator's rule: truth is the model in float64, and the bound on the patched model's error is
the largest of the dtype's class constant, four times the unpatched model's own error, and what
rounding the inputs would do (sandbox/checking/pool.py). Where the model does not run in float64,
truth is the unpatched model's own result, and its own error what rounding the inputs does to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from agent.extraction.model import UserModel
from agent.substitution.report import Check, Verified
from sandbox.checking import compare
from sandbox.checking.bounds import JITTER, bound
from sandbox.machine.trees import Leaf
from sandbox.observation import Errors
from sandbox.types import EvalConfig

SETS = 3
"""Of inputs: the given ones, then fresh values."""
CONFIG = EvalConfig()


@dataclass(frozen=True)
class Results:
    """Of one run: outputs, and gradients of a fixed random projection of them."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]


Counts = Callable[[], dict[str, int]]


def verify(user: UserModel, patch: Callable[[], Any], counts: Counts) -> Verified:
    """Run the model before and after `patch()`, which returns something with `unpatch()`."""
    sets = [user.inputs, *(user.fresh(seed) for seed in range(1, SETS))]
    own = [_run(user.model, inputs) for inputs in sets]
    double = _double(user.model, sets[0])
    judge, oracle = (user.model, "its own dtype") if double is None else (double, "float64")
    truths = own if double is None else [_run(double, _cast(inputs)) for inputs in sets]
    shaken = [_run(judge, _jittered(inputs, double is not None)) for inputs in sets]
    before = counts()
    patched = patch()
    try:
        found = [_run(user.model, inputs) for inputs in sets]
        ran = {name: count - before.get(name, 0) for name, count in counts().items()}
    finally:
        patched.unpatch()
    outputs: dict[str, Check] = {}
    gradients: dict[str, Check] = {}
    for runs in zip(found, own, truths, shaken, strict=True):
        if len({(len(r.outputs), tuple(r.gradients)) for r in runs}) > 1:
            return Verified(oracle=oracle, kernels=ran)
        for i, tensors in enumerate(zip(*(r.outputs for r in runs), strict=True)):
            _keep(outputs, _check(f"output {i}", Compared(*tensors), double is not None))
        for key in runs[0].gradients:
            one = Compared(*(r.gradients[key] for r in runs))
            _keep(gradients, _check(f"gradient of {key}", one, double is not None))
    why = "" if gradients else "no output has one"
    return Verified(tuple(outputs.values()), tuple(gradients.values()), why, oracle, ran)


@dataclass(frozen=True)
class Compared:
    """One output or gradient: patched, unpatched, the truth, and the truth of jittered inputs."""

    new: torch.Tensor
    old: torch.Tensor
    truth: torch.Tensor
    """In float64, or the unpatched result where that could not be."""
    shaken: torch.Tensor


def _keep(checks: dict[str, Check], check: Check) -> None:
    """Over all sets the failure, else the one closest to its bound."""
    known = checks.get(check.what)
    if known is None or _badness(check) > _badness(known):
        checks[check.what] = check


def _badness(check: Check) -> tuple[bool, float]:
    return not check.passed, check.error / check.bound if check.bound else check.error


def _check(name: str, given: Compared, in_double: bool) -> Check:
    new, old, truth = given.new, given.old, given.truth
    if new.shape != old.shape or new.dtype != old.dtype:
        return Check(name, float("inf"), 0.0, False)
    leaf = Leaf(tuple(old.shape), str(old.dtype).removeprefix("torch."), (), 1)
    shake = compare.errors(given.shaken, truth)
    own = compare.errors(old, truth) if in_double else shake
    limit = bound(leaf, own, shake, CONFIG)
    error = compare.errors(new, truth)
    if not in_double:  # the unpatched model's own error is in the truth
        limit = Errors(limit.norm + own.norm, limit.row + own.row, limit.element + own.element)
    return Check(name, error.norm, limit.norm, error.within(limit))


def _double(model: torch.nn.Module, inputs: tuple[Any, ...]) -> torch.nn.Module | None:
    """The model in float64; None where it does not run there."""
    try:
        double = copy.deepcopy(model).double()
        _run(double, _cast(inputs))
    except Exception:  # noqa: BLE001  the user's code may not be copied, or insist on a dtype
        return None
    return double


def _cast(inputs: Sequence[Any]) -> tuple[Any, ...]:
    def cast(value: Any) -> Any:
        floating = torch.is_tensor(value) and value.is_floating_point()
        return value.double() if floating else value

    return tuple(tree_map(cast, list(inputs)))


def _jittered(inputs: Sequence[Any], double: bool) -> tuple[Any, ...]:
    """Rounding of float32, at random."""
    generator = torch.Generator().manual_seed(1)

    def jitter(value: Any) -> Any:
        if not torch.is_tensor(value) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        moved = value.double() * (1 + JITTER * noise.to(value.device))
        return moved if double else moved.to(value.dtype)

    return tuple(tree_map(jitter, list(inputs)))


def _run(model: torch.nn.Module, inputs: Sequence[Any]) -> Results:
    given = tree_map(_leaf, list(inputs))
    with torch.enable_grad():
        result = model(*given)
        outputs = [v for v in tree_leaves(result) if torch.is_tensor(v)]
        wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
        leaves = [v for v in tree_leaves(given) if torch.is_tensor(v) and v.requires_grad]
        wanted |= {f"input {i}": v for i, v in enumerate(leaves)}
        projected = [_projected(v) for v in outputs if v.requires_grad]
        found: Sequence[torch.Tensor | None] = ()
        if projected and wanted:
            total = torch.stack(projected).sum()
            found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    named = zip(wanted, found, strict=True) if found else ()
    gradients = {name: g.detach() for name, g in named if g is not None}
    return Results([v.detach() for v in outputs], gradients)


def _leaf(value: Any) -> Any:
    if torch.is_tensor(value) and value.is_floating_point():
        return value.detach().clone().requires_grad_()
    return value


def _projected(output: torch.Tensor) -> torch.Tensor:
    """On one random direction, the same in every run: no symmetry hides an error."""
    generator = torch.Generator().manual_seed(output.numel())
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return (output.double() * weights.to(output.device)).sum()
