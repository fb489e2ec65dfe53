"""Asks a model in a process of its own, to be killed: URL FOLDER REPLIES."""

import sys
from pathlib import Path

from agent.models.endpoint import OpenAIModel
from agent.models.ledger import Ledger
from agent.models.store import ReplyStore
from agent.prompts.message import Message

if __name__ == "__main__":
    url, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    model = OpenAIModel(
        "scripted",
        url,
        api_key="k",
        concurrency=4,
        store=ReplyStore(folder / "replies"),
        ledger=Ledger(folder / "ledger.jsonl"),
    )
    replies = model.complete_each([[Message(role="user", content="Write a kernel.")]] * count)
    print("\n".join(reply.text for reply in replies if reply is not None))
