"""A campaign to be killed (tests/agent/killable.py)."""

from pathlib import Path

from agent.journals.storage import RunLock
from tests.agent.scripts import campaign, local_engine, script

SOURCES = {
    name: [script(i, speedup=1 + i / 10, seconds=0.03) for i in range(8)] for name in ("a", "b")
}
OPTIONS = {"max_candidates_per_task": 8, "proposals_per_round": 3, "confirm": False}


def main(name: str) -> None:
    folder = Path(name)
    RunLock(folder)
    engine = local_engine(log=folder / "log")
    campaign(folder, SOURCES, engine, **OPTIONS)
    engine.close()
