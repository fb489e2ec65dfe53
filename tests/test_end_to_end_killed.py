"""kill -9 of `warpsmith optimize` at any moment, then the same command: real workers and builds.

`make test` has its parts: a campaign killed with a scripted device (agent/test_campaign_resume.py)
or with requests in flight (agent/test_model_killed.py), a supervisor with workers
(sandbox/test_workers.py).
"""

import os
import random
import sqlite3
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import COMMAND, environment_of

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):  # (64, 256) float32
        return {formula}

def get_inputs():
    return [torch.randn(64, 256)]

def get_init_inputs():
    return []
"""
FORMULAS = {"gate": "torch.sigmoid(x) * x + torch.tanh(x)", "squash": "torch.sigmoid(x * 2) - x"}
"""The feature proposer knows pointwise chains; small, so that evaluations are short."""
PER_TASK = 3
CONFIG = f"""
max_candidates_per_task: {PER_TASK}
proposals_per_round: 2
evaluation: {{baselines: [], rounds: 4, batch_ms: 1, max_sets: 16, max_pairs: 3}}
"""
EVENTS = 12
"""Among the first so many of a process a kill falls; the longest run makes about 40."""
LINGER_S = 1.0
"""At most, after that event."""
GONE_S = 5.0


class Campaign:
    """One run, by as many processes as it takes."""

    def __init__(self, folder: Path, formulas: Mapping[str, str] = FORMULAS) -> None:
        self.folder = folder
        self.tasks = len(formulas)
        self.pids: list[int] = []
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "problems").mkdir()
        for name, formula in formulas.items():
            (folder / "problems" / f"{name}.py").write_text(PROBLEM.format(formula=formula))
        # The supervisor's PYTHONPATH reaches everything that it starts: a mark of whose it is.
        self.environment = environment_of(folder, PYTHONPATH=str(folder))
        self.rows: dict[int, tuple] = {}
        """Of the evaluations table, by id."""
        self.first_seen: dict[tuple[str, str], int] = {}
        """The last event before a finished evaluation was first seen, by kind and candidate."""

    def go_on(self, events: int | None = None, linger_s: float = 0.0) -> bool:
        """True if it came to its end; otherwise it was killed `linger_s` after so many events."""
        before = self.events
        command = [*COMMAND, "optimize", "problems", "--engine", "local", "--device", "cpu"]
        with (self.folder / "printed").open("w") as printed:
            process = subprocess.Popen(
                [*command, "--config", "config.yaml", "--name", "first"],
                cwd=self.folder,
                env=self.environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        self.pids.append(process.pid)
        try:
            while process.poll() is None and (events is None or self.events < before + events):
                time.sleep(0.05)
            time.sleep(linger_s)
            assert process.poll() in (None, 0), self.printed
            return process.returncode == 0
        finally:
            process.kill()
            process.wait()

    @property
    def events(self) -> int:
        return len(self.read("SELECT id FROM events"))

    @property
    def printed(self) -> str:
        return (self.folder / "printed").read_text()

    def read(self, query: str) -> list[tuple]:
        path = self.folder / "runs" / "first" / "journal.sqlite"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as database:
            known = database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'")
            return database.execute(query).fetchall() if known.fetchone() else []

    def check(self) -> None:
        """What was finished is there, byte for byte, and was not measured again."""
        now = {row[0]: row for row in self.read("SELECT * FROM evaluations")}
        assert {number: now.get(number) for number in self.rows} == self.rows
        events = self.read("SELECT id, kind, candidate_id FROM events")
        for number, kind, candidate in events:
            assert number <= self.first_seen.get((kind, candidate), number), "measured again"
        last = events[-1][0] if events else 0
        kinds = {"search": "evaluate", "confirm": "confirm"}
        for _, _, purpose, _, candidate, *_ in now.values():
            self.first_seen.setdefault((kinds[purpose], candidate), last)
        self.rows = now

    def processes(self) -> list[int]:
        """Everything alive that this campaign started, the workers' own uids included."""
        return [int(p.name) for p in Path("/proc").glob("[0-9]*") if self._ours(p)]

    def _ours(self, process: Path) -> bool:
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            return state not in "ZX" and str(self.folder).encode() in (
                (process / "environ").read_bytes()
            )
        except OSError:
            return False  # It has ended.

    def scratch(self) -> list[Path]:
        root = Path(f"/var/tmp/warpsmith-{os.geteuid()}")
        return [folder for pid in self.pids for folder in root.glob(f"{pid}-*")]

    def assert_nothing_runs(self) -> None:
        deadline = time.monotonic() + GONE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        left = self.processes()
        names = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in left]
        assert not left, names


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return Campaign(tmp_path)


def kill_and_go_on(campaign: Campaign, moments: Iterable[tuple[int, float]]) -> None:
    for events, linger_s in moments:
        campaign.go_on(events, linger_s)
        campaign.assert_nothing_runs()
        campaign.check()
    assert campaign.go_on()
    campaign.assert_nothing_runs()
    campaign.check()
    assert campaign.scratch() == []
    assert "Traceback" not in campaign.printed
    proposed = campaign.read("SELECT candidate_id FROM proposals WHERE NOT duplicate")
    judged = campaign.read("SELECT candidate_id FROM evaluations WHERE purpose = 'search'")
    assert sorted(judged) == sorted(proposed)
    assert len(judged) == PER_TASK * campaign.tasks


def moments_of(seed: int, kills: int) -> list[tuple[int, float]]:
    dice = random.Random(seed)
    return [(dice.randrange(EVENTS), LINGER_S * dice.random()) for _ in range(kills)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_campaign_goes_on_and_leaves_nothing_behind(tmp_path):
    campaign = Campaign(tmp_path, {"gate": FORMULAS["gate"]})
    kill_and_go_on(campaign, [(9, 0.5)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_a_campaign_killed_again_and_again_loses_nothing(campaign, seed):
    kill_and_go_on(campaign, moments_of(seed, kills=6))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_campaign_killed_while_it_starts_leaves_nothing_behind(campaign):
    for tenths in range(0, 60, 7):
        campaign.go_on(0, tenths / 10)
        campaign.assert_nothing_runs()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_ended_campaign_measures_nothing_more(campaign):
    assert campaign.go_on()
    campaign.check()
    assert campaign.go_on()
    campaign.check()
    assert campaign.read("SELECT max(id) FROM evaluations") == [(len(campaign.rows),)]
