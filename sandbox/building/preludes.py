"""Precompiled preludes: the headers every host source begins with, compiled once per environment
and set of flags, in a walled process that never sees a candidate.

What a build process says was missing is a claim: only flags of FLAGS are believed, and the name of
what is made is computed by the process that makes it. A prelude is made beside whatever comes next,
one at a time: it costs more than one build gains, and no candidate waits for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

from sandbox.building import light
from sandbox.cache import LIMITS, Shelf, temporary_of
from sandbox.errors import SandboxFault
from sandbox.machine import copying
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.quiet import Quiet
from sandbox.machine.spawn import Zygote
from sandbox.observation import FailureKind
from sandbox.types import EvalConfig

logger = logging.getLogger(__name__)

FLAGS = re.compile(
    r"-O[0-3s]?|-Ofast|-std=c\+\+(?:17|20|23)|-march=native|-fopenmp|-ffast-math|-funroll-loops"
    r"|-fno-math-errno|-g|-w|-W[a-z0-9=-]+"
)
MAX_FLAGS = 8
MOST_ASKED = 4
"""Of one build's wishes that are heard: each takes some 10 s, and a claim may hold thousands."""
FEW_CORES = 4
"""With fewer a prelude is made when it is asked for again: what it takes, candidates lack."""
FILE_LIMIT_BYTES = 2 << 30
TIMEOUT_S = 300.0


class Preludes:
    """The ready ones of one toolchain, and the making of new ones."""

    def __init__(
        self, folder: Path, zygote: Zygote, quiet: Quiet, *, at_once: bool | None = None
    ) -> None:
        """`at_once`: made when first asked for, not the second time; by default where there are
        FEW_CORES and more.
        """
        self.shelf = Shelf(folder, LIMITS["preludes"])
        self.shelf.folder.mkdir(parents=True, exist_ok=True)
        self._zygote, self._quiet = zygote, quiet
        cores = len(os.sched_getaffinity(0))
        self._at_once = cores >= FEW_CORES if at_once is None else at_once
        self._making: dict[str, threading.Thread] = {}
        """Those that are made or wait for their turn, by key."""
        self._turn, self._asking = threading.Lock(), threading.Lock()

    @property
    def folder(self) -> Path:
        """Where build processes look, each prelude in a folder named by its key."""
        return self.shelf.folder

    def ask(self, missing: Any, config: EvalConfig) -> None:
        """Note what a build asked for, and begin to make what is wanted."""
        heard = missing[:MOST_ASKED] if isinstance(missing, list) else []
        believed = {key: (flags, cuda) for flags, cuda, key in map(_believed, heard)}
        for key, (flags, cuda) in believed.items():
            if flags is None or key is None:
                continue
            note = self.folder / f".{key}.lock"
            wanted = self._at_once or note.exists()
            note.touch()
            if wanted and not (self.folder / key).exists():
                self._begin(flags, cuda, key, config)

    def settle(self) -> None:
        """Wait until nothing is being made."""
        for thread in list(self._making.values()):
            thread.join()

    def _begin(self, flags: list[str], cuda: bool, key: str, config: EvalConfig) -> None:
        """In a thread that ends with the process: what it had not made is asked for again."""

        def make() -> None:
            with self._turn:
                self.make(flags, cuda, key, config)

        with self._asking:
            self._making = {k: thread for k, thread in self._making.items() if thread.is_alive()}
            if key not in self._making and len(self._making) < MOST_ASKED:
                self._making[key] = threading.Thread(target=make, name="prelude", daemon=True)
                self._making[key].start()

    def make(self, flags: list[str], cuda: bool, key: str, config: EvalConfig) -> None:
        """Compile one and keep it; where another process is at it, or it was refused, nothing."""
        with open(self.folder / f".{key}.lock", "r+") as note:
            try:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if note.read() or (self.folder / key).exists():  # made by another meanwhile
                return
            try:
                made = self._make(flags, cuda, config)
            except WorkerFailed as failed:
                refused = failed.failure.kind is FailureKind.CLAIMED
                logger.info("no precompiled prelude for %s: %s", " ".join(flags), failed)
            except (SandboxFault, OSError, ValueError, KeyError) as error:
                refused = False
                logger.info("no precompiled prelude for %s: %s", " ".join(flags), error)
            else:
                refused = made != key  # a key that these flags do not have
            if refused:
                note.write("refused")

    def _make(self, flags: list[str], cuda: bool, config: EvalConfig) -> str:
        worker = self._zygote.spawn(
            "build", memory_limit_bytes=config.memory_limit_bytes, quiet=self._quiet
        )
        try:
            with self._quiet.beside(worker, on_host=True):
                made = worker.request(
                    "precompile", stage="build", timeout_s=TIMEOUT_S, flags=flags, cuda=cuda
                )
            key = str(made["key"])
            staging = temporary_of(self.folder / key)
            staging.mkdir()
            try:
                light.write_tree(staging, light.shadow_tree())
                source, name = Path(str(made["file"])).parent, Path(str(made["file"])).name
                with (
                    self._quiet.murmur(),
                    copying.opened_folder(worker.scratch, str(source)) as folder,
                ):
                    compiled = copying.read_regular(folder, name, FILE_LIMIT_BYTES)
                    (staging / name).write_bytes(compiled)
                self.shelf.put(key, staging)
                self.shelf.trim()
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        finally:
            worker.close()
        return key


def _believed(wanted: Any) -> tuple[list[str] | None, bool, str | None]:
    """A claim's flags, whether CUDA's headers are among them, and its key; None for what is not
    believed.
    """
    if not isinstance(wanted, dict):
        return None, False, None
    flags, key = wanted.get("flags"), wanted.get("key")
    plain = isinstance(flags, list) and len(flags) <= MAX_FLAGS
    if not plain or not all(isinstance(f, str) and FLAGS.fullmatch(f) for f in flags or []):
        return None, False, None
    named = isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key)
    return flags, wanted.get("cuda") is True, key if named else None
