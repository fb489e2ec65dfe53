"""The sequence of prompts a model is given: propose, repair with the error, optimise the best."""

import json

import pytest

from agent.journals.journal import Journal
from agent.model import Reply, ScriptedModel
from agent.models.endpoint import OpenAIModel
from agent.proposing.model_proposer import ModelProposer
from agent.types import Attempt, Proposal, Proposer
from rewards.types import Reward
from sandbox.errors import ConfigError
from sandbox.figures import Interval, Pair, Timing
from sandbox.types import Evaluation, Language, Status, Task
from tests.doubles.openai_server import OpenAIServer

TASK = Task("builtin/relu", "class Model: ...\n", "cpu")


def reply(name: str) -> str:
    return f"Fused.\n```python\nclass ModelNew:\n    name = {name!r}\n```\n"


def source(name: str) -> str:
    return f"class ModelNew:\n    name = {name!r}\n"


def proposer(*names: str) -> ModelProposer:
    return ModelProposer(ScriptedModel([reply(name) for name in names]), {"cores": 2})


def judged(proposal: Proposal, status: Status, speedup: float = 1.0) -> Attempt:
    timing = None
    if status is Status.PASSED:
        interval = Interval(speedup, speedup * 0.99, speedup * 1.01)
        pairs = (Pair(speedup, 1.0, 0.0, 8),) * 3
        timing = Timing(speedup, 1.0, interval, 0.01, pairs, sets=8)
    candidate = proposal.candidate
    evaluation = Evaluation(
        TASK.id, candidate.id, "quick", status, f"because of {candidate.id}", timing=timing
    )
    return Attempt(proposal, evaluation, Reward(None))


def test_the_first_round_is_n_replies_to_one_prompt() -> None:
    seam: Proposer = proposer("a", "b")
    first, second = seam.propose(TASK, [], 2)
    assert first.candidate.source == source("a")
    assert (first.strategy, first.parents, first.proposer) == ("fsr propose", (), "scripted")
    assert first.candidate.language is Language.CPP
    assert first.prompt == second.prompt
    assert [message["role"] for message in json.loads(first.prompt or "")] == ["system", "user"]
    assert first.reply == reply("a")


def test_each_failure_gets_a_repair_turn_with_its_error_and_the_rest_starts_anew() -> None:
    model = proposer("a", "b", "b2", "a2", "c")
    failures = [judged(p, Status.RUNTIME_ERROR) for p in model.propose(TASK, [], 2)]
    repairs = model.propose(TASK, failures, 3)
    assert [p.strategy for p in repairs] == ["fsr repair", "fsr repair", "fsr propose"]
    newest_first = [failure.proposal.candidate.id for failure in reversed(failures)]
    assert [p.parents for p in repairs] == [(newest_first[0],), (newest_first[1],), ()]
    assert f"because of {newest_first[0]}" in (repairs[0].prompt or "")


def test_a_repair_of_a_repair_is_the_last() -> None:
    model = proposer("a", "b", "c", "d")
    history: list[Attempt] = []
    strategies = []
    for _ in range(4):
        [proposal] = model.propose(TASK, history, 1)
        strategies.append(proposal.strategy)
        history.append(judged(proposal, Status.COMPILE_ERROR))
    assert strategies == ["fsr propose", "fsr repair", "fsr repair", "fsr propose"]


def test_a_repair_that_comes_back_unchanged_is_not_repaired_again() -> None:
    model = proposer("a", "a", "b")
    history: list[Attempt] = []
    for _ in range(2):
        [proposal] = model.propose(TASK, history, 1)
        history.append(judged(proposal, Status.WRONG_VALUE))
    assert [p.strategy for p in model.propose(TASK, history, 1)] == ["fsr propose"]


def test_the_best_so_far_is_optimised_further_and_never_lost() -> None:
    model = proposer("slow", "fast", "worse", "again")
    slow, fast = model.propose(TASK, [], 2)
    history = [judged(fast, Status.PASSED, 3.0), judged(slow, Status.PASSED, 1.5)]
    [improved] = model.propose(TASK, history, 1)
    assert (improved.strategy, improved.parents) == ("fsr improve", (fast.candidate.id,))
    assert "3.00x" in (improved.prompt or "")
    history.append(judged(improved, Status.PASSED, 0.5))
    [again] = model.propose(TASK, history, 1)
    assert again.parents == (fast.candidate.id,)


@pytest.mark.parametrize("status", [Status.SANDBOX_ERROR, Status.INVALID_REFERENCE])
def test_a_fault_that_is_not_the_candidates_is_not_repaired(status: Status) -> None:
    model = proposer("a", "b")
    history = [judged(p, status) for p in model.propose(TASK, [], 1)]
    assert model.propose(TASK, history, 1)[0].strategy == "fsr propose"


def test_a_reply_without_code_becomes_a_candidate_that_says_so_and_is_repaired() -> None:
    script = ScriptedModel([Reply("Sorry, I am out of tok", finish_reason="length"), reply("b")])
    model = ModelProposer(script, {})
    [empty] = model.propose(TASK, [], 1)
    assert empty.candidate.source.startswith("# no code: the reply was cut off at the token limit")
    [repair] = model.propose(TASK, [judged(empty, Status.REJECTED)], 1)
    assert "It held no usable code: the reply was cut off" in (repair.prompt or "")
    assert repair.candidate.source == source("b")


def test_a_reply_that_ends_in_half_a_character_can_be_recorded(tmp_path) -> None:
    model = ScriptedModel([Reply(reply("a") + "\ud83d", reasoning="\ude00")])
    with Journal(tmp_path) as journal:
        journal.record_proposals(0, ModelProposer(model, {}).propose(TASK, [], 1))
        [record] = journal.proposals(TASK.id)
    assert record.proposal.reply == f"<think>\n?\n</think>\n{reply('a')}?"


def test_a_reply_of_reasoning_alone_is_read_as_a_replay_reads_it() -> None:
    def read(text: str, reasoning: str | None = None) -> Proposal:
        script = ScriptedModel([Reply(text, reasoning, finish_reason="stop")])
        [proposal] = ModelProposer(script, {}).propose(TASK, [], 1)
        return proposal

    live = read("", "Let me think.")
    assert "still reasoning" in live.candidate.source
    assert read(live.reply or "").candidate == live.candidate


def test_reasoning_and_usage_reach_the_proposal() -> None:
    scripted = Reply(reply("a"), "hmm", prompt_tokens=5, completion_tokens=6, seconds=0.5)
    [proposal] = ModelProposer(ScriptedModel([scripted]), {}).propose(TASK, [], 1)
    assert proposal.reply == f"<think>\nhmm\n</think>\n{reply('a')}"
    usage = proposal.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.seconds) == (5, 6, 0.5)


@pytest.mark.parametrize(
    ("language", "device", "supported"),
    [
        (None, "cpu", True),
        (None, "cuda", True),
        (Language.CPP, "cuda", False),
        (Language.TRITON, "cpu", False),
        (Language.TRITON, "cuda", True),
    ],
)
def test_a_language_that_does_not_run_on_the_device_is_unsupported(
    language: Language | None, device: str, supported: bool
) -> None:
    model = ModelProposer(ScriptedModel([]), {}, language=language)
    assert (model.unsupported(Task("t", "", device)) is None) == supported


def test_torch_is_refused_as_a_language() -> None:
    with pytest.raises(ConfigError, match="'torch'; expected cpp, cuda"):
        ModelProposer(ScriptedModel([]), {}, language=Language.TORCH)


def test_equal_history_and_replies_give_equal_proposals() -> None:
    first, second = proposer("a", "b"), proposer("a", "b")
    history = [judged(p, Status.TIMEOUT) for p in first.propose(TASK, [], 1)]
    assert history == [judged(p, Status.TIMEOUT) for p in second.propose(TASK, [], 1)]
    assert first.propose(TASK, history, 1) == second.propose(TASK, history, 1)


def test_a_round_over_http_proposes_and_repairs() -> None:
    with OpenAIServer([reply("a"), reply("b")]) as server:
        model = OpenAIModel(server.model, server.url, api_key="k")
        [failed] = ModelProposer(model, {}).propose(TASK, [], 1)
        history = [judged(failed, Status.COMPILE_ERROR)]
        # A new proposer, as in a resumed campaign.
        [repair] = ModelProposer(model, {}).propose(TASK, history, 1)
    assert repair.candidate.source == source("b")
    assert source("a") in server.requests[1].body["messages"][1]["content"]
