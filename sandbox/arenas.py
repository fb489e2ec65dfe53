"""Which arenas a search's candidate needs on a GPU: they are made once, and small ones before its
turn.

Each costs calls of the driver, which serves one process of the host after the other. While four
GPUs' workers make their contexts, a candidate that waits for such calls keeps its GPU waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandbox.plan import Plan
from sandbox.pool import Pool
from sandbox.subject import layouts

ONCE_SHARE = 1 / 8
"""Of a GPU's memory: arenas that a candidate is verified in take no more, unless it needs them for
that."""
EARLY_SHARE = 1 / 128
"""What each of those that wait for their turn may take."""


def needed(pools: Sequence[Pool], plan: Plan, most_bytes: float) -> Mapping[str, int]:
    """Bytes of each arena of a worker in which every shape is verified and the first one timed;
    none where they are more than `most_bytes` together.
    """
    timed = pools[0].signature
    wanted = [layouts(timed, plan.sets + plan.warm, plan.slots)]
    wanted += [layouts(pool.signature, len(pool.cases), len(pool.cases)) for pool in pools]
    most = {name: max(max(each[name].bytes, 1) for each in wanted) for name in wanted[0]}
    return most if sum(most.values()) <= most_bytes else {}
