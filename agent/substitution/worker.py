"""The child that runs the user's model with and without a library's operators.

`python -m agent.substitution.worker` (agent/extraction/child.py says how it is asked).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from agent.extraction.child import answer
from agent.extraction.model import UserModel, load_user_model
from agent.substitution.library import import_library
from agent.substitution.measure import measure
from agent.substitution.report import PlaceFound
from agent.substitution.verify import verify
from sandbox.device import fingerprint
from sandbox.errors import ConfigError
from sandbox.records import to_record


def work(request: dict[str, Any]) -> dict[str, Any]:
    """`find`: places and missing. `verify`: outputs and gradients. `measure`: one process."""
    library = import_library(request["library"])
    user = load_user_model(Path(request["model"]), request["device"])
    if request["task"] == "find":
        return _found(library, user) | {"environment": fingerprint(request["device"])}
    if request["task"] == "verify":
        return {"verified": to_record(_verified(library, user, request["only"]))}
    patches = {}
    for name, only in request["variants"].items():
        patches[name] = library.patch(user.model, *user.inputs, only=only)
        patches[name].off()
    done = measure(user, patches, request["device"], request["seed"])
    return {"seconds": done.seconds, "logs": done.logs}


def _found(library: Any, user: UserModel) -> dict[str, Any]:
    patch = library.patch(user.model, *user.inputs)
    places = [PlaceFound(p.operator, p.module, p.nodes, p.state) for p in patch.places]
    missing = patch.reasons()
    patch.unpatch()
    return {"places": to_record(places), "missing": missing}


def _verified(library: Any, user: UserModel, only: list[str]) -> Any:
    def counts() -> dict[str, int]:
        return {name: found.get("kernel", 0) for name, found in library.counts().items()}

    try:
        return verify(user, lambda: library.patch(user.model, *user.inputs, only=only), counts)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{user.path}: out of memory while comparing; use smaller inputs"
        ) from error


if __name__ == "__main__":
    answer(work)
