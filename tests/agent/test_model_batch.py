"""Requests in a file, replies from files: the online path's decisions, on another machine."""

import json
import os
import random
import shlex
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.config import OptimizeConfig
from agent.journals.journal import Journal
from agent.journals.outcome import CampaignResult
from agent.loop.allocation import Allocation
from agent.loop.campaign import run_campaign
from agent.model import AwaitingReplies, CapReached, ModelError
from agent.models.batch import Outbox
from agent.models.ledger import Caps, Ledger, Spend
from agent.models.opening import BatchFiles, Books, batch_model, check_models
from agent.models.settings import ModelConfig
from agent.models.store import ReplyStore
from agent.prompts.message import Message
from agent.proposers import open_proposers
from agent.strategies.contrastive import Contrastive
from agent.strategies.evolve import Evolve
from agent.strategies.fsr import Fsr
from agent.strategies.portfolio import Portfolio
from sandbox.errors import ConfigError
from sandbox.types import Evaluation, Task
from tests.agent.scripts import hashed_reply, local_engine, make_task
from tests.asked import complete
from tests.doubles.openai_server import OpenAIServer, completion

ASK: list[Message] = [Message(role="user", content="Write a kernel.")]
TASKS = [make_task(str(i)) for i in range(20)]
FEW = TASKS[:3]
CONFIG = OptimizeConfig(
    models=(ModelConfig("scripted"),),
    keep_replies=False,
    proposals_per_round=2,
    max_candidates_per_task=6,
)

EVALUATION = (
    "evaluation: {baselines: [], rounds: 3, batch_ms: 0.5, max_sets: 8, min_pairs: 2, max_pairs: 2}"
)
"""Of what is really measured: figures are not looked at."""
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x) * y
def get_inputs():
    return [torch.randn(64, 129), torch.randn(64, 129)]
def get_init_inputs():
    return []
"""

# Two arms whose questions are never equal: then the order in which they are answered is theirs.
WAVES = Portfolio(arms=(Fsr(depth=99), Contrastive()), across=Allocation(wave=1, patience=None))


def run(
    folder: Path, tasks: Sequence[Task], config: OptimizeConfig, files: BatchFiles | None = None
) -> CampaignResult:
    """One call of a campaign over scripted tasks, without the command line around it."""
    folder.mkdir(exist_ok=True)
    engine = local_engine()
    with Journal(folder) as journal, open_proposers(journal, config, {}, files) as proposers:
        result = run_campaign(tasks, proposers, engine, journal, config.campaign())
    engine.close()
    return result


def decisions(folder: Path) -> list[tuple[Any, ...]]:
    """Everything a journal says but times, tokens and money."""
    with Journal(folder, read_only=True) as journal:
        rows = [record for task in journal.tasks() for record in journal.proposals(task.id)]
    return [
        (
            r.round,
            r.proposal.candidate,
            r.proposal.proposer,
            r.proposal.strategy,
            r.proposal.parents,
            r.proposal.features,
            r.proposal.prompt,
            r.proposal.reply,
            r.duplicate,
            judged(r.evaluation),
            judged(r.confirmation),
        )
        for r in rows
    ]


def judged(evaluation: Evaluation | None) -> object:
    return None if evaluation is None else replace(evaluation, seconds={})


class Provider:
    """Answers a batch file as a provider does: in any order, and some requests fail."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def answer(self, requests: Path, replies: Path) -> None:
        lines = [json.loads(line) for line in requests.read_text().splitlines()]
        answers = [self.line(line) for line in lines]
        random.Random(0).shuffle(answers)
        replies.write_text("\n".join(json.dumps(answer) for answer in answers) + "\n")

    def line(self, request: dict[str, Any]) -> dict[str, Any]:
        assert (request["method"], request["url"]) == ("POST", "/v1/chat/completions")
        prompt = json.dumps(request["body"]["messages"])
        text = hashed_reply(prompt, self.asked[prompt])
        self.asked[prompt] += 1
        return reply_line(request["custom_id"], text)


def reply_line(key: str, text: str) -> dict[str, Any]:
    body = completion("scripted", [OpenAIServer([text])._steps[0]])
    return {"custom_id": key, "response": {"status_code": 200, "body": body}, "error": None}


@pytest.mark.parametrize(
    ("tasks", "strategy"),
    [
        (FEW, Fsr()),
        pytest.param(FEW, Evolve(), marks=pytest.mark.slow),
        pytest.param(FEW, WAVES, marks=pytest.mark.slow),
        pytest.param(TASKS, Fsr(), marks=pytest.mark.slow),
        pytest.param(TASKS, Evolve(), marks=pytest.mark.slow),
    ],
    ids=lambda value: value.kind if isinstance(value, Fsr | Evolve | Portfolio) else len(value),
)
def test_three_rounds_through_files_decide_as_the_online_path(
    tmp_path, monkeypatch, tasks, strategy
):
    config = replace(CONFIG, strategy=strategy)
    if strategy == WAVES:
        config = replace(config, max_candidates=6 * len(tasks), max_candidates_per_task=12)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    # One choice a request, as in a file: what replies cost decides too.
    with OpenAIServer([], answering=hashed_reply, honours_n=False) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        online = run(tmp_path / "online", tasks, config)
    monkeypatch.delenv("OPENAI_API_KEY")
    provider, said = Provider(), list[str]()
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    offline = run(tmp_path / "offline", tasks, config, BatchFiles(requests, say=said.append))
    assert (offline.tried, said) == (0, [f"{2 * len(tasks)} requests written to {requests}"])
    for _ in range(12):
        if said[-1].startswith("no request is left"):
            break
        provider.answer(requests, replies)
        files = BatchFiles(requests, [replies], said.append)
        offline = run(tmp_path / "offline", tasks, config, files)
    assert sum("written" in line for line in said) >= 3, "rounds"
    assert decisions(tmp_path / "offline") == decisions(tmp_path / "online")
    assert [(t.verdict, t.stage) for t in offline.tasks] == [
        (t.verdict, t.stage) for t in online.tasks
    ]


@pytest.mark.slow
def test_what_is_exported_ends_with_the_command_that_goes_on(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "small.py").write_text(PROBLEM)
    (tmp_path / "c.yaml").write_text(f"{{tasks: [small.py], engine: local, {EVALUATION}}}")
    options = ("--config", "c.yaml", "--model", "scripted", "--name", "air", "--device", "cpu")
    done = cli(tmp_path, "optimize", *options, "--export-requests", "my requests.jsonl")
    assert done.code == 0
    told, _, again = done.err.strip().rpartition(" holds the replies: ")
    assert told == "to go on, once replies.jsonl"
    Provider().answer(tmp_path / "my requests.jsonl", tmp_path / "replies.jsonl")
    verb, *typed = shlex.split(again)
    assert verb == "warpsmith"
    assert typed.count("--import-replies") == 1
    done = cli(tmp_path, *typed, "--max-seconds", "1")
    assert "3 replies imported" in done.out
    assert done.err.count("to go on") <= 1


def test_what_is_exported_replaces_no_replies_and_no_device(tmp_path, cli):
    (tmp_path / "replies.jsonl").write_text("paid for")
    os.mkfifo(tmp_path / "pipe")
    same = ("--import-replies", "replies.jsonl", "--export-requests", "./replies.jsonl")
    for typed, words in ((same, "name another file"), (("--export-requests", "pipe"), "a device")):
        done = cli(tmp_path, "optimize", "builtin/softmax", "--model", "scripted", *typed)
        assert done.code == 2
        assert words in done.err
    assert (tmp_path / "replies.jsonl").read_text() == "paid for"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "link").symlink_to(tmp_path / "requests.jsonl")
    outbox = Outbox()
    outbox.add("key", "line")
    outbox.write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "requests.jsonl").read_text() == "line\n"


@pytest.mark.slow
def test_a_model_that_cannot_be_reached_leaves_a_way_to_go_on(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:9/v1")
    (tmp_path / "small.py").write_text(PROBLEM)
    file = tmp_path / "c.yaml"
    file.write_text(
        f"{{models: [{{name: gone, retries: 0}}], tasks: [small.py], engine: local, {EVALUATION}}}"
    )
    done = cli(tmp_path, "optimize", "--config", "c.yaml", "--device", "cpu", "--name", "first")
    assert done.code == 2
    assert "cannot be reached" in done.out
    assert done.err.endswith("\nto go on: the same command with --name first\n")


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(Ledger(tmp_path / "ledger.jsonl"), ReplyStore(tmp_path / "replies"))


def ask(books: Books, outbox: Outbox, n: int = 1, **settings: Any) -> list[str]:
    model = batch_model(ModelConfig("scripted", **settings), CONFIG, books, outbox)
    return [reply.text for reply in complete(model, ASK, n)]


def exported(books: Books, n: int, **settings: Any) -> list[dict[str, Any]]:
    outbox = Outbox()
    with pytest.raises(AwaitingReplies, match=f"awaiting {n} repl"):
        ask(books, outbox, n, **settings)
    return [json.loads(line) for line in outbox.lines.values()]


def imported(books: Books, tmp_path: Path, *lines: object) -> tuple[str, Outbox]:
    from agent.models.batch import import_replies

    path = tmp_path / "in.jsonl"
    text = "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines)
    path.write_text(text, encoding="utf-8")
    count, unanswered = import_replies([path], books.store, books.ledger)
    return str(count), Outbox(unanswered=unanswered)


def test_a_request_keeps_its_id_and_says_what_the_settings_say(books):
    first = exported(books, 2, max_tokens=99, extra={"reasoning_effort": "low"})
    again = exported(books, 2, max_tokens=99, extra={"reasoning_effort": "low"})
    assert first == again
    assert len({line["custom_id"] for line in first}) == 2
    assert first[0]["body"] == {
        "model": "scripted",
        "messages": ASK,
        "max_tokens": 99,
        "reasoning_effort": "low",
    }


def test_requests_are_not_taken_for_failed_replies(books, tmp_path):
    lines = exported(books, 2)
    with pytest.raises(ConfigError, match="holds requests, not their replies"):
        imported(books, tmp_path, *lines)
    assert len(exported(books, 2)) == 2, "they still wait"


def test_failed_and_missing_requests_are_gone_for_the_round_and_said(books, tmp_path):
    a, b, _ = (line["custom_id"] for line in exported(books, 3))
    failed = {"custom_id": a, "response": None, "error": {"message": "expired"}}
    said, outbox = imported(books, tmp_path, reply_line(b, "hello"), failed, "{nonsense")
    assert said == "1 reply imported, 1 failed, 1 malformed, 1 missing"
    assert ask(books, outbox, 3) == ["hello"]
    assert not outbox.lines


def test_a_round_that_nobody_answered_is_an_error_and_a_later_call_exports_it_again(
    books, tmp_path
):
    [line] = exported(books, 1)
    refused = {"custom_id": line["custom_id"], "response": {"status_code": 500, "body": {}}}
    _, outbox = imported(books, tmp_path, refused)
    with pytest.raises(ModelError, match="none of 1 exported requests was answered"):
        ask(books, outbox)
    assert exported(books, 1) == [line]


def test_a_reply_to_nothing_we_asked_is_counted_and_not_kept(books, tmp_path):
    [line] = exported(books, 1)
    said, outbox = imported(
        books, tmp_path, reply_line("f" * 32, "who?"), reply_line(line["custom_id"], "yes")
    )
    assert said == "1 reply imported, 1 not asked for"
    assert ask(books, outbox) == ["yes"]


def test_a_failure_of_nothing_we_asked_is_unknown_and_ours_stays_failed_when_imported_again(
    books, tmp_path
):
    [line] = exported(books, 1)
    ours = {"custom_id": line["custom_id"], "response": None, "error": {"message": "expired"}}
    theirs = ours | {"custom_id": "f" * 32}
    assert imported(books, tmp_path, theirs)[0] == "0 replies imported, 1 missing, 1 not asked for"
    assert (
        imported(books, tmp_path, ours, theirs)[0]
        == "0 replies imported, 1 failed, 1 not asked for"
    )
    assert imported(books, tmp_path, ours)[0] == "0 replies imported, 1 failed"
    assert books.ledger.spent == Spend(1)
    with Ledger(tmp_path / "ledger.jsonl") as again:
        later = Books(again, books.store)
        assert imported(later, tmp_path, ours, theirs)[0].endswith("1 failed, 1 not asked for")


@pytest.mark.parametrize("strategy", [Fsr(), WAVES], ids=["fsr", "two arms"])
def test_a_task_whose_whole_round_is_missing_is_asked_again(tmp_path, strategy):
    config = replace(CONFIG, strategy=strategy)
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    said = list[str]()
    files = BatchFiles(requests, say=said.append)
    run(tmp_path / "air", FEW[:1], config, files)
    lost = set(requests.read_text().splitlines())
    run(tmp_path / "air", FEW, config, files)
    answered = set(requests.read_text().splitlines()) - lost
    requests.write_text("\n".join(answered))
    Provider().answer(requests, replies)
    result = run(tmp_path / "air", FEW, config, BatchFiles(requests, [replies], said.append))
    assert lost <= set(requests.read_text().splitlines())
    assert result.awaiting
    assert [task.tried for task in result.tasks] == [0, 2, 2]
    assert result.tasks[0].reason == "awaiting 2 replies"
    Provider().answer(requests, replies)
    result = run(tmp_path / "air", FEW, config, BatchFiles(requests, [replies], said.append))
    assert result.tasks[0].tried == 2


def test_a_reply_that_comes_after_its_failure_is_kept_and_counted_once(books, tmp_path):
    [line] = exported(books, 1)
    failed = {"custom_id": line["custom_id"], "response": None, "error": {"message": "expired"}}
    imported(books, tmp_path, failed)
    said, outbox = imported(books, tmp_path, reply_line(line["custom_id"], "late"))
    assert said == "1 reply imported"
    assert books.ledger.spent == Spend(1, 18)
    with Ledger(tmp_path / "ledger.jsonl") as again:
        assert again.spent == Spend(1, 18)
    assert ask(books, outbox) == ["late"]
    assert books.ledger.spent == Spend(1, 18)


def test_a_line_may_hold_whatever_json_need_not_escape(books, tmp_path):
    [line] = exported(books, 1)
    text = "one\u2028two\x85three"
    answer = json.dumps(reply_line(line["custom_id"], text), ensure_ascii=False)
    said, outbox = imported(books, tmp_path, answer)
    assert said == "1 reply imported"
    assert ask(books, outbox) == [text]


def test_a_file_may_begin_with_a_byte_order_mark(books, tmp_path):
    [line] = exported(books, 1)
    answer = json.dumps(reply_line(line["custom_id"], "yes"))
    assert imported(books, tmp_path, f"\ufeff{answer}")[0] == "1 reply imported"


def test_a_line_nested_beyond_reading_is_malformed(books, tmp_path):
    [line] = exported(books, 1)
    said, _ = imported(books, tmp_path, "[" * 100_000, reply_line(line["custom_id"], "yes"))
    assert said == "1 reply imported, 1 malformed"


def test_the_same_file_twice_changes_nothing(books, tmp_path):
    [line] = exported(books, 1)
    answer = reply_line(line["custom_id"], "yes")
    imported(books, tmp_path, answer)
    said, outbox = imported(books, tmp_path, answer)
    assert said == "1 reply imported"
    assert ask(books, outbox) == ["yes"]


def test_a_file_without_a_single_line_of_a_batch_is_refused(books, tmp_path):
    with pytest.raises(ConfigError, match="no line of a batch's output"):
        imported(books, tmp_path, "hello")


def test_what_waits_in_a_file_counts_until_its_reply_is_used(tmp_path):
    books = Books(Ledger(tmp_path / "l", Caps(max_requests=2)), ReplyStore(tmp_path / "r"))
    a, _ = (line["custom_id"] for line in exported(books, 2))
    model = batch_model(ModelConfig("scripted"), CONFIG, books, Outbox())
    with pytest.raises(CapReached, match="max_requests"):
        complete(model, ASK, 1, "another round")
    _, outbox = imported(books, tmp_path, reply_line(a, "yes"))
    ask(books, outbox, 2)
    with Ledger(tmp_path / "l") as again:
        assert again.spent.requests == 2
    assert books.ledger.spent - Spend(0, books.ledger.spent.tokens) == Spend(2)


def test_a_reply_that_does_not_say_what_it_used_counts_in_full(books, tmp_path):
    [line] = exported(books, 1, max_tokens=50)
    most = books.ledger.spent
    answer = reply_line(line["custom_id"], "yes")
    del answer["response"]["body"]["usage"]
    _, outbox = imported(books, tmp_path, answer)
    assert ask(books, outbox, max_tokens=50) == ["yes"]
    assert (books.ledger.spent, books.ledger.waiting()) == (most, frozenset())
    with Ledger(tmp_path / "ledger.jsonl") as again:
        assert again.spent == most


def test_a_cap_that_ends_within_a_round_keeps_the_replies_that_were_paid_for(tmp_path):
    books = Books(Ledger(tmp_path / "l", Caps(max_requests=1)), ReplyStore(tmp_path / "r"))
    outbox = Outbox()
    with pytest.raises(AwaitingReplies, match="awaiting 1 reply"):
        ask(books, outbox, 2)
    (key,) = outbox.lines
    _, outbox = imported(books, tmp_path, reply_line(key, "yes"))
    model = batch_model(ModelConfig("scripted"), CONFIG, books, outbox)
    first, second = model.complete_each([ASK, ASK])
    assert first is not None
    assert first.text == "yes"
    assert second is None
    assert not outbox.lines
    with pytest.raises(CapReached, match="max_requests"):
        model.complete_each([ASK, ASK], "another round")


def test_files_without_a_model_are_refused():
    with pytest.raises(ConfigError, match="only with --model"):
        check_models(OptimizeConfig(), BatchFiles(Path("out")))
