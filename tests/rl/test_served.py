"""Sampling by a server that speaks vLLM's routes, over real HTTP: versions, tokens, refusals."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.config import load_optimize
from agent.learner import Rollout
from agent.model import ModelError, Reply
from agent.prompts.message import Message
from agent.proposing.scripted import scripted_evaluation
from rl.campaign import open_policy
from rl.completions import NEUTRAL, reply_ids
from rl.config import GrpoConfig, LoraConfig, SamplingConfig, ShapeConfig, TrainConfig, load_train
from rl.grpo import GrpoLearner, versions
from rl.policy import base_of, new_policy
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Language, Status
from tests.asked import complete
from tests.doubles.vllm_server import VllmServer

ASKED = [Message(role="user", content="faster")]
PROMPT = json.dumps(ASKED)
WORDS = ["fast one", "slow one", "wrong one", "cheat"]
SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=128)
CONFIG = TrainConfig(
    device="cpu",
    lora=LoraConfig(rank=4, alpha=8),
    sampling=SamplingConfig(temperature=0.9, top_p=0.95, max_new_tokens=8, batch=4),
    rl=GrpoConfig(group=4, learning_rate=1e-1, max_grad_norm=1.0),
)
STATUSES = (Status.PASSED, Status.PASSED, Status.WRONG_VALUE, Status.REWARD_HACK)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "start"
    new_policy([*WORDS, PROMPT], SHAPE, "toy", seed=1).save(folder)
    return folder


def served_by(server: VllmServer, **changes: object) -> TrainConfig:
    sampling = replace(CONFIG.sampling, engine="vllm-server", base_url=server.url, **changes)
    return replace(CONFIG, sampling=sampling)


def sampled(learner: GrpoLearner) -> list[Reply]:
    return complete(learner.model, ASKED, 4, f"draw {learner.version}")


def rollouts(learner: GrpoLearner, replies: list[Reply]) -> list[Rollout]:
    return [
        Rollout(
            "t",
            PROMPT,
            reply.text,
            learner.version,
            scripted_evaluation(
                Candidate("t", Language.CPP, reply.text), EvalConfig(), status, 1.0 + place
            ),
        )
        for place, (reply, status) in enumerate(zip(replies, STATUSES, strict=True))
    ]


def told(server: VllmServer) -> list[str]:
    """What it was told, by versions alone."""
    return [
        f"{each.split()[0]} {each.rpartition('@')[2].partition('-')[0]}" for each in server.told
    ]


def test_a_new_version_is_loaded_before_it_is_asked(start, tmp_path):
    with VllmServer(base=start) as server:
        learner = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        for version in range(2):
            lesson = learner.learn(rollouts(learner, sampled(learner)))
            assert lesson is not None
            assert (lesson.version, lesson.groups) == (version + 1, 1)
        sampled(learner)
    assert told(server) == [
        *("load 0", "ask 0"),
        *("load 1", "unload 0", "ask 1"),
        *("load 2", "unload 1", "ask 2"),
    ]
    assert sorted(versions(tmp_path / "learner")) == [1, 2]


def test_a_server_samples_what_the_present_weights_would(start, tmp_path):
    prompts, seeds = [[5, 6, 7], list(range(4, 20))] * 2, [1, 2, 3, 4]
    with VllmServer(base=start) as server:
        config = served_by(server)
        learner = GrpoLearner(tmp_path, start, config, "cpu")
        before = learner.policy.sample(prompts, config.sampling, seeds)
        learner.learn(rollouts(learner, sampled(learner)))
        own = learner.policy.sample(prompts, config.sampling, seeds)
        theirs = learner.model.sampler.sample(prompts, config.sampling, seeds)
    assert [(s.ids, s.text, s.finished) for s in theirs] == [
        (s.ids, s.text, s.finished) for s in own
    ]
    assert [s.ids for s in before] != [s.ids for s in own]


def test_the_gradient_is_of_the_tokens_that_the_server_said(start, tmp_path):
    with VllmServer(base=start) as server:
        learner = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        replies = sampled(learner)
    kept = [learner._written(rollout).ids for rollout in rollouts(learner, replies)]
    assert sorted(kept) == sorted(server.said)
    assert [r.completion_tokens for r in replies] == [len(ids) for ids in kept]


def test_a_request_leaves_no_choice_to_the_servers_defaults(start, tmp_path):
    with VllmServer(base=start) as server:
        complete(GrpoLearner(tmp_path, start, served_by(server), "cpu").model, ASKED, 2)
        greedy = served_by(server, greedy=True)
        complete(GrpoLearner(tmp_path / "greedy", start, greedy, "cpu").model, ASKED, 1)
    *drawn, likeliest = [r.body for r in server.requests if r.path == "/v1/completions"]
    assert len(drawn) == 2
    assert drawn[0]["seed"] != drawn[1]["seed"]
    for body in (*drawn, likeliest):
        assert NEUTRAL.items() <= body.items()
        assert all(isinstance(token, int) for token in body["prompt"])
    assert (drawn[0]["temperature"], drawn[0]["top_p"], drawn[0]["max_tokens"]) == (0.9, 0.95, 8)
    assert (likeliest["temperature"], likeliest["top_p"]) == (0.0, 1.0)


def test_a_learner_goes_on_with_the_newest_version(start, tmp_path):
    with VllmServer(base=start) as server:
        first = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        first.learn(rollouts(first, sampled(first)))  # Killed before it samples by version 1.
        again = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        assert again.version == 1
        known = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        replies = sampled(known)
    assert told(server) == ["load 0", "ask 0", "load 1", "unload 0", "ask 1"]
    assert {r.policy_version for r in replies} == {1}


def test_a_server_that_was_started_again_is_told_the_version(start, tmp_path):
    with VllmServer(base=start) as server:
        learner = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        server.adapters.clear()
        sampled(learner)
    assert told(server) == ["load 0", "load 0", "ask 0"]


def test_other_weights_of_the_same_run_and_version_have_another_name(start, tmp_path):
    with VllmServer(base=start) as server:
        GrpoLearner(tmp_path, start, served_by(server), "cpu")
        shutil.rmtree(tmp_path / "learner")
        GrpoLearner(tmp_path, start, replace(served_by(server), seed=1), "cpu")
    assert told(server) == ["load 0", "load 0", "unload 0"]
    assert len(set(server.told)) == 3
    assert len(server.adapters) == 1


@pytest.mark.parametrize("route", ["models", "load_lora_adapter", "completions"])
def test_what_fails_for_a_moment_is_asked_again(route, start, tmp_path):
    with VllmServer(base=start) as server:
        server.refusing[route] = [503]
        learner = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        assert len(sampled(learner)) == 4
    assert told(server) == ["load 0", "ask 0"]


def test_an_adapter_whose_loading_was_not_heard_of_is_loaded(start, tmp_path):
    with VllmServer(base=start, losing={"load_lora_adapter"}) as server:
        assert len(sampled(GrpoLearner(tmp_path, start, served_by(server), "cpu"))) == 4
    assert told(server) == ["load 0", "ask 0"]


def test_a_reply_whose_request_is_refused_is_missing(start, tmp_path, caplog):
    with VllmServer(base=start) as server:
        learner = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        server.refusing["completions"] = [400]
        with caplog.at_level(logging.WARNING, "rl.served"):
            assert len(sampled(learner)) == 3
        assert "one reply is missing" in caplog.text
        server.refusing["completions"] = [400] * 4
        with pytest.raises(ModelError, match="the request was refused"):
            sampled(learner)


def test_a_prompt_without_room_in_either_context_has_no_reply(start, tmp_path):
    with VllmServer(base=start, max_model_len=40) as server:
        config = served_by(server)
        learner = GrpoLearner(tmp_path, start, config, "cpu")
        served = learner.model.sampler
        found = served.sample([[5] * 39, [5] * 38, [5] * 3], config.sampling, [0, 1, 2])
        assert [sample is None for sample in found] == [True, False, False]
        assert len(found[1].ids) <= 2
        with pytest.raises(ModelError, match="a context of 40 tokens"):
            complete(learner.model, [Message(role="user", content="faster " * 40)], 1)


def test_a_server_without_the_base_model_is_refused(start, tmp_path):
    with (
        VllmServer(base=tmp_path / "other") as server,
        pytest.raises(ConfigError, match=f"serves served; expected .*: vllm serve {start} "),
    ):
        GrpoLearner(tmp_path, start, served_by(server), "cpu")


def test_a_server_that_takes_no_adapters_is_refused(start, tmp_path):
    with (
        VllmServer(base=start, updating=False) as server,
        pytest.raises(ModelError, match=r"RUNTIME_LORA_UPDATING=True, .*-rank of at least 4"),
    ):
        GrpoLearner(tmp_path, start, served_by(server), "cpu")


def test_a_server_that_returns_no_token_ids_is_refused(start, tmp_path):
    with VllmServer(base=start, token_ids=False) as server:
        learner = GrpoLearner(tmp_path, start, served_by(server), "cpu")
        with pytest.raises(ModelError, match=r"no token ids .* vLLM from 0\.10\.2"):
            sampled(learner)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("text", "not a completion"),
        ({"choices": []}, "not a completion"),
        ({"choices": [{"token_ids": [3], "finish_reason": "abort"}]}, "ended by 'abort'"),
        ({"choices": [{"token_ids": [3], "finish_reason": "stop"}]}, "without its end token"),
    ],
)
def test_an_answer_that_is_no_whole_reply_is_refused(body, words):
    with pytest.raises(ModelError, match=words):
        reply_ids(body, end=1)


def test_a_reply_that_ends_with_its_last_permitted_token_has_ended():
    choice = {"token_ids": [3, 1], "finish_reason": "length"}
    assert reply_ids({"choices": [choice]}, end=1) == [3, 1]


def test_fixed_weights_are_sampled_without_being_held(start, tmp_path):
    with VllmServer(base=start) as server:
        config = served_by(server)
        learner = GrpoLearner(tmp_path / "run", start, config, "cpu")
        adapters = learner.folder / "0"
        assert base_of(adapters) == str(start)
        for folder in (adapters, start):
            campaign = load_optimize("train-cpu", model=f"local:{folder}", greedy=True)
            run = tmp_path / f"of {folder.name}"
            run.mkdir()
            policy = open_policy(campaign, config, run)
            assert policy.learner is None
            assert policy.model.policy.model is None
            [reply] = complete(policy.model, ASKED, 1)
            assert (reply.model, reply.policy_version) == ("toy@0", 0)
    assert server.told[-1] == "ask served"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sampling: {engine: vllm-server, base_url: 'http://x/v1'}", "set lora, or take engine hf"),
        ("lora: {rank: 8}\nsampling: {engine: vllm-server}", "base_url None; expected a base_url"),
        ("sampling: {base_url: 'http://x/v1'}", "with vllm-server alone"),
    ],
)
def test_a_config_that_no_server_can_sample_is_refused(text, words, tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=words):
        load_train(str(path))
