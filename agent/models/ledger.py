"""What a campaign has spent on models, and the caps that it never exceeds, requests in flight
included.

Before a request is sent the most that it can cost is reserved and written down; when its answer is
there the true cost takes its place. So a cap holds at every moment, and after a kill -9 what was in
flight counts as spent in full: it may have been billed. Requests that failed before an answer count
as requests without tokens; time-outs and answers without usage count in full.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from agent.model import CapReached, ModelError
from sandbox.errors import ConfigError, unread
from sandbox.words import number_of

LEDGER_FILE = "ledger.jsonl"
"""In a run's folder."""
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Spend:
    requests: int = 0
    tokens: int = 0
    """Prompt and completion together."""
    usd: float = 0.0

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.requests + other.requests, self.tokens + other.tokens, self.usd + other.usd
        )

    def __sub__(self, other: Spend) -> Spend:
        return self + Spend(-other.requests, -other.tokens, -other.usd)


@dataclass(frozen=True)
class Caps:
    """None is no cap. All count from the run's first start, over every resumption."""

    max_requests: int | None = None
    """Sent over the network, retries included."""
    max_tokens: int | None = None
    max_usd: float | None = None

    @property
    def needs_limit(self) -> bool:
        """Whether a request must have a token limit of its own, so that its most is known."""
        return self.max_tokens is not None or self.max_usd is not None

    def exceeded_by(self, spend: Spend) -> str | None:
        """The cap that this would exceed, in words."""
        if self.max_requests is not None and spend.requests > self.max_requests:
            return f"max_requests ({self.max_requests})"
        if self.max_tokens is not None and spend.tokens > self.max_tokens:
            return f"max_tokens ({self.max_tokens})"
        if self.max_usd is not None and spend.usd > self.max_usd + 1e-9:
            return f"max_usd ({self.max_usd:g})"
        return None


@dataclass(frozen=True)
class Reservation:
    id: str
    most: Spend


class Ledger:
    """Safe to use from several threads; on disk where a path is given."""

    def __init__(self, path: Path | None = None, caps: Caps = Caps()) -> None:
        """Raises ConfigError where the file is no ledger."""
        self.caps = caps
        self._changed = threading.Condition()
        self._settled = Spend()
        self._open: dict[str, Spend] = {}
        self._waiting: dict[str, Spend] = {}
        self._reserved: set[str] = set()
        self._count = 0
        self._file: int | None = None
        if path is not None:
            self._load(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if self._count == 0:
                self._write({"event": "ledger", "schema_version": SCHEMA_VERSION})

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def spent(self) -> Spend:
        """Settled, lost in flight, or still in flight: the most that may have been spent."""
        with self._changed:
            return self._total()

    def reserve(self, most: Spend, name: str = "") -> Reservation:
        """Set the most a request can cost aside; waits for requests in flight where their refund
        may make room. Raises CapReached where it cannot.
        """
        with self._changed:
            while (reservation := self.try_reserve(most, name)) is None:
                self._changed.wait()
            return reservation

    def try_reserve(self, most: Spend, name: str = "") -> Reservation | None:
        """`reserve` without waiting: None while requests in flight hold what it needs."""
        with self._changed:
            cap = self.caps.exceeded_by(self._total() + most)
            if cap is not None:
                if self._open and not self.caps.exceeded_by(self._settled + self._lost() + most):
                    return None
                raise CapReached(
                    f"{cap} leaves no room for another request "
                    f"(spent {words(self._total())}; it may need {words(most)}); raise the cap"
                )
            self._count += 1
            reservation = Reservation(name or f"{os.getpid()}-{self._count}", most)
            self._write({"event": "reserve", "id": reservation.id, **vars(most)})
            self._open[reservation.id] = most
            self._reserved.add(reservation.id)
            return reservation

    def await_answer(self, reservation: Reservation) -> None:
        """It goes into a batch file: open until its reply is imported, whatever process that is."""
        with self._changed:
            self._waiting[reservation.id] = self._open.pop(reservation.id)
            self._changed.notify_all()

    def is_waiting(self, id: str) -> bool:
        with self._changed:
            return id in self._waiting

    def waiting(self) -> frozenset[str]:
        """Ids in batch files, and of what a killed process had in flight."""
        with self._changed:
            return frozenset(self._waiting)

    def reserved(self) -> frozenset[str]:
        """Ids of every request since the run's first start, settled ones too."""
        with self._changed:
            return frozenset(self._reserved)

    def settle(self, reservation: Reservation, cost: Spend) -> None:
        """The true cost takes the reservation's place; a second settlement is ignored."""
        self.settle_id(reservation.id, cost)

    def settle_id(self, id: str, cost: Spend | None) -> None:
        """None where an answer does not say what it used: then it is all that was reserved."""
        with self._changed:
            reserved = self._open.get(id) or self._waiting.get(id)
            if reserved is None:
                return
            cost = cost or reserved
            self._write({"event": "settle", "id": id, **vars(cost)})
            self._open.pop(id, None)
            self._waiting.pop(id, None)
            self._settled += cost
            self._changed.notify_all()

    def reopen(self, id: str, cost: Spend) -> None:
        """Of what was settled as failed an answer came after all: it costs this until it is settled
        anew.
        """
        with self._changed:
            for event, spend in (("settle", Spend(requests=-1)), ("reserve", cost)):
                record = {"event": event, "id": id, **vars(spend)}
                self._write(record)
                self._take(record)

    def _total(self) -> Spend:
        return sum(self._open.values(), self._settled + self._lost())

    def _lost(self) -> Spend:
        """Reservations of earlier processes that nobody will settle, or of batch files."""
        return sum(self._waiting.values(), Spend())

    def _write(self, record: Mapping[str, object]) -> None:
        if self._file is None:
            return
        line = (json.dumps(record) + "\n").encode()
        try:
            written = os.write(self._file, line)
            if written < len(line):  # A disk that is nearly full takes a part.
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise ModelError(
                f"the ledger cannot be written ({error.strerror}), so nothing more is sent"
            ) from error

    def _load(self, path: Path) -> None:
        if not path.exists():
            return
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is no ledger ({unread(error)})") from error
        if text and not text.endswith("\n"):  # Torn by a full disk: its request was not sent.
            text = text[: text.rfind("\n") + 1]
            path.write_text(text, encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}: line {number} is no line of a ledger") from error
            self._count += 1

    def _take(self, record: Mapping[str, Any]) -> None:
        if record["event"] == "ledger":
            if record["schema_version"] > SCHEMA_VERSION:
                raise ValueError("written by a newer Warpsmith")
            return
        spend = Spend(record["requests"], record["tokens"], record["usd"])
        if record["event"] == "reserve":
            self._waiting[record["id"]] = spend
            self._reserved.add(record["id"])
        elif record["event"] == "settle":
            self._waiting.pop(record["id"], None)
            self._settled += spend
        else:
            raise ValueError(record["event"])


def words(spend: Spend) -> str:
    """`3 requests, 1200 tokens, $0.02`."""
    text = f"{number_of(spend.requests, 'request')}, {spend.tokens} tokens"
    return f"{text}, ${spend.usd:.4g}" if spend.usd else text
