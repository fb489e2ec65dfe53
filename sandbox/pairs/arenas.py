"""Which arenas a search's candidate needs on a GPU: they are made once, and small ones before its
turn.

Each costs calls of the driver, as outputs do, and it serves one process of the host after the
other. While four GPUs' workers make their contexts, a candidate that waits for such calls keeps its
GPU waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandbox.checking.pool import Pool
from sandbox.machine.trees import Layout
from sandbox.subjects import bell
from sandbox.subjects.early import Early
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import layouts
from sandbox.subjects.subject import SCRAMBLED
from sandbox.worker.reserve import cut

ONCE_SHARE = 1 / 8
"""Of a GPU's memory: arenas that a candidate is verified in take no more, unless it needs them for
that."""
EARLY_SHARE, EACH_SHARE, FREE_SHARE = 1 / 12, 1 / 24, 1 / 3
"""What all that wait for their turn may take, and each of them, while so much is free: a large task
is planned to leave a quarter of that to what its candidates need beside the plan."""
MORE_CALLS = 2
"""Of a batch that verifies: one is repeated, and that again in haste
(sandbox/checking/verify.py)."""


def early(pools: Sequence[Pool], first: Pool, plan: Plan, memory_bytes: int) -> Early | None:
    """Arenas for all of it, else for being verified; none where these are large."""
    outputs = max((len(p.cases) + MORE_CALLS) * cut(Layout(p.signature.outputs, 1)) for p in pools)
    most = EACH_SHARE * memory_bytes - outputs - pools[0].signature.input_bytes
    sizes = needed(pools, plan, most) or needed(pools, None, most)
    if not sizes:
        return None
    within, least_free = int(EARLY_SHARE * memory_bytes), int(FREE_SHARE * memory_bytes)
    timed, calls = pools[0].signature, len(first.cases)
    rung_for = None if bell.carried(timed.input_bytes) else timed
    if rung_for is not None:
        sizes = {**sizes, SCRAMBLED: Layout(timed.inputs, 1).bytes}
    return Early(sizes, outputs, first.signature, calls, rung_for, within, least_free)


def needed(pools: Sequence[Pool], plan: Plan | None, most_bytes: float) -> Mapping[str, int]:
    """Bytes of each arena of a worker in which every shape is verified and, if there is a plan, the
    first one timed; none where they are more than `most_bytes` together.
    """
    wanted = [layouts(pool.signature, len(pool.cases), len(pool.cases)) for pool in pools]
    if plan is not None:
        wanted.append(layouts(pools[0].signature, plan.sets + plan.warm, plan.slots))
    most = {name: max(max(each[name].bytes, 1) for each in wanted) for name in wanted[0]}
    return most if sum(most.values()) <= most_bytes else {}
