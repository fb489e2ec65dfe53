"""Updates on what earlier weights wrote: it counts by how much likelier it has become since."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.prompts.message import Message
from rl.config import GrpoConfig, SamplingConfig, TrainConfig
from rl.grpo import GrpoLearner
from rl.written import Written
from tests.asked import complete
from tests.rl.test_grpo import CONFIG, PROMPT, REPLIES, generation, start, weights

__all__ = ["start"]
OLD = -1
"""A version that is not the present one."""
AHEAD = replace(CONFIG, rl=replace(CONFIG.rl, ahead=1))


def aged(learner, likelier=0.0):
    """The same replies by earlier weights, of which each token has become so much likelier."""
    prompt = learner.policy.prompt_ids(json.loads(PROMPT))
    for reply in REPLIES:
        ids = learner.policy.reply_ids(reply)
        now = learner.policy.log_probabilities(prompt, ids, CONFIG.sampling.temperature)
        then = [x - likelier for x in now]
        learner.model.tokens.put(OLD, PROMPT, reply, Written(ids, then))
    return generation(OLD)


def moved(learner, rollouts):
    before = weights(learner)
    lesson = learner.learn(rollouts, rollouts)
    assert lesson is not None
    return weights(learner) - before, lesson


def test_what_is_as_likely_as_it_was_teaches_as_what_the_present_weights_wrote(start, tmp_path):
    own, _ = moved(GrpoLearner(tmp_path / "own", start, CONFIG, "cpu"), generation(0))
    learner = GrpoLearner(tmp_path / "old", start, AHEAD, "cpu")
    old, lesson = moved(learner, aged(learner))
    assert torch.allclose(own, old, atol=2e-5)
    assert own.abs().max() > 1e-3
    assert (lesson.groups, lesson.figures["age"]) == (1, 1.0)


def test_what_has_become_likelier_already_is_not_made_likelier_any_further(start, tmp_path):
    """Beyond DAPO's upper clip a reward has no gradient, and a punishment still has."""
    found = {}
    for likelier in (0.0, 1.0):
        learner = GrpoLearner(tmp_path / str(likelier), start, AHEAD, "cpu")
        found[likelier] = moved(learner, aged(learner, likelier))
    (free, told), (clipped, said) = found[0.0], found[1.0]
    assert told.figures["trl/clip_ratio/high_mean"] == 0.0
    assert said.figures["trl/clip_ratio/high_mean"] > 0.2
    assert not torch.allclose(free, clipped, atol=1e-3)


def test_a_reply_whose_tokens_were_lost_is_not_learned_from_once_weights_are_newer(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, AHEAD, "cpu")
    change, lesson = moved(learner, generation(OLD))
    assert (lesson.groups, lesson.version) == (0, 0)
    assert not change.any()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"turns": 2}, "an episode's turns are by the same weights"), ({"ahead": -1}, "at least 0")],
)
def test_what_ahead_cannot_be_combined_with_is_said(wrong, why):
    with pytest.raises(ValueError, match=why):
        GrpoConfig(**{"ahead": 1} | wrong)


def test_a_server_is_not_asked_how_likely_its_replies_were():
    server = SamplingConfig(engine="vllm-server", base_url="http://localhost:8000/v1")
    with pytest.raises(ValueError, match=r"leave it out, or take sampling\.engine hf"):
        TrainConfig(sampling=server, rl=GrpoConfig(ahead=1))


def test_an_update_waits_for_what_is_being_sampled_and_what_is_asked_later_for_it(start, tmp_path):
    learner = GrpoLearner(tmp_path, start, AHEAD, "cpu")
    messages = [Message(role="user", content="faster")]
    first = complete(learner.model, messages, 4)
    lesson = learner.learn(generation(0), generation(0))
    assert lesson is not None
    later = complete(learner.model, messages, 4)
    assert {reply.policy_version for reply in first} == {0}
    assert {reply.policy_version for reply in later} == {1}
    for version, replies in ((0, first), (1, later)):
        for reply in replies:
            kept = learner.model.tokens.get(version, json.dumps(messages), reply.text)
            assert kept is not None, "what the weights before wrote is learned from next"
            assert len(kept.log_probabilities) == len(kept.ids)
