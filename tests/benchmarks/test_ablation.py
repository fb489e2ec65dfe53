"""The ablation's arms, its table, and the same figures through batch files."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.config import OptimizeConfig
from agent.journals.outcome import Stage, TaskReport
from agent.loop.campaign import run_campaign
from agent.memory.notes import Memory
from agent.models.opening import BatchFiles
from agent.models.settings import ModelConfig
from agent.proposers import open_proposers
from agent.proposing.scripted import scripted_evaluation
from agent.runs import check_name, open_run
from agent.strategies.portfolio import Portfolio
from agent.types import Attempt, Proposal
from benchmarks.ablation import ARMS, Row, arm_config, figure, markdown, rows, run_arm, run_of
from rewards.types import Reward
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status
from tests.agent.scripts import hashed_reply, local_engine, make_task
from tests.doubles.openai_server import OpenAIServer, Step, completion

TASKS = [make_task(str(i)) for i in range(8)]
BASE = OptimizeConfig(
    device="cpu",
    models=(ModelConfig("m"),),
    keep_replies=False,
    proposals_per_round=2,
    memory=Memory("notes.jsonl"),
)


def by_prompt(prompt: str, number: int) -> str:
    """Not by how often it was asked: whose request comes first must not matter."""
    return hashed_reply(prompt, 0)


class Scripted:
    """`warpsmith.optimize` with scripted evaluations."""

    def __init__(self, runs: Path, tasks: Sequence[object] = TASKS) -> None:
        self.runs, self.tasks = runs, tasks

    def __call__(
        self,
        *,
        config: OptimizeConfig,
        name: str,
        export_requests: Path | None = None,
        import_replies: Sequence[Path] = (),
    ) -> None:
        files = None
        if export_requests is not None or import_replies:
            files = BatchFiles(export_requests, import_replies, lambda line: None)
        engine = local_engine()
        with (
            open_run(name, config, self.runs) as journal,
            open_proposers(journal, config, {}, files) as proposers,
        ):
            run_campaign(self.tasks, proposers, engine, journal, config.campaign())
        engine.close()


def test_every_arm_has_the_same_budget_and_only_its_own_helpers():
    configs = {arm: arm_config(arm, BASE, 8, 4) for arm in (*ARMS, "fsr+tuning+memory")}
    assert {c.max_candidates for c in configs.values()} == {32}
    assert [c.strategy.kind for c in configs.values()] == [*ARMS, "fsr"]
    assert configs["fsr"].tuning is configs["fsr"].memory is None
    assert configs["fsr+tuning+memory"].tuning is not None
    assert configs["fsr+tuning+memory"].memory == BASE.memory
    assert isinstance(configs["portfolio"].strategy, Portfolio)
    assert configs["portfolio"].max_candidates_per_task == 12


def test_every_arm_has_a_run_of_its_own_that_may_be_called_so():
    arms = (*ARMS, "fsr+tuning", "fsr+memory", "fsr+tuning+memory")
    assert len({check_name(run_of("abl", arm)) for arm in arms}) == len(arms)


@pytest.mark.parametrize(
    ("arm", "words"), [("fsrr", "did you mean 'fsr'"), ("fsr+luck", r"expected \+tuning")]
)
def test_a_mistyped_arm_is_refused(arm, words):
    with pytest.raises(ConfigError, match=words):
        arm_config(arm, BASE, 8, 4)


@pytest.mark.parametrize(
    ("arms", "candidates"),
    [(ARMS[:2], 2), pytest.param(ARMS, 4, marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_the_table_compares_the_arms_online_and_through_files(
    tmp_path, monkeypatch, arms, candidates
):
    monkeypatch.chdir(tmp_path)
    configs = {arm: arm_config(arm, BASE, len(TASKS), candidates) for arm in arms}
    # One choice a request, as in a file: what replies cost decides too.
    with OpenAIServer([], any_model=True, answering=by_prompt, honours_n=False) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        for arm, config in configs.items():
            run_arm(arm, "online", config, Scripted(tmp_path))
    online = rows("online", arms, tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY")
    out, back = tmp_path / "out", tmp_path / "in"
    back.mkdir()
    for arm, config in configs.items():
        run_arm(arm, "files", config, Scripted(tmp_path), out, back)
        while answer(out / f"{arm}.jsonl", back):
            run_arm(arm, "files", config, Scripted(tmp_path), out, back)
    files = rows("files", arms, tmp_path)
    assert [figures(row) for row in files] == [figures(row) for row in online]
    check(online)


def answer(requests: Path, folder: Path) -> bool:
    """What a provider returns for an arm's file, if there is one; appended: old lines may come
    again.
    """
    if not requests.exists():
        return False
    with (folder / requests.name).open("a") as stream:
        for line in requests.read_text().splitlines():
            request = json.loads(line)
            text = by_prompt(json.dumps(request["body"]["messages"]), 0)
            body = completion("m", [Step(text)])
            reply = {"custom_id": request["custom_id"], "response": {"body": body}}
            stream.write(json.dumps(reply) + "\n")
    requests.unlink()
    return True


def figures(row: Row) -> tuple[object, ...]:
    return row.arm, row.correct, row.speedup, row.faster, row.against_first, row.candidates


def check(table: Sequence[Row]) -> None:
    first = table[0]
    assert first.against_first.value == first.against_first.low == 1.0
    assert all(row.tasks == 8 and row.candidates <= 32 for row in table)
    assert all(row.speedup.low <= row.speedup.value <= row.speedup.high for row in table)
    text = markdown(table).splitlines()
    assert len(text) == 2 + len(table)
    assert all(line.count("|") == text[0].count("|") for line in text)
    assert f"| {first.arm} | {first.correct}/8 |" in text[2]


@pytest.mark.parametrize(
    ("searched", "confirmed", "counts"),
    [(2.0, 2.05, 2.05), (2.0, 1.2, 1.0), (2.0, None, 1.0), (0.5, None, 0.5)],
    ids=["confirmed", "refuted", "unconfirmed", "slower"],
)
def test_a_gain_counts_when_a_confirmation_upheld_it(searched, confirmed, counts):
    candidate = Candidate("t", Language.CPP, "class ModelNew: ...")

    def measured(speedup: float) -> Evaluation:
        return scripted_evaluation(candidate, EvalConfig(), Status.PASSED, speedup)

    best = Attempt(Proposal(candidate, "m"), measured(searched), Reward(1.0))
    again = None if confirmed is None else measured(confirmed)
    assert figure(TaskReport("t", Stage.DONE, best=best, confirmation=again)) == counts
    assert figure(TaskReport("t", Stage.DONE)) is None


def test_fewer_than_eight_tasks_make_no_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OpenAIServer([], any_model=True, answering=by_prompt) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        run_arm("fsr", "few", arm_config("fsr", BASE, 2, 1), Scripted(tmp_path, TASKS[:2]))
    with pytest.raises(ConfigError, match="2 tasks; an interval over tasks needs 8"):
        rows("few", ["fsr"], tmp_path)
    with pytest.raises(ConfigError, match="no such run"):
        rows("none", ["fsr"], tmp_path)
