"""The built-in proposer: kernels for row programs from a searched pool of features, without a
language model.

After the feature search of CUDA-LLM (arXiv 2506.09092), with a code generator in the model's place:
the gate order, the best-so-far centre and the reaction to failures are the same. Rows are reported
as `no model`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from agent.features import cpp, cuda_pool, cuda_strided, cuda_turned
from agent.features.assemble import candidate, without_header
from agent.features.host import skeleton
from agent.features.planner import plan
from agent.features.program import Plan
from agent.features.search import Features, Order, Space, best, drawn, points
from agent.features.terms import FLOATS, Unsupported
from agent.types import FIRST_TURN, Attempt, Proposal, Turn, Usage
from sandbox.errors import TaskError
from sandbox.graph import trace_all
from sandbox.types import Task, digest


class FeatureProposer:
    """Depends on the task, the history and the seed only; traces are cached per task hash."""

    name = "features"
    wants_measured = False

    def __init__(self, seed: int = 0, order: Order = "search") -> None:
        """`order`: by the history, or by chance."""
        self.seed = seed
        self.order = order
        self._plans: dict[str, Plan | str] = {}

    def unsupported(self, task: Task) -> str | None:
        """None for a row program, else one line that says what is not covered."""
        found = self._plan(task)
        return found if isinstance(found, str) else None

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        """Good defaults, then one or two moves from the fastest attempt; never a repetition."""
        found = self._plan(task)
        if isinstance(found, str):
            return []
        known = {without_header(a.proposal.candidate.source) for a in history}
        space = _space(task, found)
        seed = digest([self.seed, task.hash, len(history)])
        if self.order == "random":
            centre, chosen = None, drawn(space, seed)
        else:
            centre, chosen = best(history, space.pool), points(space, history, seed)
        proposals: list[Proposal] = []
        began = time.monotonic()
        for point in chosen:
            if len(proposals) >= n:
                break
            made = candidate(task, found, point)
            body = without_header(made.source)
            if body in known:  # Some features do not matter to some programs.
                continue
            known.add(body)
            seconds, began = time.monotonic() - began, time.monotonic()
            proposals.append(
                Proposal(
                    made,
                    self.name,
                    f"feature {self.order}",
                    parents=(centre.proposal.candidate.id,) if centre is not None else (),
                    features=dict(point),
                    usage=Usage(seconds=seconds),
                )
            )
        return proposals

    def _plan(self, task: Task) -> Plan | str:
        if task.hash not in self._plans:
            self._plans[task.hash] = _planned(task)
        return self._plans[task.hash]


def _planned(task: Task) -> Plan | str:
    if task.dtype not in FLOATS:
        return f"no feature template for {task.dtype}"
    try:
        found = plan(trace_all(task))
        if task.device == "cpu" and any(program.window for program in found.programs):
            return "no feature template in C++ for pooling"
        strided = [program.column_count for program in found.programs if program.strided]
        if strided and task.device == "cpu":
            return "no feature template in C++ for reductions along a leading dimension"
        if max(strided, default=0) > cuda_strided.MOST:
            return f"no feature template for {max(strided)} elements along a leading dimension"
        skeleton(task.source)
        return found
    except (Unsupported, TaskError) as error:
        return str(error)


def _space(task: Task, found: Plan) -> Space:
    """Pool and starting points; the first is the default, the others differ in a decisive way."""
    program = found.programs[found.main]
    host = task.device == "cpu"
    if program.inner or program.window or program.scan is not None:
        pool = cpp.pool(program) if host else cuda_pool.pool(program)
        usual = cpp.default(program) if host else cuda_pool.default(program)
        size = "tile" if "tile" in pool else "chunk" if host else "threads"

        def fits(point: Features) -> bool:
            return host or point["form"] != "turned" or cuda_turned.fits(program, point)

        sized = [{**usual, size: value} for value in pool[size]]
        return Space(pool, tuple(point for point in sized if fits(point)), fits)
    if host:
        first = cpp.default(program)
        other = {**first, "form": "tiles" if first["form"] == "rows" else "rows"}
        small = {**first, "chunk": 1024}
        return Space(cpp.POOL, (first, small, other), lambda point: True)
    start = cuda_pool.default(program)
    starts = [
        start,
        {**start, "stores": "streaming"},
        {**start, "math": "fast"},
        *cuda_pool.others(program),
    ]
    sensible = partial(cuda_pool.fits, program)
    return Space(cuda_pool.POOL, tuple(filter(sensible, starts)), sensible)
