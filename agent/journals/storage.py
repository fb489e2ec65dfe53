"""Where a journal lives: schema, file system, one writer, and a reserve for a full disk.

SQLite in WAL mode needs shared memory between its processes, which network file systems lack
(https://www.sqlite.org/wal.html), so there the rollback journal is used. The lock is flock(2): it
dies with its process, so that a kill -9 leaves nothing to clean.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox.cleanup import on_failure
from sandbox.errors import ConfigError, WarpsmithError

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
RESERVE_BYTES = 4 << 20
"""Given up when the disk is full: enough for the evaluations that are still under way."""
NETWORK_FILESYSTEMS = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs")
)
DISK_ERRORS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

TABLES = {
    "meta": "key TEXT PRIMARY KEY, value TEXT NOT NULL",
    "tasks": "task_id TEXT PRIMARY KEY, task_hash TEXT NOT NULL, record TEXT NOT NULL",
    "candidates": """candidate_id TEXT PRIMARY KEY, task_id TEXT NOT NULL, language TEXT NOT NULL,
        source TEXT NOT NULL""",
    "proposals": """id INTEGER PRIMARY KEY, at REAL NOT NULL, task_id TEXT NOT NULL,
        round INTEGER NOT NULL, candidate_id TEXT NOT NULL, duplicate INTEGER NOT NULL,
        proposer TEXT NOT NULL, strategy TEXT NOT NULL, parents TEXT NOT NULL,
        features TEXT NOT NULL, prompt TEXT, reply TEXT, prompt_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL, cost_usd REAL, seconds REAL NOT NULL""",
    "evaluations": """id INTEGER PRIMARY KEY, at REAL NOT NULL, purpose TEXT NOT NULL,
        task_hash TEXT NOT NULL, candidate_id TEXT NOT NULL, config_id TEXT NOT NULL,
        environment_id TEXT NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL,
        UNIQUE (purpose, task_hash, candidate_id, config_id, environment_id)""",
    "rewards": """id INTEGER PRIMARY KEY, evaluation_id INTEGER NOT NULL REFERENCES evaluations,
        function TEXT NOT NULL, value REAL, record TEXT NOT NULL,
        UNIQUE (evaluation_id, function)""",
    "events": """id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, task_id TEXT,
        candidate_id TEXT, seconds REAL, detail TEXT NOT NULL""",
}
INDICES = (
    "CREATE INDEX proposals_by_task ON proposals (task_id, id)",
    "CREATE INDEX evaluations_by_candidate ON evaluations (candidate_id)",
)


class DiskFull(WarpsmithError):
    """The journal could not be written; what it already holds is safe."""


class RunLock:
    """One writer per run: held until `release` or the end of this process."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise ConfigError(
                f"{folder}: another process (pid {holder}) is working on this run; "
                "wait for it or use another --name"
            ) from error
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"{path}: this file system has no file locks ({error.strerror}); "
                "keep runs on another one"
            ) from error

    def sign(self) -> None:
        """Tell whoever else wants it that it is this process that holds it."""
        self._file.truncate(0)
        os.write(self._file.fileno(), str(os.getpid()).encode())  # Nothing is left for `release`.

    def release(self) -> None:
        self._file.close()


class Reserve:
    """A file of no use but its size."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".reserve"
        try:
            with self._path.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            self._path.unlink(missing_ok=True)
            log.warning("no reserve for a full disk in %s: %s", folder, error.strerror)

    def give_up(self) -> bool:
        """Free the reserve; False where there was none left."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


Write = Callable[..., sqlite3.Cursor]
"""`Connection.execute`, inside a transaction."""


class Rows(sqlite3.Cursor):
    """A journal is opened by its first pages; damage further on shows when rows are read."""

    path = Path()

    def fetchone(self) -> Any:
        with undamaged(self.path):
            return super().fetchone()

    def fetchall(self) -> list[Any]:
        with undamaged(self.path):
            return super().fetchall()

    def __next__(self) -> Any:
        with undamaged(self.path):
            return super().__next__()


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Raises ConfigError for what SQLite finds in a file that is damaged or no database."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in DAMAGED:
            raise
        raise unusable(path, error) from error


def unusable(path: Path, error: sqlite3.DatabaseError) -> ConfigError:
    return ConfigError(
        f"{path}: not a usable journal ({error}): empty, damaged, cut short or another program's; "
        "take a copy of it, or begin a run of another name"
    )


class Database:
    """An open journal's tables: rows are read by their names, written in transactions."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.full = False
        """The disk was found full once."""
        self._reserve = None if read_only else Reserve(path.parent)
        self._connection = connect(path, read_only=read_only)
        self._connection.row_factory = sqlite3.Row

    def execute(self, query: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Raises ConfigError, as reading the rows does, where the file is damaged."""
        rows = self._connection.cursor(Rows)
        rows.path = self.path
        with undamaged(self.path):
            return rows.execute(query, parameters)

    def close(self) -> None:
        if self._reserve is not None:
            self._reserve.give_up()
        self._connection.close()

    def transact(self, body: Callable[[Write], object]) -> None:
        """Run `body` in one transaction; on a full disk, again after the reserve is given up.

        Raises DiskFull where there was none left.
        """
        try:
            self._try(body)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in DISK_ERRORS:
                raise
            self.full = True
            if self._reserve is None or not self._reserve.give_up():
                raise DiskFull(
                    f"{self.path}: cannot be written ({error}); what it holds is safe: "
                    "free space and run the same command again"
                ) from error
            self.transact(body)

    def _try(self, body: Callable[[Write], object]) -> None:
        self.execute("BEGIN IMMEDIATE")
        with on_failure(self._roll_back):
            body(self.execute)
            self.execute("COMMIT")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")


def filesystem_type(path: Path, mounts: str) -> str:
    """Type of the file system that holds `path`, by the longest mount point in a mount table."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, point, name, *_ = line.split()
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def is_network(kind: str) -> bool:
    """Every FUSE file system counts: what lies behind it cannot be known."""
    return kind in NETWORK_FILESYSTEMS or kind.split(".")[0] in ("fuse", "fuseblk")


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """An open journal; raises ConfigError if it is missing, of a newer schema, or no journal."""
    if read_only and not path.is_file():
        raise ConfigError(f"{path}: no such journal")
    try:
        if read_only:
            database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        else:
            database = sqlite3.connect(path, isolation_level=None)
        with on_failure(database.close):
            if not read_only:
                if _is_empty(database):
                    _create(database)
                _choose_mode(database, path)
            _check_version(database, path)
    except sqlite3.DatabaseError as error:
        if not read_only and getattr(error, "sqlite_errorcode", 0) & 0xFF in DISK_ERRORS:
            raise ConfigError(
                f"{path}: cannot be written ({error}); free space, and run the same command again"
            ) from error
        raise unusable(path, error) from error
    return database


def _is_empty(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None


def _choose_mode(database: sqlite3.Connection, path: Path) -> None:
    kind = filesystem_type(path.resolve(), Path("/proc/self/mounts").read_text(errors="replace"))
    if is_network(kind):
        log.warning("%s is on %s: using SQLite's rollback journal instead of WAL", path, kind)
    database.execute(f"PRAGMA journal_mode={'DELETE' if is_network(kind) else 'WAL'}")
    database.execute("PRAGMA synchronous=FULL")


def _create(database: sqlite3.Connection) -> None:
    """Every table and its version in one transaction, so that a kill leaves all or nothing."""
    database.execute("BEGIN IMMEDIATE")
    for name, columns in TABLES.items():
        database.execute(f"CREATE TABLE {name} ({columns})")
        for verb in ("UPDATE", "DELETE"):
            database.execute(
                f"CREATE TRIGGER {name}_no_{verb.lower()} BEFORE {verb} ON {name} "
                "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
            )
    for statement in INDICES:
        database.execute(statement)
    database.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))
    database.execute("COMMIT")


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    row = database.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or int(row[0]) > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: schema_version is {row and row[0]}, this Warpsmith reads up to "
            f"{SCHEMA_VERSION}; use the newer Warpsmith that wrote it"
        )
