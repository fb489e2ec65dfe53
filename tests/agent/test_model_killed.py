"""kill -9 of a campaign with requests in flight: what had arrived is used, and not asked again."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent.journal import Journal
from tests.agent.scripts import hashed_reply
from tests.doubles.openai_server import OpenAIServer

ROOT = Path(__file__).parents[2]
START_S = 1.2
"""Until the process has imported what it needs, about."""


@pytest.mark.parametrize(
    ("strategy", "seed"),
    [
        ("fsr", 0),
        pytest.param("fsr", 1, marks=pytest.mark.slow),
        pytest.param("evolve", 2, marks=pytest.mark.slow),
        pytest.param("portfolio", 3, marks=pytest.mark.slow),
    ],
)
def test_a_killed_campaign_loses_no_reply_and_pays_for_none_twice(tmp_path, strategy, seed):
    environment = os.environ | {"OPENAI_API_KEY": "k"}
    dice, kills = random.Random(seed), 0
    with OpenAIServer([], answering=hashed_reply, honours_n=False, delay_s=0.1) as server:
        module = "tests.agent.run_with_model"
        command = [sys.executable, "-m", module, server.url, str(tmp_path), strategy]
        while kills < 3:
            process = subprocess.Popen(command, cwd=ROOT, env=environment)
            try:
                process.wait(START_S + dice.random())
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            kills += 1
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=60)
        replies = len(list((tmp_path / "first" / "replies").rglob("*.json")))
        lost = len(server.requests) - replies
    assert kills
    # Only what was in flight at a kill was asked again: the server answered it to nobody.
    assert lost <= 6 * kills
    with Journal(tmp_path / "first", read_only=True) as journal:
        rows = [r for task in journal.tasks() for r in journal.proposals(task.id)]
    assert len(rows) == replies, "a reply was paid for and not used, or used twice"
    made = Counter(r.proposal.reply for r in rows if "```" in (r.proposal.reply or ""))
    assert max(made.values()) == 1, "each reply of this server is another one"
