"""The journal keeps what it is given, once, and refuses what it cannot keep."""

import json
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.config import load_optimize
from agent.journals import recorded
from agent.journals.journal import FILE, Journal
from agent.journals.recorded import Purpose
from agent.journals.storage import SCHEMA_VERSION, RunLock, filesystem_type, is_network
from agent.proposing.scripted import scripted_evaluation
from agent.runs import open_run
from agent.types import Proposal, Usage
from rewards import speedup
from sandbox.errors import ConfigError
from sandbox.records import from_record
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status
from tests.agent.scripts import make_task

TASK = make_task("a")
ROOT = Path(__file__).parents[2]


def proposal(source: str) -> Proposal:
    return Proposal(
        Candidate(TASK.id, Language.CPP, source),
        proposer="m",
        strategy="best",
        parents=("p1", "p2"),
        features={"unroll": 4, "isa": "avx2"},
        prompt="faster, please",
        reply="```python```",
        usage=Usage(10, 20, 0.5, 1.5),
    )


def evaluation(source: str, status: Status = Status.PASSED) -> Evaluation:
    return scripted_evaluation(proposal(source).candidate, EvalConfig(), status, 1.5)


def filled(folder: Path, *sources: str) -> Journal:
    journal = Journal(folder)
    journal.record_task(TASK)
    journal.record_proposals(0, [proposal(s) for s in sources])
    return journal


def evaluate(journal: Journal, result: Evaluation) -> None:
    reward = speedup.reward(result)
    journal.record_evaluation(TASK, result, reward=reward, function=speedup.NAME)


def test_a_reader_sees_what_its_writer_adds_to_proposals_it_has_read(tmp_path):
    with filled(tmp_path, "x", "y", "x") as journal, Journal(tmp_path, read_only=True) as reader:
        assert [r.pending for r in reader.proposals(TASK.id)] == [True, True, False]
        evaluate(journal, evaluation("x"))
        assert [r.pending for r in reader.proposals(TASK.id)] == [False, True, False]
        journal.record_evaluation(TASK, evaluation("x"), purpose=Purpose.CONFIRM)
        found = reader.proposals(TASK.id)
        assert [r.confirmation is not None for r in found] == [True, False, False]
        assert found == journal.proposals(TASK.id)
    with Journal(tmp_path, read_only=True) as reader:
        assert reader.proposals(TASK.id) == found


def test_an_evaluation_is_decoded_once_however_often_proposals_are_read(tmp_path, monkeypatch):
    decoded = []

    def counted(kind, record):
        decoded.append(kind)
        return from_record(kind, record)

    monkeypatch.setattr(recorded, "from_record", counted)
    with filled(tmp_path, *map(str, range(20))) as journal:
        for number in range(20):
            evaluate(journal, evaluation(str(number)))
            journal.proposals(TASK.id)
            journal.attempts(TASK.id)
    assert decoded.count(Evaluation) == 20


def test_an_attempt_comes_back_as_it_went_in(tmp_path):
    with filled(tmp_path, "x") as journal:
        evaluate(journal, evaluation("x"))
    with Journal(tmp_path, read_only=True) as journal:
        [attempt] = journal.attempts(TASK.id)
        assert journal.tasks() == [TASK]
    assert attempt.proposal == proposal("x")
    assert attempt.evaluation == evaluation("x")
    assert attempt.reward == speedup.reward(evaluation("x"))


def test_attempts_are_in_the_order_proposed_not_evaluated(tmp_path):
    with filled(tmp_path, "x", "y") as journal:
        evaluate(journal, evaluation("y"))
        assert [r.pending for r in journal.proposals(TASK.id)] == [True, False]
        evaluate(journal, evaluation("x"))
        sources = [a.proposal.candidate.source for a in journal.attempts(TASK.id)]
    assert sources == ["x", "y"]


def test_no_time_in_which_a_run_was_down_is_a_lag(tmp_path):
    with filled(tmp_path, "x", "y") as journal:
        evaluate(journal, evaluation("x"))
        journal.record_config({})
        evaluate(journal, evaluation("y"))
        judged_at_once, _ = (r.proposal.candidate.id for r in journal.proposals(TASK.id))
        assert journal.lags(TASK.id).keys() == {judged_at_once}


def test_an_evaluation_is_recorded_once_for_each_purpose(tmp_path):
    with filled(tmp_path, "x") as journal:
        for _ in range(2):
            evaluate(journal, evaluation("x"))
            journal.record_evaluation(TASK, evaluation("x"), purpose=Purpose.CONFIRM)
        journal.export_jsonl(tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    tables = [row["table"] for row in rows]
    assert (tables.count("evaluations"), tables.count("rewards")) == (2, 1)


def test_a_fault_of_ours_has_a_reward_without_a_value(tmp_path):
    with filled(tmp_path, "x") as journal:
        evaluate(journal, evaluation("x", Status.SANDBOX_ERROR))
        assert journal.attempts(TASK.id)[0].reward.value is None


def test_equal_candidates_are_duplicates_within_and_across_rounds(tmp_path):
    with filled(tmp_path, "x", "x") as journal:
        journal.record_proposals(1, [proposal("x")])
        duplicates = [r.duplicate for r in journal.proposals(TASK.id)]
    assert duplicates == [False, True, True]


@pytest.mark.parametrize("statement", ["DELETE FROM proposals", "UPDATE proposals SET round = 7"])
def test_the_journal_is_append_only(tmp_path, statement):
    filled(tmp_path, "x").close()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        sqlite3.connect(tmp_path / FILE).execute(statement)


def test_a_task_that_changed_under_its_name_is_refused(tmp_path):
    changed = type(TASK)(TASK.id, "other source", "cpu")
    with filled(tmp_path, "x") as journal, pytest.raises(ConfigError, match="another --name"):
        journal.record_task(changed)


def test_a_journal_of_a_newer_schema_is_refused(tmp_path):
    filled(tmp_path, "x").close()
    database = sqlite3.connect(tmp_path / FILE)
    database.execute("DROP TRIGGER meta_no_update")
    database.execute(f"UPDATE meta SET value = '{SCHEMA_VERSION + 1}' WHERE key = 'schema_version'")
    database.commit()
    for read_only in (False, True):
        with pytest.raises(ConfigError, match="newer Warpsmith"):
            Journal(tmp_path, read_only=read_only)


def test_a_file_that_is_no_journal_is_refused_in_one_line(tmp_path):
    (tmp_path / FILE).write_text("not a database, but long enough to be read as one" * 9)
    with pytest.raises(ConfigError, match="not a usable journal") as caught:
        Journal(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(ConfigError, match="empty, damaged, cut short or another program's"):
        Journal(tmp_path, read_only=True)


def test_a_reader_needs_no_lock_and_may_come_while_the_run_lives(tmp_path):
    with filled(tmp_path, "x") as writer, Journal(tmp_path, read_only=True) as reader:
        evaluate(writer, evaluation("x"))
        assert len(reader.attempts(TASK.id)) == 1


def test_a_second_process_on_the_same_run_is_refused(tmp_path):
    lock = RunLock(tmp_path)
    code = "import sys, pathlib, agent.journals.storage as s; s.RunLock(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    other = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lock.release()
    assert other.returncode != 0
    assert "another process (pid " in other.stderr
    RunLock(tmp_path).release()


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local xfs rw 0 0
sshfs /mnt/with\\040space fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/tmp/runs", "ext4", False),
        ("/home/me/runs", "nfs4", True),
        ("/home/local/runs", "xfs", False),
        ("/homestead", "ext4", False),
        ("/mnt/with space/runs", "fuse.sshfs", True),
    ],
)
def test_a_network_file_system_is_detected(path, kind, network):
    assert filesystem_type(Path(path), MOUNTS) == kind
    assert is_network(kind) is network


def test_a_local_disk_gets_a_write_ahead_log(tmp_path):
    with filled(tmp_path, "x"):
        mode = sqlite3.connect(tmp_path / FILE).execute("PRAGMA journal_mode").fetchone()[0]
    local = not is_network(filesystem_type(tmp_path, Path("/proc/self/mounts").read_text()))
    assert mode == ("wal" if local else "delete")


FILL = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from agent.journals.storage import DiskFull
from tests.agent.test_journal import *
journal = filled(Path({folder!r}))
limit = {limit}
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
told = False
try:
    for i in range(100_000):
        journal.record_proposals(i, [proposal(f"{{i}}" * 500)])
        if journal.disk_full and not told:
            told = True
            print("recorded", i)
except DiskFull as error:
    print("full", i, error)
"""


def fill(folder: Path, limit: int | None) -> list[str]:
    code = FILL.format(root=str(ROOT), folder=str(folder), limit=limit)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextmanager
def disk_of(size: str, tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "warpsmith-test", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line_and_loses_nothing_finished(tmp_path):
    with disk_of("6m", tmp_path) as disk:
        recorded, full = fill(disk, None)
        with Journal(disk, read_only=True) as journal:
            rows = len(journal.proposals(TASK.id))
    # The reserve let the loop go on and finish what was under way, until that was spent too.
    assert int(recorded.split()[1]) + 10 < int(full.split()[1]) == rows
    assert "free space and run the same command again" in full


def test_a_run_that_a_full_disk_has_no_room_for_leaves_none(tmp_path):
    full = pytest.raises(ConfigError, match=r"cannot be written \(.*; free space, and run")
    with disk_of("64k", tmp_path) as disk:
        with full, open_run("new", load_optimize(), disk):
            pass
        assert not list(disk.iterdir())


@pytest.mark.slow
def test_a_write_the_system_refuses_is_one_clear_line(tmp_path):
    assert resource.RLIMIT_FSIZE is not None
    lines = fill(tmp_path, 1 << 20)
    assert "what it holds is safe" in lines[-1]


def test_damage_in_the_middle_of_a_journal_is_one_line_wherever_it_is_read(tmp_path):
    whole = (Path(__file__).parents[2] / "benchmarks" / "demo" / FILE).read_bytes()
    page = 4096
    (tmp_path / FILE).write_bytes(whole[: 20 * page] + b"\xa5" * 40 * page + whole[60 * page :])
    with Journal(tmp_path, read_only=True) as journal:

        def everything() -> None:
            for task in journal.tasks():
                for record in journal.proposals(task.id):
                    journal.measurements(record.proposal.candidate.id)

        with pytest.raises(ConfigError, match="not a usable journal") as caught:
            everything()
    assert "\n" not in str(caught.value)
