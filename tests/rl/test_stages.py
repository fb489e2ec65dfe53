"""What each stage works on, and by which settings."""

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from rl.campaign import tasks_of
from rl.config import SPLITS, load_train
from rl.self_supervised import tuning
from sandbox.types import digest


def test_so_many_tasks_of_a_split_are_the_first_of_its_tasks_in_an_order_of_hashes():
    config = load_train("cpu", tasks=["synthetic:rows:80"], device="cpu")
    whole = {split: set(tasks_of(config, (split,))) for split in SPLITS}
    assert sum(map(len, whole.values())) == 80
    few = tasks_of(config, ("train",), 5)
    assert set(few) == set(sorted(whole["train"], key=digest)[:5])
    assert few == tasks_of(config, ("train",), 5)
    assert set(few) <= set(tasks_of(config, ("train",), 9)) <= whole["train"]


def test_a_round_of_self_supervision_has_steps_of_its_own_size():
    config = load_train("small")
    tuned = tuning(config).sft
    assert tuned.batch == config.self_supervised.batch < config.sft.batch
    assert (tuned.warmup_share, tuned.adam_beta2) == (0.0, config.sft.adam_beta2)
