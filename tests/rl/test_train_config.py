"""Presets of configs/train: typed, unknown keys refused, the paper's values as published."""

from dataclasses import replace

import pytest

from agent.config import load_optimize
from agent.presets import preset_names
from rewards.terms import RewardConfig
from rl.config import HeldOut, load_train
from rl.opening import refuse_unknown
from sandbox.errors import ConfigError, TaskError


@pytest.mark.parametrize("name", preset_names("train"))
def test_every_preset_loads_with_its_campaign(name):
    config = load_train(name)
    assert not config.transductive
    assert load_optimize(config.campaign).tasks
    assert config.dtype == "float32" or config.lora is not None, "its updates would be rounded away"
    assert config.self_supervised.learning_rate < config.sft.learning_rate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rl: {grup: 4}", r"unknown key 'rl.grup'; did you mean 'rl.group'\?"),
        ("sampel: {}", "unknown key 'sampel'"),
        ("rl: {group: 1}", "needs at least 2 replies"),
        ("reward: {robust: {bucket: 3}}", "unknown key 'reward.robust.bucket'"),
        ("reward: {hack: 1.0}", "expected them to rise"),
        ("sft: {epochs: 0}", "epochs is 0 and learning_rate .*; expected both above 0"),
        ("self_supervised: {rounds: 0}", "expected rounds"),
        ("self_supervised: {tasks: 0}", "expected rounds, tasks"),
        ("rl: {learning_rate: -1.0e-4}", "learning_rate is -0.0001; expected at least 0"),
        ("rl: {updates: 0}", "updates is 0; expected at least 1"),
        ("rl: {smooth_clip: 0}", "smooth_clip is 0.0; expected above 0"),
        ("held_out: {families: 3}", "families is 3 and tasks .*; expected shares in 0..1"),
        ("lora: {rank: 0}", "expected rank and alpha"),
        ("exemplars: 0", "expected exemplars of 1 or more"),
        ("memory_share: 0", "memory_share is 0; expected above 0, at most 1"),
        ("{offload: true, rl: {spread: true}}", "leave out either"),
        ("dtype: bfloat16", "trained whole; take float32"),
        (
            "rl: {learning_rate: .nan}",
            "bad.yaml: rl.learning_rate is nan; expected a finite number",
        ),
        ("rl: {max_grad_norm: nan}", "rl.max_grad_norm is nan; expected a finite number"),
        ("temperature: .inf", "bad.yaml: temperature is inf; expected a finite number"),
        ("reward: {kind: cuda-l1, wrong: 0.1}", "could earn as much as a correct one"),
        ("shape: {heads: 0}", "shape: heads is 0; expected at least 1"),
        (
            "shape: {hidden: 12, heads: 4}",
            "shape: hidden is 12; expected an even multiple of heads",
        ),
        ("seed: -1", "seed is -1; expected 0 to 4294967295"),
        ("seed: 4294967296", "seed is 4294967296; expected 0 to 4294967295"),
        ("tasks: ['kernelbench:level1']", "is an evaluation suite"),
        ("tasks: ['hf:ScalingIntelligence/KernelBench']", "is an evaluation suite"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_train(str(path))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("tasks: [bultin]", TaskError, "did you mean 'builtin'"),
        ("campaign: train-cpuu", ConfigError, "did you mean 'train-cpu'"),
    ],
)
def test_what_fine_tuning_does_not_read_is_looked_for_before_it(tmp_path, text, error, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(error, match=message):
        refuse_unknown(load_train(str(path)))
    refuse_unknown(load_train("cpu"))


def test_cuda_l1_has_the_published_values():
    config = load_train("cuda-l1")
    assert (config.exemplars, config.rl.smooth_clip, config.rl.smooth_window) == (2, 1.5, 100)
    assert (config.rl.loss, config.rl.scale) == ("grpo", "group")
    robust = config.reward.robust
    assert (robust.buckets, robust.variance, robust.decimals) == (7, 0.005, 2)
    evaluation = load_optimize(config.campaign).evaluation
    assert evaluation.search_pairs == evaluation.max_pairs == robust.buckets


def test_a_family_is_held_out_whole_whatever_the_task():
    held_out = HeldOut(families=0.5, tasks=0.5)
    splits = [{held_out.split(f"t{i}", f"f{j}", "given") for i in range(30)} for j in range(30)]
    assert {"held_out_family"} in splits
    assert {"train", "held_out_task"} in splits
    assert all("held_out_family" not in s for s in splits if len(s) > 1)


def test_a_share_that_is_paid_for_must_be_measured(tmp_path):
    pytest.importorskip("trl", reason="needs the train extra")
    from rl.campaign import open_policy

    train = replace(load_train("cpu"), reward=RewardConfig(coverage_weight=0.5))
    config = load_optimize("train-cpu", model="local:nowhere", learn=True, train="cpu")
    assert not config.evaluation.profile_searches
    with pytest.raises(ConfigError, match="profile_searches: true"):
        open_policy(config, train, tmp_path)


@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda", "needs own_gpu and engine ray"), ("cpu", "the device is cpu; leave it out")],
)
def test_what_is_sampled_while_lanes_measure_needs_a_gpu_that_none_measures_on(
    tmp_path, device, words
):
    pytest.importorskip("trl", reason="needs the train extra")
    from rl.campaign import open_policy

    train = load_train("cpu")
    config = load_optimize("train-cpu", model="local:nowhere", learn=True, train="cpu")
    ahead = replace(train, rl=replace(train.rl, ahead=1))
    with pytest.raises(ConfigError, match=words):
        open_policy(replace(config, device=device), ahead, tmp_path)
