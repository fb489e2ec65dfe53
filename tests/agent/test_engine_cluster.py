"""Two Ray nodes, one of which is removed in the middle of a campaign."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent.journals.journal import Journal
from sandbox.types import Status
from tests.agent.scripts import calls

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_removing_a_node_costs_no_finished_evaluation(tmp_path):
    command = [sys.executable, "-m", "tests.agent.two_nodes", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "lanes 2" in done.stdout
    assert "tried 16 stopped None" in done.stdout
    with Journal(tmp_path / "run", read_only=True) as journal:
        attempts = [a for name in "ab" for a in journal.attempts(f"test/{name}")]
    assert {a.evaluation.status for a in attempts} == {Status.PASSED}
    assert max(Counter(calls(tmp_path / "log", "evaluate")).values()) == 1
