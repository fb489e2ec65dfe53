"""A policy from nothing: its tokenizer loses nothing, its samples repeat, its checkpoints load."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the train extra")

from agent.model import ModelError
from agent.prompts.message import Message
from rl.config import LoraConfig, SamplingConfig, ShapeConfig, TrainConfig
from rl.local import LocalModel
from rl.policy import Policy, load_policy, new_policy
from rl.replica import with_adapters
from rl.written import TokenStore, Written
from sandbox.errors import ConfigError
from tests.asked import complete

SOURCE = 'for (long i = 0; i < n; ++i) {\n\tout[i] = x[i] + 1.0f;  // é\n}\n\n\nreturn "π";\n'
PROMPT = [Message(role="system", content="write"), Message(role="user", content="faster")]
SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=64)
SAMPLING = SamplingConfig(max_new_tokens=12, batch=2)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy([SOURCE] * 20, SHAPE, "toy", seed=1)


@pytest.mark.parametrize("text", [SOURCE, "unseen\r\n  text ☃", "", "\n\n\n", "a" * 50])
def test_decoding_gives_back_every_text(policy, text):
    ids = policy.reply_ids(text)
    assert ids[-1] == policy.tokenizer.eos_token_id
    assert policy.tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_line_that_repeats_is_one_token(policy):
    assert len(policy.reply_ids(SOURCE)) < 12


def test_a_checkpoint_loads_as_it_was_saved(policy, tmp_path):
    policy.save(tmp_path / "p")
    again = load_policy(tmp_path / "p")
    ids = policy.prompt_ids(PROMPT)
    assert (again.name, again.prompt_ids(PROMPT)) == ("toy", ids)
    reply = policy.reply_ids(SOURCE)
    assert again.log_probabilities(ids, reply) == policy.log_probabilities(ids, reply)


def test_a_sample_says_whether_it_came_to_its_end(policy):
    short, long = policy.prompt_ids(PROMPT[1:]), policy.prompt_ids(PROMPT)
    for sample in policy.sample([short, long], SAMPLING, seeds=[3, 4]):
        assert sample is not None
        assert 0 < len(sample.ids) <= SAMPLING.max_new_tokens
        assert sample.finished == (sample.ids[-1] == policy.tokenizer.eos_token_id)


def test_equal_draws_give_equal_replies_and_others_differ(policy):
    model = LocalModel(policy, SAMPLING)
    first, again, other = (complete(model, PROMPT, 3, draw) for draw in ("t 0", "t 0", "t 1"))
    assert [r.text for r in first] == [r.text for r in again]
    assert [r.text for r in first] != [r.text for r in other]
    assert {(r.model, r.policy_version) for r in first} == {("toy@0", 0)}


def test_who_asks_at_once_is_answered_at_once_and_as_if_alone(policy, monkeypatch):
    model = LocalModel(policy, replace(SAMPLING, batch=4))
    draws = [f"t {i}" for i in range(6)]
    alone = [[r.text for r in complete(model, PROMPT, 2, draw)] for draw in draws]
    batches: list[int] = []
    sample = policy.sample

    def counted(prompts, *rest):
        batches.append(len(prompts))
        return sample(prompts, *rest)

    monkeypatch.setattr(policy, "sample", counted)
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda draw: complete(model, PROMPT, 2, draw), draws))
    assert [[r.text for r in replies] for replies in together] == alone
    assert len(batches) < 6
    assert sum(batches) == 12


def test_who_has_all_replies_does_not_wait_for_others(policy, monkeypatch):
    model, held, free = LocalModel(policy, SAMPLING), threading.Event(), threading.Event()
    sample, batches = policy.sample, []

    def one_by_one(prompts, *rest):
        batches.append(len(prompts))
        if len(batches) > 1:
            held.set()
            assert free.wait(20)
        return sample(prompts, *rest)

    monkeypatch.setattr(policy, "sample", one_by_one)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(complete, model, PROMPT, 3, "long")
        short = pool.submit(complete, model, PROMPT[1:], 2, "short")
        try:
            assert len(short.result(20)) == 2
            assert held.wait(20)
            assert not long.done()
        finally:
            free.set()
        assert len(long.result(20)) == 3
    assert batches == [2, 2, 1]
    assert model.busy_s > 0


def test_a_long_prompt_leaves_others_their_room(policy):
    short = policy.prompt_ids(PROMPT[1:])
    long = (short * 9)[: policy.context - 3]
    [alone] = policy.sample([short], SAMPLING, [5])
    beside = policy.sample([short, long], SAMPLING, [5, 6])
    assert beside[0].ids == alone.ids
    assert len(beside[1].ids) <= 3


def test_a_prompt_that_cannot_be_written_fails_for_all_who_asked(policy, monkeypatch):
    model = LocalModel(policy, SAMPLING)

    def refused(messages):
        raise ValueError("no system role")

    monkeypatch.setattr(policy, "prompt_ids", refused)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(complete, model, PROMPT, 1, str(i)) for i in range(3)]
        assert [str(each.exception(20)) for each in asked] == ["no system role"] * 3


def test_a_sampling_that_fails_fails_for_all_who_asked(policy, monkeypatch):
    model = LocalModel(policy, SAMPLING)

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(policy, "sample", broken)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(complete, model, PROMPT, 1, str(i)) for i in range(3)]
    assert [str(each.exception()) for each in asked] == ["out of memory"] * 3


def test_draws_follow_the_probabilities(policy):
    sampling = SamplingConfig(max_new_tokens=1, batch=500, temperature=0.7)
    prompt = policy.prompt_ids(PROMPT[1:])
    drawn = policy.sample([prompt] * 2000, sampling, range(2000))
    logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1] / 0.7
    likeliest = logits.softmax(-1).topk(5)
    for token, chance in zip(*map(torch.Tensor.tolist, likeliest[::-1]), strict=True):
        share = sum(s.ids == [token] for s in drawn) / 2000
        assert share == pytest.approx(chance, abs=5 * (chance / 2000) ** 0.5)


def test_a_prompt_without_room_for_a_reply_is_refused(policy):
    with pytest.raises(ModelError, match="leaves room in a context of 64"):
        complete(LocalModel(policy, SAMPLING), [Message(role="user", content="x" * 500)], 1)


def test_sampled_tokens_outlive_the_process_and_a_torn_line(policy, tmp_path):
    path = tmp_path / "tokens.jsonl"
    model = LocalModel(policy, SAMPLING, tokens=TokenStore(path, versions=2))
    [reply] = complete(model, PROMPT, 1)
    with path.open("a") as stream:
        stream.write('{"key": "torn')
    prompt = json.dumps(PROMPT, ensure_ascii=False)
    found = TokenStore(path, versions=2).get(0, prompt, reply.text)
    assert found is not None
    assert policy.tokenizer.decode(found.ids, skip_special_tokens=True) == reply.text
    again = policy.log_probabilities(policy.prompt_ids(PROMPT), found.ids, SAMPLING.temperature)
    assert found.log_probabilities == pytest.approx(again, abs=2e-3)


def test_how_likely_a_reply_was_is_kept_only_where_later_weights_learn_from_it(policy, tmp_path):
    path = tmp_path / "tokens.jsonl"
    complete(LocalModel(policy, SAMPLING, tokens=TokenStore(path)), PROMPT, 1)
    assert "log_probabilities" not in path.read_text()


def test_what_is_sampled_after_a_kill_outlives_the_next_one(tmp_path):
    path = tmp_path / "tokens.jsonl"
    TokenStore(path).put(0, "a prompt", "one", Written([1]))
    with path.open("a") as stream:
        stream.write('{"key": "torn')
    TokenStore(path).put(0, "a prompt", "two", Written([2]))
    found = TokenStore(path)
    assert [found.get(0, "a prompt", reply).ids for reply in ("one", "two")] == [[1], [2]]


@pytest.mark.parametrize("versions", [1, 2])
def test_tokens_of_earlier_weights_are_not_held_for_the_rest_of_a_run(tmp_path, versions):
    store = TokenStore(tmp_path / "tokens.jsonl", versions)
    for version in range(50):
        store.put(version, "a prompt", "a reply", Written([version]))
    for found in (store, TokenStore(tmp_path / "tokens.jsonl", versions)):
        kept = [found.get(version, "a prompt", "a reply") for version in range(50)]
        assert kept[-1].ids == [49]
        assert sum(one is not None for one in kept) == versions


def test_without_a_network_a_missing_model_is_told_at_once(monkeypatch):
    """The Hub's clients would ask again and again, each with a line."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    with pytest.raises(
        ConfigError, match=r"^nobody/nothing: no such folder, .* cannot be reached$"
    ):
        load_policy("nobody/nothing")
    assert time.monotonic() - began < 20


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no transformers checkpoint \(no config.json in it\)"):
        load_policy(tmp_path)


def test_a_checkpoint_that_a_kill_tore_is_named(policy, tmp_path):
    torn_files = {"model.safetensors": "transformers checkpoint", "policy.json": "readable policy"}
    for torn, lacking in torn_files.items():
        policy.save(tmp_path)
        whole = (tmp_path / torn).read_bytes()
        (tmp_path / torn).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ConfigError, match=f"^{tmp_path}: no {lacking}"):
            load_policy(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("policy.json", '{"taught": [1, {}]}', "policy.json: is .*; expected a name, a version"),
        ("policy.json", "[]", r"policy.json: is \[\]; expected a name, a version"),
        ("policy.json", '{"version": null}', "policy.json: is .*; expected a name, a version"),
        ("tokenizer.json", "{}", "no tokenizer "),
        ("tokenizer.json", '{"added_tokens": []}', "no tokenizer "),
        ("tokenizer_config.json", "[]", "no tokenizer "),
        ("config.json", "3", "no transformers checkpoint "),
        ("generation_config.json", "[]", "no transformers checkpoint "),
        ("adapter_config.json", "{}", "adapter_config.json: names no base_model_name_or_path"),
    ],
)
def test_a_file_of_a_checkpoint_that_says_something_else_is_one_line(
    policy, tmp_path, file, text, words
):
    policy.save(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        load_policy(tmp_path)
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_checkpoint_without_its_tokenizer_is_named(policy, tmp_path):
    policy.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
        with pytest.raises(ConfigError, match=f"^{tmp_path}: no tokenizer"):
            load_policy(tmp_path)


def test_adapters_find_their_base_from_any_folder_or_name_it(policy, tmp_path, monkeypatch):
    """The path was kept as it was typed, and from elsewhere a model of that name was looked for at
    the Hub.
    """
    monkeypatch.chdir(tmp_path)
    policy.save(Path("base"))
    config = TrainConfig(lora=LoraConfig(rank=2))
    with_adapters(load_policy("base"), config).save(Path("adapters"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_policy("../adapters").parameters > policy.parameters
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=f"its adapters change {tmp_path}/base, and there is no"):
        load_policy("../adapters")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", 2, "has no weights for model.layers.1.input_layernorm.weight"),
        ("intermediate_size", 16, r"_proj.weight are \(32, 32\); expected \(32, 16\)"),
    ],
)
def test_weights_that_a_checkpoint_lacks_are_not_drawn_by_chance(
    policy, tmp_path, key, value, words
):
    policy.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(ConfigError, match=words):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    "template",
    [None, "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"],
)
def test_a_model_that_takes_no_prompts_is_named(policy, tmp_path, template):
    policy.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match="no chat template that takes a system"):
        load_policy(tmp_path)
