"""Stages under a launcher that sample and learn nothing meanwhile: `train judge`, `train self`."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.journals.journal import Journal
from rl.policy import load_policy
from tests.conftest import COMMAND, environment_of
from tests.rl import toy

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
LAUNCH = (*TORCHRUN, "-m", "--", "warpsmith")
"""Without the dashes it would take --start for an option of its own."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    toy.write(folder)
    toy.fitted(folder)
    values = yaml.safe_load((folder / "toy.yaml").read_text())
    values["sft"]["epochs"] = values.setdefault("self_supervised", {})["epochs"] = 1
    (folder / "toy.yaml").write_text(yaml.safe_dump(values))
    values["rl"]["spread"] = True
    (folder / "spread.yaml").write_text(yaml.safe_dump(values))
    return folder


def trained(folder: Path, *words: str, launcher: tuple[str, ...]) -> str:
    """What one stage prints."""
    done = subprocess.run(
        [*launcher, "train", *words],
        cwd=folder,
        env=environment_of(folder, PYTHONPATH=str(ROOT), **toy.ONE_THREAD),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def replies(run: Path) -> dict[str, list[str | None]]:
    with Journal(run, read_only=True) as journal:
        tasks = [task.id for task in journal.tasks()]
        return {t: [r.proposal.reply for r in journal.proposals(t)] for t in tasks}


@pytest.mark.parametrize("config", ["toy.yaml", "spread.yaml"], ids=["whole", "spread"])
def test_two_ranks_judge_what_one_process_does(folder: Path, config: str) -> None:
    judge = ("judge", "--policy", "policy", "--config", config, "--split", "train", "--name")
    ours = f"two-{config}".removesuffix(".yaml")
    said = trained(folder, *judge, ours, launcher=LAUNCH)
    assert said.count("correct (") == 1, "one rank tells"
    if not (folder / "runs" / "one").exists():
        trained(folder, *judge, "one", launcher=tuple(COMMAND))
    found = replies(folder / "runs" / ours)
    assert found == replies(folder / "runs" / "one")
    assert all(texts and texts[0] for texts in found.values())


def test_two_ranks_sample_and_fine_tune_in_every_round(folder: Path) -> None:
    words = ("self", "--start", "policy", "--to", "better", "--name", "self", "--config")
    said = trained(folder, *words, "toy.yaml", launcher=LAUNCH)
    assert said.splitlines()[-1] == "better/round-1"
    assert said.count(" parameters, ") == 2, "one rank tells"
    weights = [
        load_policy(folder / name).model.state_dict()
        for name in ("policy", "better/round-0", "better/round-1")
    ]
    for before, after in itertools.pairwise(weights):
        assert any(not torch.equal(before[name], after[name]) for name in before)
    for number in (0, 1):
        assert all(
            texts and texts[0] for texts in replies(folder / "runs" / f"self-{number}").values()
        )


def test_who_is_interrupted_while_ranks_sample_goes_on_with_the_same_command(folder: Path) -> None:
    words = (
        "self",
        "--start",
        "policy",
        "--to",
        "again",
        "--name",
        "again",
        "--config",
        "toy.yaml",
    )
    process = subprocess.Popen(
        [*LAUNCH, "train", *words],
        cwd=folder,
        env=environment_of(folder, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1", **toy.ONE_THREAD),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("run: "))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "to go on: the same command with --name again" in err
    assert "nothing passed" not in err
    assert "has ended" not in err
    said = trained(folder, *words, launcher=LAUNCH)
    assert said.splitlines()[-1] == "again/round-1"
