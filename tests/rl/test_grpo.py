"""The learner on a real TRL trainer: what is rewarded becomes likelier, a kill costs nothing."""

import json
import math
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.learner import Rollout
from agent.prompts.message import Message
from agent.proposing.scripted import scripted_evaluation
from rewards.terms import RewardConfig
from rl.config import GrpoConfig, LoraConfig, SamplingConfig, ShapeConfig, TrainConfig
from rl.figures import spread
from rl.grpo import GrpoLearner, versions
from rl.policy import Policy, new_policy
from sandbox.errors import ConfigError, WarpsmithError
from sandbox.types import Candidate, EvalConfig, Language, Status

PROMPT = json.dumps([Message(role="user", content="faster")])
CONFIG = TrainConfig(
    sampling=SamplingConfig(max_new_tokens=12),
    rl=GrpoConfig(group=4, learning_rate=1e-3, max_grad_norm=1.0),
)
SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=128)
REPLIES = {
    "fast one": (Status.PASSED, 3.0),
    "slow one": (Status.PASSED, 0.5),
    "wrong one": (Status.WRONG_VALUE, 1.0),
    "cheat": (Status.REWARD_HACK, 1.0),
}


@pytest.fixture
def start(tmp_path):
    new_policy([*REPLIES, PROMPT], SHAPE, "toy", seed=1).save(tmp_path / "start")
    return tmp_path / "start"


def rollout(reply: str, version: int, status: Status, speedup: float = 1.0) -> Rollout:
    candidate = Candidate("t", Language.CPP, reply)
    judged = scripted_evaluation(candidate, EvalConfig(), status, speedup)
    return Rollout("t", PROMPT, reply, version, judged)


def generation(version: int) -> list[Rollout]:
    return [rollout(reply, version, *what) for reply, what in REPLIES.items()]


def likelihoods(policy: Policy) -> dict[str, float]:
    prompt = policy.prompt_ids(json.loads(PROMPT))
    return {r: math.fsum(policy.log_probabilities(prompt, policy.reply_ids(r))) for r in REPLIES}


def weights(learner: GrpoLearner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.policy.model.parameters()])


def test_what_was_rewarded_becomes_likelier_and_a_hack_less(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, CONFIG, "cpu")
    before = likelihoods(learner.policy)
    for version in range(3):
        lesson = learner.learn(generation(version))
        assert lesson is not None
        assert (lesson.version, lesson.groups, lesson.rollouts) == (version + 1, 1, 4)
    after = likelihoods(learner.policy)
    change = {reply: after[reply] - before[reply] for reply in REPLIES}
    assert change["fast one"] > 0 > change["cheat"]
    assert min(change, key=change.__getitem__) == "cheat"
    assert lesson.figures["hacks"] == 0.25
    rewards = {r.reply: learner.reward(r.evaluation, r.reply).value for r in generation(0)}
    assert min(rewards, key=rewards.__getitem__) == "cheat"


def test_a_learner_goes_on_from_its_newest_complete_checkpoint(start, tmp_path):
    one = GrpoLearner(tmp_path / "one", start, CONFIG, "cpu")
    two = GrpoLearner(tmp_path / "two", start, CONFIG, "cpu")
    for learner in (one, two):
        learner.learn(generation(0))
    folder = tmp_path / "two" / "learner"
    shutil.copytree(folder / "1", folder / "partial")  # A process was killed while it saved.
    again = GrpoLearner(tmp_path / "two", start, CONFIG, "cpu")
    assert again.version == 1
    assert again.last is not None
    assert (again.last.version, again.last.groups) == (1, 1)
    assert "trl/grad_norm" in again.last.figures
    for learner in (one, again):
        learner.learn(generation(1))
    assert torch.equal(weights(one), weights(again))
    assert sorted(versions(folder)) == [1, 2]


@pytest.mark.parametrize(
    ("differs", "key"),
    [
        ({"reward": RewardConfig(kind="log")}, "reward.kind was milestones and is log now"),
        ({"rl": replace(CONFIG.rl, learning_rate=1e-6)}, "rl.learning_rate was 0.001"),
        ({"lora": LoraConfig(rank=2)}, None),
    ],
)
def test_a_run_does_not_go_on_in_another_way_than_it_began(start, tmp_path, differs, key):
    """Its file may have been edited: half of a curve would then be of another reward."""
    GrpoLearner(tmp_path, start, CONFIG, "cpu").learn(generation(0))
    with pytest.raises(ConfigError, match=key or "lora was None"):
        GrpoLearner(tmp_path, start, replace(CONFIG, **differs), "cpu")
    less = replace(CONFIG, rl=replace(CONFIG.rl, batch=2, updates=9))
    assert GrpoLearner(tmp_path, start, less, "cpu").version == 1


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=4)], ids=["whole", "adapters"])
def test_kl_is_measured_against_the_first_weights_after_a_kill_too(start, tmp_path, lora):
    config = replace(CONFIG, lora=lora, rl=replace(CONFIG.rl, beta=0.1, learning_rate=1e-2))
    learner = GrpoLearner(tmp_path, start, config, "cpu")
    first = learner.learn(generation(0))
    second = learner.learn(generation(1))
    again = GrpoLearner(tmp_path, start, config, "cpu")
    third = again.learn(generation(2))
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.figures["trl/kl"] == pytest.approx(0, abs=1e-6)
    assert 1e-4 < second.figures["trl/kl"] < third.figures["trl/kl"]
    assert not any(".ref." in name for name, _ in again.policy.model.named_parameters())


def test_weights_that_would_round_an_update_away_are_not_trained(start, tmp_path):
    """Of those in bfloat16 most stay where they are, whatever the rewards say."""
    coarse = replace(CONFIG, model="start", dtype="bfloat16")
    with pytest.raises(ConfigError, match="set lora, whose adapters are float32, or dtype"):
        GrpoLearner(tmp_path, start, coarse, "cpu")
    learner = GrpoLearner(tmp_path, start, replace(coarse, lora=LoraConfig(rank=2)), "cpu")
    kinds = {p.dtype for p in learner.policy.model.parameters() if p.requires_grad}
    assert kinds == {torch.float32}


def test_a_great_beta_keeps_the_policy_near_its_first_weights(start, tmp_path):
    moved = []
    for beta in (0.0, 10.0):
        config = replace(CONFIG, rl=replace(CONFIG.rl, beta=beta, learning_rate=1e-2))
        learner = GrpoLearner(tmp_path / str(beta), start, config, "cpu")
        before = likelihoods(learner.policy)
        for version in range(4):
            learner.learn(generation(version))
        after = likelihoods(learner.policy)
        moved.append(sum(abs(after[reply] - before[reply]) for reply in REPLIES))
    assert moved[1] < 0.7 * moved[0]


def test_without_a_difference_in_reward_the_weights_stay(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, CONFIG, "cpu")
    before = weights(learner)
    lesson = learner.learn([rollout(r, 0, Status.PASSED, 3.0) for r in REPLIES])
    assert lesson is not None
    assert (lesson.version, lesson.groups, lesson.seen) == (0, 0, 1)
    assert torch.equal(weights(learner), before)


def test_a_task_whose_replies_are_worth_the_same_is_sampled_again_once(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, CONFIG, "cpu")
    alike = [rollout(r, 0, Status.PASSED, 3.0) for r in REPLIES]
    assert learner.again(alike) == {"t"}
    second = [replace(r, round=1) for r in alike]
    assert learner.again([*alike, *second]) == frozenset()  # it has had its second generation
    wide = [*alike, *alike]  # the groups of one round
    assert learner.again(wide) == {"t"}
    assert learner.again(generation(0)) == frozenset()
    older = [rollout(r, 7, Status.PASSED, 3.0) for r in REPLIES]
    assert learner.again([*generation(0), *older]) == frozenset()
    lesson = learner.learn([*alike, *generation(0)])
    assert lesson is not None
    assert (lesson.version, lesson.groups, lesson.seen) == (1, 1, 2)


def test_a_reply_is_compared_with_the_others_of_its_group(start, tmp_path):
    """Of two rewarded replies and one of our faults: each less the other, not less their mean."""
    rewards = [rollout("fast one", 0, Status.PASSED, 3.0), rollout("cheat", 0, Status.REWARD_HACK)]
    rollouts = [*rewards, rollout("slow one", 0, Status.SANDBOX_ERROR)]
    found, told = {}, {}
    for advantage in ("group", "leave-one-out"):
        rl = replace(CONFIG.rl, advantage=advantage, scale="none")
        learner = GrpoLearner(tmp_path / advantage, start, replace(CONFIG, rl=rl), "cpu")
        (group,) = learner._groups(rollouts, rollouts)
        found[advantage] = learner._compared(group).rewards
        told[advantage] = spread([group])
    (fast, cheat, none), (mine, its, ours) = found["group"], found["leave-one-out"]
    assert none is ours is None
    assert mine - (mine + its) / 2 == pytest.approx(fast - cheat)
    assert told["group"] == told["leave-one-out"], "what replies are worth is told"
    with pytest.raises(ValueError, match="needs scale none"):
        GrpoConfig(advantage="leave-one-out")


def test_weights_that_are_no_numbers_any_more_are_not_kept(start, tmp_path):
    """They write nothing, and a run went on with them to its end."""
    config = replace(CONFIG, rl=replace(CONFIG.rl, learning_rate=1e20))
    learner = GrpoLearner(tmp_path, start, config, "cpu")
    learner.learn(generation(0))
    with pytest.raises(WarpsmithError, match=r"update 2 .* not finite; lower rl.learning_rate"):
        learner.learn(generation(1))
    assert versions(tmp_path / "learner") == [1]


def test_who_has_no_room_on_the_policys_gpu_is_told_what_to_lower(start, tmp_path, monkeypatch):
    def update(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("rl.replica.update", update)
    learner = GrpoLearner(tmp_path, start, replace(CONFIG, memory_share=0.25), "cpu")
    told = "no room for it in 25% of its memory: lower sampling.batch or rl.batch"
    with pytest.raises(WarpsmithError, match=told):
        learner.learn(generation(0))


def test_our_own_fault_and_older_weights_move_nothing(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, CONFIG, "cpu")
    assert learner.learn([rollout("fast one", 7, Status.PASSED)]) is None
    ours = [rollout(r, 0, Status.SANDBOX_ERROR) for r in REPLIES]
    lesson = learner.learn(ours)
    assert lesson is not None
    assert (lesson.groups, lesson.figures["unscored"]) == (0, 1.0)


def test_a_few_rewards_of_a_group_are_no_update_whatever_the_others_lack(start, tmp_path):
    """Two replies, or eight of which six have no reward: the same chance, and no step for it."""
    config = replace(CONFIG, rl=replace(CONFIG.rl, group=8))
    learner = GrpoLearner(tmp_path, start, config, "cpu")
    known = [rollout("fast one", 0, Status.PASSED, 3.0), rollout("cheat", 0, Status.REWARD_HACK)]
    faulty = [rollout(f"wrong one {n}", 0, Status.SANDBOX_ERROR) for n in range(6)]
    for rollouts in (known, known + faulty):
        lesson = learner.learn(rollouts)
        assert lesson is not None
        assert (lesson.version, lesson.groups) == (0, 0)
        assert learner.again(rollouts) == {"t"}


def test_a_reply_without_a_reward_is_left_out_of_its_group(start, tmp_path):
    """Three replies and one of our faults: the same update as three replies alone."""
    whole = generation(0)[:3]
    faulty = [*whole, rollout("cheat", 0, Status.SANDBOX_ERROR)]
    changed = []
    # Adam's first step has no size of the gradient.
    config = replace(CONFIG, optimizer="sgd", rl=replace(CONFIG.rl, max_grad_norm=1e9))
    for name, rollouts in (("a", whole), ("b", faulty)):
        learner = GrpoLearner(tmp_path / name, start, config, "cpu")
        before = likelihoods(learner.policy)
        learner.learn(rollouts)
        after = likelihoods(learner.policy)
        changed.append(after["fast one"] - before["fast one"])
    assert changed[0] > 0
    assert changed[1] == pytest.approx(changed[0], rel=1e-3)


def test_a_hack_is_worth_the_least_beside_failures_whose_repairs_failed_too(start, tmp_path):
    """With smoothing they add up to less than a hack alone would be worth."""
    rl = replace(CONFIG.rl, turns=2, smooth_clip=1.5)
    learner = GrpoLearner(tmp_path, start, replace(CONFIG, rl=rl), "cpu")
    right = [rollout("fast one", 0, Status.PASSED, 3.0)] * 20
    failed = replace(rollout("wrong one", 0, Status.WRONG_VALUE), candidate_id="a")
    repaired = replace(failed, prompt='[{"role": "user", "content": "mend"}]', parents=("a",))
    repaired = replace(repaired, candidate_id="b", repair=True)
    rollouts = [failed, rollout("cheat", 0, Status.REWARD_HACK), repaired]
    group = learner._groups(rollouts, rollouts + right)[0]
    wrong, cheat = group.rewards
    assert cheat <= wrong < -1.5


def test_a_failure_is_compared_with_others_of_its_turn_alone(start, tmp_path):
    """In the last turn no repair can follow by which it would be worth more."""
    rl = replace(CONFIG.rl, turns=3)
    learner = GrpoLearner(tmp_path, start, replace(CONFIG, rl=rl), "cpu")
    early, late = (
        [replace(r, round=turn) for r in (rollout("wrong one", 0, Status.WRONG_VALUE),) * 2]
        for turn in (1, 2)
    )
    early[0] = replace(early[0], candidate_id="a")
    repair = replace(rollout("fast one", 0, Status.PASSED, 3.0), round=2, parents=("a",))
    rollouts = [*early, *late, replace(repair, repair=True, prompt=PROMPT)]
    groups = learner._groups(rollouts, rollouts)
    assert [len(group.rewards) for group in groups] == [2, 2, 1]
    assert [learner._teaches(group) for group in groups] == [True, False, False]


def test_repairs_are_compared_with_each_other_and_pay_for_what_they_repaired(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, CONFIG, "cpu")
    before = likelihoods(learner.policy)
    failed = [rollout(text, 0, Status.WRONG_VALUE) for text in ("slow one", "wrong one")]
    asked = [json.dumps([Message(role="user", content=text)]) for text in ("mend a", "mend b")]
    turns = [
        replace(failed[0], candidate_id="a"),
        replace(failed[1], candidate_id="b"),
        replace(
            rollout("fast one", 0, Status.PASSED, 3.0), prompt=asked[0], parents=("a",), repair=True
        ),
        replace(
            rollout("cheat", 0, Status.REWARD_HACK), prompt=asked[1], parents=("b",), repair=True
        ),
    ]
    lesson = learner.learn(turns)
    assert lesson is not None
    assert (lesson.groups, lesson.seen) == (2, 2)
    assert (lesson.figures["repairs"], lesson.figures["repaired"]) == (0.5, 0.5)
    after = likelihoods(learner.policy)
    change = {reply: after[reply] - before[reply] for reply in REPLIES}
    assert change["slow one"] > change["wrong one"]
