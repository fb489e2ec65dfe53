"""kill -9 of a campaign with requests in flight: what had arrived is used, and not asked again."""

import random
from collections import Counter
from functools import partial

import pytest

from agent.journals.journal import Journal
from tests.agent.killable import Killable
from tests.agent.scripts import hashed_reply
from tests.doubles.openai_server import OpenAIServer


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
    dice, kills = random.Random(seed), 0
    with (
        OpenAIServer([], answering=hashed_reply, honours_n=False, delay_s=0.1) as server,
        Killable("tests.agent.run_with_model", OPENAI_API_KEY="k") as killable,
    ):
        arguments = server.url, str(tmp_path), strategy
        while kills < 3:
            asked = len(server.requests)
            # From its first request, however long it takes to begin.
            begun = partial(lambda before: len(server.requests) > before, asked)
            if killable.run(*arguments, kill_after_s=0.8 * dice.random(), begun=begun):
                break
            kills += 1
        assert killable.run(*arguments, kill_after_s=60)
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
