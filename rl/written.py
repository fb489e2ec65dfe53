"""What replies were made of, kept beside the run: a text can be cut into tokens in several ways,
and the gradient must be that of the tokens that were sampled, against how likely they were then.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.types import digest

DECIMALS = 4
"""Of a log-probability, on disk and, so that a kill changes nothing, in memory."""


@dataclass(frozen=True)
class Written:
    ids: list[int]
    log_probabilities: list[float] = field(default_factory=list)
    """Of each token, by the weights that wrote it; none where they are not known."""


class TokenStore:
    """Append-only: what a version's reply to a prompt was made of. In memory are those of the
    versions that wrote last alone: of hundreds of updates they would be gigabytes.
    """

    def __init__(self, path: Path | None = None, versions: int = 1) -> None:
        """In memory alone without a path."""
        self.path, self._versions = path, versions
        self._written: dict[int | None, dict[str, Written]] = {}
        if path is not None and path.is_file():
            with path.open() as lines:
                for line in lines:
                    try:
                        record = json.loads(line)
                    except ValueError:
                        continue  # The last line of a process that was killed.
                    likely = record.get("log_probabilities", [])
                    self._of(record.get("version"))[record["key"]] = Written(record["ids"], likely)
            _end_line(path)

    def put(self, version: int, prompt: str, reply: str, written: Written) -> None:
        key, known = digest([version, prompt, reply]), self._of(version)
        if key in known:
            return
        # Of one version alone nothing is learned from once its weights have changed.
        found = written.log_probabilities if self._versions > 1 else []
        likely = [round(x, DECIMALS) for x in found]
        known[key] = Written(written.ids, likely)
        if self.path is not None:
            record = {"version": version, "key": key, "ids": written.ids}
            if likely:
                record["log_probabilities"] = likely
            with self.path.open("a") as stream:
                stream.write(json.dumps(record) + "\n")

    def get(self, version: int, prompt: str, reply: str) -> Written | None:
        return self._written.get(version, {}).get(digest([version, prompt, reply]))

    def _of(self, version: int | None) -> dict[str, Written]:
        """Where what it wrote is kept; what others wrote longest ago is forgotten for it."""
        if version not in self._written:
            while len(self._written) >= self._versions:
                del self._written[next(iter(self._written))]
            self._written[version] = {}
        return self._written[version]


def _end_line(path: Path) -> None:
    """What follows a torn line is to be a line of its own."""
    with path.open("rb+") as stream:
        if stream.seek(0, os.SEEK_END):
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":
                stream.write(b"\n")
