"""A campaign on two Ray nodes of which one is removed: `python -m tests.agent.two_nodes FOLDER`.

In a process of its own, since a process can be connected to one Ray cluster only.
"""

import sys
import threading
import time
from functools import partial
from pathlib import Path

from agent.engines.ray_engine import RayEngine
from agent.proposing.scripted import ScriptedEvaluator
from tests.agent.scripts import calls, campaign, script

SOURCES = {n: [script(i, speedup=1 + i, seconds=0.4) for i in range(8)] for n in ("a", "b")}
OPTIONS = {"max_candidates_per_task": 8, "proposals_per_round": 4, "confirm": False}


def main(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    log = folder / "log"
    engine = RayEngine(partial(ScriptedEvaluator, log=log), address=cluster.address)
    print("lanes", engine.lanes)

    def remove() -> None:
        while len(calls(log, "evaluate")) < 4:
            time.sleep(0.05)
        cluster.remove_node(second)

    threading.Thread(target=remove, daemon=True).start()
    result = campaign(folder / "run", SOURCES, engine, **OPTIONS)
    print("tried", result.tried, "stopped", result.stopped)
    engine.close()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
