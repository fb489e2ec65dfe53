"""`optimize --learn` under a launcher: two ranks, one of them killed on the way, and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.journals.journal import Journal
from agent.learner import LEARN, POLICY_VERSION
from rl.grpo import versions
from rl.kept import FILE
from rl.policy import load_policy
from tests.conftest import environment_of
from tests.rl import recurrence

ROOT = Path(__file__).parents[2]
LAUNCH = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "warpsmith")
LEARNING = ("optimize", "recurrence.py", "--config", "learn.yaml", "--learn")
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}
"""What `accelerate launch` makes of a file; on a CPU it starts no second process with one."""
ZERO = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
TORN = "one of 2 ranks failed or has ended"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    recurrence.write(folder)
    return folder


@contextmanager
def launched(
    folder: Path, name: str, variables: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """The campaign of this name, begun or gone on with."""
    options = ("--train", "toy.yaml", "--model", "local:policy", "--name", name)
    words = [sys.executable, "-m", *LAUNCH, *LEARNING, *options]
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=environment_of(folder, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT), **(variables or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for each in ranks_of(process):
            each.kill()
        process.kill()


def ranks_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Of a launcher that runs: its ranks in their order."""
    if not psutil.pid_exists(process.pid):
        return []
    return sorted(psutil.Process(process.pid).children(), key=lambda p: p.environ()["RANK"])


def await_version(folder: Path, name: str, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 200
    while not versions(folder / "runs" / name / "learner") and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("name", "variables"), [("whole", {}), ("fsdp", FSDP), ("deepspeed", ZERO)]
)
def test_a_campaign_goes_on_after_a_rank_was_killed(folder, name, variables):
    with launched(folder, name, variables) as process:
        await_version(folder, name, process)
        _, follower = ranks_of(process)
        follower.kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode != 0
        # The launcher ends rank 0 when it sees the other's end, which may be before rank 0 does.
        assert TORN in err or "Signal 9 (SIGKILL) received" in err
    with Journal(folder / "runs" / name, read_only=True) as journal:
        before = [r.id for t in journal.tasks() for r in journal.proposals(t.id)]
    with launched(folder, name, variables) as process:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    assert out.count(" tokens, ") == 1, "one campaign is told"
    learner = folder / "runs" / name / "learner"
    newest = max(versions(learner))
    old, new = (
        load_policy(f).model.state_dict() for f in (folder / "policy", learner / str(newest))
    )
    assert any(not torch.equal(old[name], new[name]) for name in old)
    with Journal(folder / "runs" / name, read_only=True) as journal:
        records = [r for t in journal.tasks() for r in journal.proposals(t.id)]
        lessons = [json.loads(detail) for detail in journal.events(LEARN)]
    assert [r.id for r in records][: len(before)] == before
    assert {0, 1} <= {r.proposal.features[POLICY_VERSION] for r in records}
    assert lessons[-1]["version"] == newest
    assert yaml.safe_load((learner / FILE).read_text())["rl"]["spread"] is bool(variables)
    assert set(os.listdir(folder / "runs")) <= {"whole", "fsdp", "deepspeed"}


def test_ctrl_c_ends_all_ranks(folder):
    with launched(folder, "interrupted") as process:
        await_version(folder, "interrupted", process)
        ranks = ranks_of(process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "to go on: the same command with --name interrupted" in err
        assert TORN not in err
        assert not any(rank.is_running() for rank in ranks)
