"""Replies that were paid for, by the content of their request: never paid twice.

One small JSON file per reply, written whole before the reply is used, so that a kill -9 loses
nothing that had arrived, and runs may share a folder. It holds replies only: prompts are in the
journal. A file that cannot be read is a miss.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

from agent.model import ModelError, Reply
from agent.prompts.message import Message
from sandbox.cache import cache_root, read_json, write_json
from sandbox.errors import ConfigError

SCHEMA_VERSION = 1
KEY_CHARACTERS = 32
"""Of a SHA-256 in hexadecimal: it is also the `custom_id` of a batch file's line."""


def shared_folder() -> Path:
    """Where all runs of this user keep replies."""
    return cache_root() / "replies"


class ReplyStore:
    """Safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self) -> None:
        """Raises ConfigError where no reply can be kept, before any is paid for."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self._folder):
                return
        except OSError as error:
            raise ConfigError(
                f"{self._folder}: replies cannot be kept ({error.strerror}); "
                "set WARPSMITH_CACHE to another folder, or keep_replies to false"
            ) from error

    def get(self, key: str) -> Reply | None:
        record = read_json(self._path(key))
        if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
            return None
        try:
            return Reply(**record["reply"])
        except (KeyError, TypeError):
            return None

    def put(self, key: str, reply: Reply) -> None:
        """Raises ModelError where it cannot be written: an unkept reply would be paid twice."""
        try:
            write_json(self._path(key), {"schema_version": SCHEMA_VERSION, "reply": asdict(reply)})
        except OSError as error:
            why = f"{self._folder}: a reply cannot be kept ({error.strerror})"
            raise ModelError(why) from error

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def request_keys(
    prompts: Sequence[Sequence[Message]], draw: str, settings: Mapping[str, object]
) -> list[str]:
    """One key per prompt: equal prompts of a call are told apart by their number."""
    seen: Counter[str] = Counter()
    keys = []
    for messages in prompts:
        content = json.dumps([dict(settings), list(messages), draw], sort_keys=True)
        text = f"{seen[content]} {content}"
        seen[content] += 1
        keys.append(hashlib.sha256(text.encode()).hexdigest()[:KEY_CHARACTERS])
    return keys
