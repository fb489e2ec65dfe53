"""Where a Ray campaign's builds run: where the lanes are, on cores that these leave."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(240)]

COMMON = """
import os, sys
from types import SimpleNamespace
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster
from agent.engines.ray_engine import RayEngine
from sandbox.types import Candidate, EvalConfig, Language, Task

class Idle:
    def __init__(self, index): self.facts = SimpleNamespace(environment={})
    def close(self): pass

def build(candidate, config, task):
    with open(LOG, "a") as file:
        file.write(ray.get_runtime_context().get_node_id() + "\\n")

cloudpickle.register_pickle_by_value(sys.modules["__main__"])

def built(engine, count):
    task = Task("t", "x", "cuda")
    asked = [Candidate("t", Language.CUDA_INLINE, str(n)) for n in range(count)]
    for future in [engine.submit_build(task, each, EvalConfig()) for each in asked]:
        future.result(timeout=90)
"""
ONE_CORE = """
engine = RayEngine(Idle, build, device="cuda", cpus=1, gpus=1, depth=2)
engine.submit_environment().result(timeout=90)
built(engine, 2)
os._exit(0)
"""
HEAD_WITHOUT_GPU = """
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 0})
cluster.add_node(num_cpus=4, num_gpus=1)
engine = RayEngine(Idle, build, device="cuda", address=cluster.address, depth=2)
engine.submit_environment().result(timeout=90)
built(engine, 8)
[there] = [n["NodeID"] for n in ray.nodes() if n["Resources"].get("GPU")]
assert open(LOG).read().split() == [there] * 8
os._exit(0)
"""


@pytest.mark.parametrize("program", [ONE_CORE, HEAD_WITHOUT_GPU], ids=["one core", "head"])
def test_builds_go_where_lanes_are_and_wait_for_none_of_their_cores(
    tmp_path: Path, program: str
) -> None:
    """With as many cores as lanes none ever began; on a head without a GPU they were for no GPU,
    and every candidate was built again by its lane.
    """
    log = tmp_path / "log"
    done = subprocess.run(
        [sys.executable, "-c", f"LOG = {str(log)!r}\n{COMMON}{program}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(log.read_text().split()) in (2, 8)
