"""`warpsmith apply`: a library's operators in a user's model, kept where they are right and do no
harm.

Found and verified first, each operator by itself where the whole differs; then timed, each by
itself and all together. What is wrong, did not run, or is slower by its whole interval, is taken
back, and the rest is verified and timed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.extraction.child import ask
from agent.extraction.model import check_model_file
from agent.substitution.library import find_library
from agent.substitution.measure import COMPILED, Process, summarise
from agent.substitution.report import Application, Latency, PlaceFound, Verified
from sandbox.errors import ConfigError
from sandbox.records import from_record

WORKER = "agent.substitution.worker"
TIMEOUT_S = 900.0
ALL = "all"
LEAST_PROCESSES = 2

Tell = Callable[[str], None]


def apply(
    model: Path,
    library: str,
    device: str,
    processes: int,
    tell: Tell = lambda line: None,
    *,
    compiled: bool = True,
) -> Application:
    """`compiled`: the model as it is under torch.compile is timed too. Raises ConfigError where the
    model or the library cannot be used.
    """
    if processes < LEAST_PROCESSES:
        raise ConfigError(f"pairs is {processes}; an interval needs at least {LEAST_PROCESSES}")
    check_model_file(model)
    return _Applying(model, find_library(library), device, processes, tell, compiled).run()


class _Applying:
    def __init__(
        self,
        model: Path,
        library: dict[str, str],
        device: str,
        processes: int,
        tell: Tell,
        compiled: bool,
    ) -> None:
        self.model, self.library, self.device = model, library, device
        self.processes, self.tell = processes, tell
        self.taken_back: dict[str, str] = {}
        self.compile = compiled
        self.compiled: Latency | None = None
        self.not_compiled = ""

    def run(self) -> Application:
        self.tell("looking for places")
        found = self.ask("find")
        places = tuple(from_record(PlaceFound, record) for record in found["places"])
        kept = list(dict.fromkeys(p.operator for p in places if p.replaced))
        verified, kept = self.right(kept) if kept else (None, [])
        if verified is not None and verified.idle:
            self.taken_back |= {n: f"its kernel did not run: {w}" for n, w in verified.idle.items()}
            kept = [name for name in kept if name not in verified.idle]
            verified = self.verified(kept) if kept else verified
        alone: dict[str, Latency] = {}
        latency = None
        if kept:
            alone, latency = self.timed(kept)
            slower = [name for name, one in alone.items() if one.slower]
            for name in slower:
                self.taken_back[name] = f"slower, {alone[name].speedup}"
            if slower:
                kept = [name for name in kept if name not in slower]
                verified, latency = (self.verified(kept), None) if kept else (None, None)
                if kept:
                    _, latency = self.timed(kept, apart=False)
            if latency is not None and latency.slower:
                self.taken_back |= dict.fromkeys(kept, f"slower together, {latency.speedup}")
                kept = []
        return Application(
            self.model.name,
            self.library["package"],
            self.device,
            places,
            found["missing"],
            tuple(kept),
            self.taken_back,
            verified,
            latency,
            alone if len(alone) > 1 or not kept else {},
            found["environment"],
            self.compiled,
            self.not_compiled,
        )

    def right(self, names: list[str]) -> tuple[Verified, list[str]]:
        """What of the operators leaves the model right, and the proof."""
        self.tell("comparing outputs and gradients")
        together = self.verified(names)
        if together.passed:
            return together, names
        right = []
        for name in names:
            alone = together if len(names) == 1 else self.verified([name])
            if alone.passed:
                right.append(name)
            else:
                worst = alone.worst
                what = "no output" if worst is None else f"{worst.what}, {worst.error:.1e} off"
                self.taken_back[name] = f"wrong: {what}"
        if not right or len(right) == len(names):
            # Right one by one and wrong together: none of them can be trusted here.
            self.taken_back |= dict.fromkeys(right, "wrong together with the others")
            return together, []
        again = self.verified(right)
        if again.passed:
            return again, right
        self.taken_back |= dict.fromkeys(right, "wrong together with the others")
        return again, []

    def verified(self, names: Sequence[str]) -> Verified:
        return from_record(Verified, self.ask("verify", only=list(names))["verified"])

    def timed(self, names: list[str], apart: bool = True) -> tuple[dict[str, Latency], Latency]:
        variants = {ALL: names}
        if apart and len(names) > 1:
            variants |= {name: [name] for name in names}
        done = []
        for number in range(self.processes):
            self.tell(f"timing, process {number + 1} of {self.processes}")
            seed, compiled = 1000 * (number + 1), self.compile and apart
            reply = self.ask("measure", variants=variants, seed=seed, compiled=compiled)
            done.append(Process(**reply))
        whole = summarise(done, ALL)
        if self.compile and apart:
            self.not_compiled = next((p.not_compiled for p in done if p.not_compiled), "")
            self.compiled = None if self.not_compiled else summarise(done, COMPILED)
        if not apart:
            return {}, whole
        if len(names) == 1:
            return {names[0]: whole}, whole
        return {name: summarise(done, name) for name in names}, whole

    def ask(self, task: str, **fields: Any) -> Any:
        request = {
            "task": task,
            "model": str(self.model.resolve()),
            "library": self.library,
            "device": self.device,
            **fields,
        }
        return ask(WORKER, str(self.model), request, TIMEOUT_S)
