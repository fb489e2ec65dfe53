"""What each stage works on, and by which settings."""

from dataclasses import replace

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.config import load_optimize
from rl.campaign import reinforcing, tasks_of
from rl.config import SPLITS, load_train
from rl.opening import local_policy
from rl.self_supervised import tuning
from sandbox.errors import ConfigError
from sandbox.types import digest


def test_so_many_tasks_of_a_split_are_the_first_of_its_tasks_in_an_order_of_hashes():
    config = load_train("cpu", tasks=["synthetic:rows:80"], device="cpu")
    whole = {split: set(tasks_of(config, (split,))) for split in SPLITS}
    assert sum(map(len, whole.values())) == 80
    few = tasks_of(config, ("train",), 5)
    assert set(few) == set(sorted(whole["train"], key=digest)[:5])
    assert few == tasks_of(config, ("train",), 5)
    assert set(few) <= set(tasks_of(config, ("train",), 9)) <= whole["train"]


def test_a_run_has_candidates_for_all_its_updates_whatever_its_campaign_asks_at_once(tmp_path):
    """A task's round is whole groups, as many as its campaign's proposals take."""
    (tmp_path / "wide.yaml").write_text("tasks: [builtin]\nproposals_per_round: 30\n")
    config = load_train(
        "cpu", campaign=str(tmp_path / "wide.yaml"), tasks=["builtin"], device="cpu"
    )
    rl = replace(config.rl, group=8, updates=3, resample=1)
    settings = reinforcing("cpu", replace(config, rl=rl), tmp_path, None)
    assert settings.max_updates == 3
    assert settings.max_candidates_per_task == 3 * 2 * 32


def test_a_round_of_self_supervision_has_steps_of_its_own_size():
    config = load_train("small")
    tuned = tuning(config).sft
    assert tuned.batch == config.self_supervised.batch < config.sft.batch
    assert (tuned.warmup_share, tuned.adam_beta2) == (0.0, config.sft.adam_beta2)


def test_nothing_is_learned_from_replies_that_are_all_equal(tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "greedy.yaml").write_text("sampling: {greedy: true}\n")
    train = str(tmp_path / "greedy.yaml")
    config = load_optimize(model=f"local:{tmp_path / 'policy'}", learn=True, train=train)
    with pytest.raises(ConfigError, match="all replies of a group equal"), local_policy(config):
        pass
