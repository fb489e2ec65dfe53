"""What each stage works on, and by which settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.config import load_optimize
from agent.presets import preset_names
from agent.strategies.contrastive import Contrastive
from agent.strategies.evolve import Evolve
from kernelbench.suite import load_tasks
from rl.campaign import judging, learning, reinforcing, tasks_of
from rl.config import SPLITS, HeldOut, load_train
from rl.data import composition_of, withheld
from rl.opening import local_policy
from rl.policy import FILE
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


def test_a_policy_is_not_judged_on_what_another_config_taught_it(tmp_path):
    config = load_train("cpu", tasks=["synthetic:rows:80"], device="cpu")
    held_out, trained = (
        {
            composition_of(task)
            for spec in tasks_of(config, splits)
            for task in load_tasks(spec, "cpu")
        }
        for splits in (SPLITS[1:3], SPLITS[:1])
    )
    trained |= {"size 128x512"}
    (tmp_path / FILE).write_text(json.dumps({"name": "toy", "taught": sorted(trained)}))
    assert len(judging("cpu", config, tmp_path).tasks) > 1
    family = withheld(
        next(task for spec in tasks_of(config, SPLITS[2:3]) for task in load_tasks(spec, "cpu")),
        "held_out_family",
    )
    sizes = {f"size {size}" for size in config.held_out.sizes}
    for other in sorted({min(held_out), *family, *sizes}):
        (tmp_path / FILE).write_text(json.dumps({"name": "toy", "taught": [*trained, other]}))
        with pytest.raises(ConfigError, match="held out by this config, and the policy was taught"):
            judging("cpu", config, tmp_path)
        assert judging("cpu", config, tmp_path, SPLITS[:1]).tasks


def test_a_size_that_no_task_has_is_not_held_out_in_silence():
    config = load_train("cpu", tasks=["synthetic:rows:80"], device="cpu")
    for sizes, fine in {("512x51",): False, ("512x51", "512x512"): True}.items():
        held_out = replace(config.held_out, sizes=sizes)
        if fine:
            assert tasks_of(replace(config, held_out=held_out), ("held_out_size",))
            continue
        with pytest.raises(
            ConfigError, match=r"sizes is 512x51, and no task .*; expected one of .*512x512"
        ):
            tasks_of(replace(config, held_out=held_out), ("train",))


def test_a_part_of_a_folder_is_named_by_its_files(tmp_path):
    """Ids of files name nothing that can be loaded."""
    for name in ("relu", "sigmoid", "softmax"):
        source = load_tasks(f"builtin/{name}", "cpu")[0].source
        (tmp_path / f"{name}.py").write_text(source)
    config = load_train("cpu", tasks=[str(tmp_path)], device="cpu")
    config = replace(config, held_out=HeldOut(families=0.0, tasks=0.0))
    few = tasks_of(config, ("train",), 2)
    assert [task.id for spec in few for task in load_tasks(spec, "cpu")] == [
        f"file/{Path(spec).stem}" for spec in few
    ]
    assert len(few) == 2


def test_a_run_has_candidates_for_all_its_updates_whatever_its_campaign_asks_at_once(tmp_path):
    """A task's round is whole groups, as many as its campaign's proposals take."""
    (tmp_path / "wide.yaml").write_text("tasks: [builtin]\nproposals_per_round: 30\n")
    config = load_train(
        "cpu", campaign=str(tmp_path / "wide.yaml"), tasks=["builtin"], device="cpu"
    )
    rl = replace(config.rl, group=8, updates=3, resample=1)
    config = replace(config, held_out=HeldOut())
    settings = reinforcing("cpu", replace(config, rl=rl), tmp_path, None)
    assert settings.max_updates == 3
    assert settings.max_candidates_per_task == 3 * 2 * 32


def test_an_update_sees_every_task_however_many_there_are():
    """A campaign has four at once by itself, and updates may end before the fifth has begun."""
    train = load_train("cpu", tasks=["builtin"], device="cpu")
    campaign = load_optimize(tasks=("builtin",), model="local:policy", learn=True, device="cpu")
    assert campaign.tasks_at_once is None
    assert learning(campaign, train).tasks_at_once == len(load_tasks("builtin", "cpu")) > 4
    assert learning(replace(campaign, tasks_at_once=3), train).tasks_at_once == 3


def test_a_campaign_of_fewer_candidates_than_teach_anything_is_refused():
    train = load_train("cpu", tasks=["builtin"], device="cpu")
    campaign = load_optimize("quickstart", model="local:policy", learn=True, device="cpu")
    train = replace(train, rl=replace(train.rl, group=8))
    with pytest.raises(ConfigError, match="max_candidates_per_task is 3; expected at least 4"):
        learning(campaign, train)
    assert learning(replace(campaign, max_candidates_per_task=4), train)


def test_a_policy_that_learns_is_asked_by_no_other_strategy():
    train, campaign = load_train("cpu"), load_optimize("train-cpu")
    assert learning(replace(campaign, strategy=Contrastive(exemplars=1)), train)
    with pytest.raises(ConfigError, match="strategy is evolve, and a policy that learns"):
        learning(replace(campaign, strategy=Evolve()), train)


@pytest.mark.parametrize("preset", preset_names("train"))
def test_every_preset_has_all_its_tasks_in_every_update(preset):
    train = load_train(preset, device="cpu")
    tasks = len(tasks_of(train, ("train",), train.rl.tasks))
    at_once = load_optimize(train.campaign, device="cpu").tasks_at_once
    assert at_once is None or at_once >= tasks


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
