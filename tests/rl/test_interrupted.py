"""Ctrl-C in the stages of training: the code of `optimize`, and a way to go on."""

import signal
import subprocess
import time

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import warpsmith
from rl.policy import FILE
from rl.sft import has_begun
from tests.conftest import COMMAND, environment_of
from tests.rl import toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("interrupted")
    toy.write(folder)
    config = (folder / "toy.yaml").read_text()
    (folder / "toy.yaml").write_text(config.replace("epochs: 30", "epochs: 1"))
    toy.fitted(folder)
    return folder


def test_ctrl_c_in_fine_tuning_ends_with_optimizes_code_and_the_same_command_goes_on(folder):
    command = [*COMMAND, "train", "sft", "--data", "data", "--to", "tuned", "--config", "toy.yaml"]
    options = {
        "cwd": folder,
        "env": environment_of(folder, **toy.ONE_THREAD),
        "stderr": subprocess.PIPE,
        "text": True,
    }
    process = subprocess.Popen(command, **options)
    while not has_begun(folder / "tuned"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == warpsmith.INTERRUPTED, err
    assert err.endswith("to go on: the same command\n")
    assert "Traceback" not in err
    assert subprocess.run(command, **options, timeout=300, check=False).returncode == 0
    assert (folder / "tuned" / FILE).is_file()


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        (("rl", "--start", "policy", "--name", "rl"), "rl"),
        (("judge", "--policy", "policy", "--name", "judged", "--split", "train"), "judged"),
        (("self", "--start", "policy", "--to", "better", "--name", "self"), "self"),
    ],
    ids=["rl", "judge", "self"],
)
def test_ctrl_c_in_training_ends_with_optimizes_code(folder, stage, name):
    process = subprocess.Popen(
        [*COMMAND, "train", *stage, "--config", "toy.yaml"],
        cwd=folder,
        env=environment_of(folder, PYTHONUNBUFFERED="1", **toy.ONE_THREAD),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    next(line for line in process.stdout if line.startswith("run: "))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == warpsmith.INTERRUPTED, err
    assert err.endswith(f"to go on: the same command with --name {name}\n")
    assert "Traceback" not in err
    assert not (folder / "better").exists()
