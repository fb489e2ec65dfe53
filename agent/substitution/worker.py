"""The child that runs the user's model with and without a library's operators.

`python -m agent.substitution.worker` (agent/extraction/child.py says how it is asked).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from agent.extraction.child import answer
from agent.extraction.model import UserModel, load_user_model
from agent.substitution.library import import_library
from agent.substitution.measure import measure
from agent.substitution.report import PlaceFound, Verified
from agent.substitution.verify import verify
from sandbox.errors import ConfigError
from sandbox.machine.device import fingerprint
from sandbox.records import to_record


def work(request: dict[str, Any]) -> dict[str, Any]:
    """`find`: places and missing. `verify`: outputs and gradients. `measure`: one process."""
    library = import_library(request["library"])
    user = load_user_model(Path(request["model"]), request["device"])
    try:
        return _worked(library, user, request)
    except library.LibraryError as error:
        raise ConfigError(f"{request['library']['package']}: {error}") from error


def _worked(library: Any, user: UserModel, request: dict[str, Any]) -> dict[str, Any]:
    if request["task"] == "find":
        return _found(library, user) | {"environment": fingerprint(request["device"])}
    if request["task"] == "verify":
        return {"verified": to_record(_verified(library, user, request["only"]))}
    patches = {}
    for name, only in request["variants"].items():
        patches[name] = library.patch(user.model, *user.inputs, only=only)
        patches[name].off()
    done = measure(user, patches, request["device"], request["seed"], request["compiled"])
    return asdict(done)


def _found(library: Any, user: UserModel) -> dict[str, Any]:
    patch = library.patch(user.model, *user.inputs)
    places = [PlaceFound(p.operator, p.module, p.nodes, p.state) for p in patch.places]
    missing = patch.reasons()
    patch.unpatch()
    return {"places": to_record(places), "missing": missing}


def _verified(library: Any, user: UserModel, only: list[str]) -> Verified:
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)

    def counts() -> dict[str, int]:
        return {name: found.get("kernel", 0) for name, found in library.counts().items()}

    try:
        found = verify(user, lambda: library.patch(user.model, *user.inputs, only=only), counts)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{user.path}: out of memory while comparing; use smaller inputs"
        ) from error
    finally:
        logging.getLogger().removeHandler(warnings)
    idle = {name: library.counts()[name] for name in only if not found.kernels.get(name)}
    return replace(found, idle={name: warnings.of(name, idle[name]) for name in idle})


class Warnings(logging.Handler):
    """What the library warned of: a damaged kernel, a compiler that is not there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())

    def of(self, operator: str, otherwise: Sequence[str]) -> str:
        """About the operator, in one line; else why its reference ran, as it was counted."""
        known = (told for told in self._told if f".{operator}: " in told)
        return " ".join(next(known, ", ".join(otherwise) or "it was not called").split())


if __name__ == "__main__":
    answer(work)
