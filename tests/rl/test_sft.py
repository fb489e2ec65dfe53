"""A fine-tuning that was killed goes on as it began, or says why it does not."""

import errno
import fcntl
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

pytest.importorskip("trl", reason="needs the train extra")

from agent.prompts.message import Message
from rl.config import SelfConfig, SftConfig, ShapeConfig, TrainConfig
from rl.data import Example, teaches
from rl.kept import FILE, FINE_TUNING, PROCESSES, full_disk_told, keep_config, refuse_other
from rl.policy import load_policy, new_policy, taught_to
from rl.self_supervised import round_of, self_supervised, tuning
from rl.sft import BEGUN, LOCK, TRAINER, has_begun, record_of, sft
from sandbox.errors import ConfigError

SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=128)
CONFIG = TrainConfig(
    shape=SHAPE,
    sft=SftConfig(epochs=1.0, batch=2),
    self_supervised=SelfConfig(rounds=1),
)


def example(reply: str) -> Example:
    asked = [Message(role="user", content="faster")]
    return Example("file/t", "f", "c", "s", "propose", asked, reply, None, "run")


EXAMPLES = [example("one kernel"), example("another kernel")]


def killed(folder: Path, examples: list[Example], config: TrainConfig) -> None:
    """Leaves what a call leaves that is killed before its first checkpoint."""
    sft(examples, config, folder, "cpu", None)
    shutil.copytree(folder, folder / TRAINER / BEGUN, ignore=shutil.ignore_patterns(TRAINER))
    for file in folder.iterdir():
        if file.name not in (TRAINER, "train.yaml"):
            file.unlink()
    assert has_begun(folder)


@pytest.mark.parametrize(
    ("differs", "key"),
    [
        ({"shape": replace(SHAPE, hidden=64)}, "shape.hidden was 32 and is 64 now"),
        ({"sft": SftConfig(epochs=2.0, batch=2)}, "sft.epochs was 1.0 and is 2.0 now"),
    ],
)
def test_what_was_begun_by_another_config_is_not_gone_on_with(tmp_path, differs, key):
    """It would end with weights of the old one, under the new one's name."""
    killed(tmp_path / "to", EXAMPLES, CONFIG)
    with pytest.raises(ConfigError, match=key):
        sft(EXAMPLES, replace(CONFIG, **differs), tmp_path / "to", "cpu", None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sft": SftConfig(max_tokens=4)}, "over 4 tokens; raise sft.max_tokens"),
        ({"shape": replace(SHAPE, context=4)}, "over 4 tokens; take a policy of more context"),
        ({"optimizer": "adamm"}, "no optimizer 'adamm'"),
        ({"optimizer": "galore_adamw"}, "install"),
    ],
)
def test_what_could_not_begin_may_be_set_right_in_the_same_folder(tmp_path, wrong, words):
    """The remedy that the line names was refused as another training."""
    out = tmp_path / "to"
    with pytest.raises(ConfigError, match=words):
        sft(EXAMPLES, replace(CONFIG, **wrong), out, "cpu", None)
    assert sft(EXAMPLES, CONFIG, out, "cpu", None).examples == len(EXAMPLES)


def test_a_checkpoint_tells_what_it_was_taught(tmp_path):
    sft(EXAMPLES, CONFIG, tmp_path / "first", "cpu", None)
    other = replace(example("a third kernel"), composition="d")
    sft([other], CONFIG, tmp_path / "second", "cpu", tmp_path / "first")
    known = teaches("c", EXAMPLES[0].family, "s")
    told = [taught_to(tmp_path / name) for name in ("first", "second")]
    assert told == [known, known | {"d"}]


def test_one_process_alone_fine_tunes_into_a_folder(tmp_path):
    """Two would write each other's checkpoints over."""
    scratch = tmp_path / "to" / TRAINER
    scratch.mkdir(parents=True)
    with (scratch / LOCK).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process fine-tunes into this folder"):
            sft(EXAMPLES, CONFIG, tmp_path / "to", "cpu", None)
        assert scratch.is_dir()
    assert sft(EXAMPLES, CONFIG, tmp_path / "to", "cpu", None).examples == len(EXAMPLES)
    assert not scratch.exists()


def test_what_was_begun_on_other_examples_or_weights_is_not_gone_on_with(tmp_path):
    killed(tmp_path / "to", EXAMPLES, CONFIG)
    with pytest.raises(ConfigError, match="examples was"):
        sft(EXAMPLES[:1], CONFIG, tmp_path / "to", "cpu", None)
    new_policy(["one kernel"], SHAPE, "toy").save(tmp_path / "other")
    with pytest.raises(ConfigError, match="begun_from was new"):
        sft(EXAMPLES, CONFIG, tmp_path / "to", "cpu", tmp_path / "other")
    less = replace(CONFIG, sft=replace(CONFIG.sft, save_steps=7))
    sft(EXAMPLES, less, tmp_path / "to", "cpu", None)
    assert load_policy(tmp_path / "to").parameters


def test_a_checkpoint_that_a_full_disk_cut_off_is_none(tmp_path):
    killed(tmp_path / "to", EXAMPLES, CONFIG)
    cut = tmp_path / "to" / TRAINER / "checkpoint-9999"
    cut.mkdir()
    (cut / "trainer_state.json").write_text("")
    sft(EXAMPLES, CONFIG, tmp_path / "to", "cpu", None)
    assert load_policy(tmp_path / "to").parameters


def test_a_full_disk_is_told_as_the_system_tells_it(tmp_path, monkeypatch):
    """By whatever error a library has for it."""
    with pytest.raises(RuntimeError, match="unexpected pos"), full_disk_told(tmp_path):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(OSError, match="No space left") as full, full_disk_told(tmp_path):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576")
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(tmp_path))


def test_a_training_goes_on_in_as_many_processes_as_it_began_in(tmp_path):
    killed(tmp_path / "to", EXAMPLES, CONFIG)
    record = yaml.safe_load((tmp_path / "to" / FILE).read_text())
    with pytest.raises(ConfigError, match="processes was 1 and is 2 now"):
        refuse_other(FINE_TUNING, record | {PROCESSES: 2}, tmp_path / "to")


def test_a_training_goes_on_however_the_path_it_began_from_is_typed(tmp_path, monkeypatch):
    for start in ("start", "other"):
        new_policy(["one kernel"], SHAPE, "toy").save(tmp_path / start)
    monkeypatch.chdir(tmp_path)
    record = record_of(CONFIG, Path("start"))
    keep_config(record, tmp_path)
    for typed in (tmp_path / "start", Path("other") / ".." / "start"):
        refuse_other(FINE_TUNING, record_of(CONFIG, typed), tmp_path)
    with pytest.raises(ConfigError, match="begun_from was start and is other now"):
        refuse_other(FINE_TUNING, record_of(CONFIG, Path("other")), tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", ""])
def test_a_training_whose_record_is_damaged_is_not_gone_on_with(tmp_path, text):
    (tmp_path / "train.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"train.yaml: is damaged, .* or take another --to"):
        refuse_other(FINE_TUNING, record_of(CONFIG, None), tmp_path)


def test_rounds_that_began_from_other_weights_are_not_taken_for_these(tmp_path):
    starts = [tmp_path / "one", tmp_path / "two"]
    for start in starts:
        new_policy(["one kernel"], SHAPE, "toy").save(start)
    out = tmp_path / "self"
    sft(EXAMPLES, tuning(CONFIG), round_of(out, 0), "cpu", starts[0])

    def sample(policy: Path, number: int) -> Path:
        raise AssertionError("the round has ended")

    assert self_supervised(starts[0], sample, CONFIG, out, "cpu") == round_of(out, 0)
    with pytest.raises(ConfigError, match=r"begun_from was .*one and is .*two now"):
        self_supervised(starts[1], sample, CONFIG, out, "cpu")


@pytest.mark.parametrize("file", ["model.safetensors", "notes.txt", "dataset_dict.json"])
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, file):
    """Pretrained weights, without a policy.json as from the Hub, were overwritten."""
    (tmp_path / file).write_text("mine")
    with pytest.raises(ConfigError, match=f"holds {file}, which would be lost; name another"):
        sft(EXAMPLES, CONFIG, tmp_path, "cpu", None)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"
