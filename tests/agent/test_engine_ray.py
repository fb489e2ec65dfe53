"""The same loop on Ray: equal decisions, and a lost node costs no finished evaluation."""

import os
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path

import psutil
import pytest

from agent.engines.engine import LocalEngine
from agent.engines.ray_engine import RayEngine, ray
from agent.engines.reaper import of_session
from agent.journals.journal import Journal
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.errors import InvalidReference, SandboxFault
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import calls, campaign, candidate, make_task, note_build, script

pytestmark = pytest.mark.xdist_group("ray")

SOURCES = {
    "a": [script(1, speedup=1.5), script(2, status="TIMEOUT"), script(3, speedup=3.0), script(4)],
    "b": [script(i, speedup=1 + i) for i in range(4)],
    "c": [script(1, status="SANDBOX_ERROR"), script(2, speedup=0.5)],
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("ray") / "log"


@pytest.fixture(scope="module")
def engine(log):
    evaluator = partial(ScriptedEvaluator, log=log, invalid=("test/invalid",))
    made = RayEngine(evaluator, partial(note_build, log), cpus=2)
    yield made
    made.close()


def test_decisions_are_those_of_the_local_engine(engine, tmp_path):
    options = {"proposals_per_round": 2}
    on_ray = campaign(tmp_path / "ray", SOURCES, engine, **options)
    local_engine = LocalEngine(ScriptedEvaluator)
    local = campaign(tmp_path / "local", SOURCES, local_engine, **options)
    local_engine.close()
    assert on_ray.tasks == local.tasks
    for name in SOURCES:
        with Journal(tmp_path / "ray") as one, Journal(tmp_path / "local") as other:
            assert one.attempts(f"test/{name}") == other.attempts(f"test/{name}")


@pytest.mark.slow
def test_builds_run_in_other_processes(engine, log):
    source = candidate("a", script(97))
    engine.submit_build(make_task("a"), source, EvalConfig()).result(60)
    assert calls(log, "build") == [source.id]


def test_a_remote_exception_arrives_as_itself(engine):
    with pytest.raises(InvalidReference) as caught:
        engine.submit_prepare(make_task("invalid"), EvalConfig()).result(60)
    assert str(caught.value) == "test/invalid: the reference's output is constant"


def test_a_build_that_a_node_cannot_load_is_our_fault_and_ends_nothing(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "nowhere", types.ModuleType("nowhere"))
    build = type("Build", (), {"__module__": "nowhere"})  # its name alone is sent to a node
    sys.modules["nowhere"].Build = build
    engine = RayEngine(partial(ScriptedEvaluator, log=log), build)
    with pytest.raises(SandboxFault, match=r"building .*: System error: No module named 'nowhere'"):
        engine.submit_build(make_task("a"), candidate("a", script(96)), EvalConfig()).result(60)
    engine.close()


@pytest.mark.slow
def test_a_candidate_that_kills_its_lane_three_times_is_our_fault_not_a_verdict(engine, log):
    deadly = candidate("a", script(99, exit=3))
    future = engine.submit_evaluate(make_task("a"), deadly, EvalConfig(), None)
    assert future.result(60).status is Status.SANDBOX_ERROR
    assert calls(log, "start").count(deadly.id) == 3
    healthy = candidate("a", script(98))
    assert engine.submit_evaluate(make_task("a"), healthy, EvalConfig(), None).result(60).passed


ENDED = """
import os, signal
from agent.engines.ray_engine import RayEngine
from agent.runs import interruptible
from agent.proposing.scripted import ScriptedEvaluator
with interruptible(lambda: print("told")) as interrupted:
    engine = RayEngine(ScriptedEvaluator, cpus=1)
    os.kill(os.getpid(), signal.SIGTERM)
    print(interrupted())
    engine.close()
"""


@pytest.mark.slow
def test_sigterm_does_beside_ray_what_it_did_before():
    done = subprocess.run(
        [sys.executable, "-c", ENDED], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\nTrue\n", "")


class Slow(ScriptedEvaluator):
    def __init__(self, *_) -> None:
        time.sleep(60)


def test_closing_does_not_wait_for_a_lane_that_is_being_opened(engine):
    opening = RayEngine(Slow)
    while not opening._made:
        time.sleep(0.01)
    begin = time.monotonic()
    opening.close()
    assert time.monotonic() - begin < 4


JOINS = """
import sys
import ray
ray.__version__ = "2.1.0"
from agent.engines.ray_engine import RayEngine
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.errors import DeviceError
try:
    RayEngine(ScriptedEvaluator, address=sys.argv[1])
except DeviceError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_cluster_of_another_version_is_told_in_one_line(engine):
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", JOINS, address], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    begins = f"the Ray cluster at {address} cannot be joined: Version mismatch: "
    assert done.stdout.startswith(begins), done.stderr
    assert "Ray: 2.1.0" in done.stdout
    assert done.stdout.count("\n") == 1


STARTS = """
from agent.engines.ray_engine import RayEngine
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.errors import DeviceError
try:
    RayEngine(ScriptedEvaluator)
except DeviceError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_folder_in_which_ray_cannot_start_is_told_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", STARTS],
        cwd=ROOT,
        env=os.environ | {"RAY_TMPDIR": str(tmp_path / ("long" * 25))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("Ray cannot be started here: "), done.stderr
    assert "RAY_TMPDIR" in done.stdout
    assert done.stdout.count("\n") == 1


LACKS = """
import sys, types
from agent.engines.ray_engine import RayEngine
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.types import EvalConfig
from tests.agent.scripts import make_task

class Evaluator(ScriptedEvaluator):
    __module__ = "nowhere"  # but here: its name alone is sent to a node

sys.modules["nowhere"] = types.ModuleType("nowhere")
sys.modules["nowhere"].Evaluator = Evaluator
engine = RayEngine(Evaluator, cpus=1)
print(engine.submit_prepare(make_task("a"), EvalConfig()).exception(60))
engine.close()
"""


@pytest.mark.slow
def test_a_node_without_what_a_lane_needs_is_told_with_what_it_lacks():
    done = subprocess.run(
        [sys.executable, "-c", LACKS], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == (
        "no lane is left to measure on: its node cannot load it: ModuleNotFoundError: No module "
        "named 'nowhere'; Warpsmith must be installed on every node\n"
    ), done.stderr


KILLED = """
import os
from agent.engines.ray_engine import RayEngine
from agent.engines.reaper import of_session
from agent.proposing.scripted import ScriptedEvaluator
from sandbox.types import EvalConfig
from tests.agent.scripts import make_task
engine = RayEngine(ScriptedEvaluator, cpus=1)
engine.submit_prepare(make_task("a"), EvalConfig()).result()
session = engine._reaper.session
names = [open(f"/proc/{pid}/comm").read().strip() for pid in of_session(session)]
print(session, *names, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_behind():
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, capture_output=True, text=True)
    session, *names = done.stdout.split()
    deadline = time.monotonic() + 15
    while (left := list(of_session(session))) and time.monotonic() < deadline:
        time.sleep(0.2)
    alive = [psutil.Process(pid).name() for pid in left if psutil.pid_exists(pid)]
    assert {"ray::DashboardA", "ray::RuntimeEnv"} <= set(names)
    assert not alive


LEAVES = """
import sys, time
from functools import partial
from pathlib import Path
from agent.engines.ray_engine import RayEngine
from tests.agent.scripts import SlowToPrepare, campaign, script
folder = Path(sys.argv[1])
engine = RayEngine(partial(SlowToPrepare, log=folder / "log"), cpus=1, depth=2)
sources = {"a": [script(1)], "b": [script(2)]}
result = campaign(folder / "run", sources, engine, interrupted=(folder / "log").exists)
began = time.monotonic()
engine.close()
print(result.stopped, time.monotonic() - began < 15)
"""


@pytest.mark.slow
def test_what_is_being_prepared_ends_with_a_campaign_that_is_stopped(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["interrupted", "True"]
    assert "Traceback" not in done.stderr
    workers = {int(line.split()[2]) for line in (tmp_path / "log").read_text().splitlines()}
    assert workers
    assert not any(psutil.pid_exists(pid) for pid in workers)


OPENS = """
import sys, time
from pathlib import Path
import psutil
from agent.engines.ray_engine import RayEngine, ray
from agent.proposing.scripted import ScriptedEvaluator

opening = Path(sys.argv[1])

class SlowToOpen(ScriptedEvaluator):
    def __init__(self, index):
        opening.touch()
        time.sleep(600)

engine = RayEngine(SlowToOpen, cpus=1)
while not opening.exists():
    time.sleep(0.05)
engine.close()
time.sleep(1)
print(ray.is_initialized(), [child.name() for child in psutil.Process().children()])
"""


@pytest.mark.slow
def test_an_engine_that_is_closed_while_a_lane_is_opened_starts_no_other_ray(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(tmp_path / "opening")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["False", "[]"], done.stderr


def refuse():
    raise RuntimeError("cannot be read")


class Unreadable:
    """As an answer that is lost on its way from an actor that lives."""

    def __reduce__(self):
        return refuse, ()


class Garbled(ScriptedEvaluator):
    """Answers so that it cannot be read, once."""

    def evaluate(self, task, candidate, config, *, to_beat=None):
        if not self.log.exists():
            self.log.touch()
            return Unreadable()
        return super().evaluate(task, candidate, config, to_beat=to_beat)


@pytest.mark.slow
def test_a_lane_whose_answer_is_lost_gives_its_device_back(tmp_path):
    asks = f"""
from functools import partial
from pathlib import Path
from agent.engines.ray_engine import RayEngine
from sandbox.types import EvalConfig
from tests.agent.scripts import candidate, make_task, script
from tests.agent.test_engine_ray import Garbled
engine = RayEngine(partial(Garbled, log=Path({str(tmp_path / "log")!r})), cpus=1)
one = candidate("a", script(1))
print(engine.submit_evaluate(make_task("a"), one, EvalConfig(), None).result(60).status.value)
engine.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", asks], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["PASSED"], done.stderr


KEEPS = """
import os, sys, time
from concurrent.futures import wait
from pathlib import Path
from agent.engines.ray_engine import RayEngine
from agent.proposing.scripted import ScriptedEvaluator

folder = Path(sys.argv[1])

class Sees(ScriptedEvaluator):
    def figures(self, task, config):
        (folder / task.id.rpartition("/")[2]).touch()
        while len(list(folder.iterdir())) < 2:  # the other lane has the other task
            time.sleep(0.05)
        raise InvalidReference(os.environ["CUDA_VISIBLE_DEVICES"])

from sandbox.errors import InvalidReference
from sandbox.types import EvalConfig
from tests.agent.scripts import make_task
engine = RayEngine(Sees, device="cuda", cpus=8, gpus=2, kept_gpus=1, depth=None)
asked = [engine.submit_prepare(make_task(name), EvalConfig()) for name in "ab"]
wait(asked)
seen = sorted(str(each.exception()) for each in asked)
print(engine.lanes, *seen, os.environ["CUDA_VISIBLE_DEVICES"], engine.depth)
engine.close()
"""


@pytest.mark.slow
def test_lanes_do_not_see_the_gpus_that_are_kept_and_are_as_deep_as_their_nodes_cores(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KEEPS, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "4,5,6"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == ["2", "5", "6", "4,5,6", "4"]
