"""A user's model file: its contract, and the model and sample inputs that it makes.

The file defines `get_inputs()`, a list of what forward is called with, and either `class Model`
with `get_init_inputs()`, as problems do, or `make_model()`, which returns the module. It may import
its neighbours; it is the user's own code and runs in a process of ours without walls.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kernelbench.problem import bindings
from sandbox.errors import ConfigError

EXPECTED = (
    "a model file defines get_inputs(), and class Model with get_init_inputs(), or make_model()"
)
SEED = 0


@dataclass(frozen=True)
class UserModel:
    """In eval mode, on its device, with one set of inputs."""

    path: Path
    model: torch.nn.Module
    inputs: tuple[Any, ...]
    fresh: Callable[[int], tuple[Any, ...]]
    """Another set of inputs, by seed."""


def check_model_file(path: Path) -> None:
    """Raises ConfigError where the text cannot be a model file; executes nothing."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; {EXPECTED}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text; {EXPECTED}") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or "?"
        raise ConfigError(f"{path}: not Python: {error.args[0]} (line {line})") from error
    bound = set(bindings(tree))
    if "make_model" not in bound and not {"Model", "get_init_inputs"} <= bound:
        missing = "class Model" if "Model" not in bound else "get_init_inputs()"
        raise ConfigError(f"{path}: no {missing} and no make_model(); {EXPECTED}")
    if "get_inputs" not in bound:
        raise ConfigError(f"{path}: no get_inputs(); {EXPECTED}")


def load_user_model(path: Path, device: str) -> UserModel:
    """Execute the file and make its model; raises ConfigError, in one line, where that fails."""
    check_model_file(path)
    module = _executed(path)
    torch.manual_seed(SEED)
    if hasattr(module, "make_model"):
        model = _asked(path, "make_model()", module.make_model)
    else:
        arguments = _asked(path, "get_init_inputs()", module.get_init_inputs)
        model = _asked(path, "Model", lambda: module.Model(*arguments))
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise ConfigError(f"{path}: the model is a {kind}; expected a torch.nn.Module")
    model = _asked(path, f"the model on {device}", lambda: model.to(device).eval())

    def fresh(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        given = _asked(path, "get_inputs()", module.get_inputs)
        if not isinstance(given, list | tuple):
            kind = type(given).__name__
            raise ConfigError(f"{path}: get_inputs() returns a {kind}; expected a list")
        return tuple(tree_map(lambda v: v.to(device) if torch.is_tensor(v) else v, list(given)))

    inputs = fresh(SEED)
    if not any(torch.is_tensor(v) for v in inputs):
        raise ConfigError(f"{path}: get_inputs() returns no tensor; expected forward's arguments")
    with torch.no_grad():
        _asked(path, "forward", lambda: model(*inputs))
    return UserModel(path, model, inputs, fresh)


def _executed(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    _asked(path, "the file", lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _asked(path: Path, what: str, call: Callable[[], Any]) -> Any:
    """What a piece of the user's code returns; ConfigError where it raises or exits."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # the user's own code runs here
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise ConfigError(f"{path}: {what} failed: {type(error).__name__}: {said}") from error
