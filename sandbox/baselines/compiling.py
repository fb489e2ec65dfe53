"""Workers of a compiled baseline, ahead of its pairs, and what Inductor keeps between them."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandbox.cache import LIMITS, Shelf
from sandbox.cleanup import on_failure
from sandbox.errors import SandboxFault
from sandbox.machine import copying
from sandbox.machine.handle import WorkerFailed
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task

logger = logging.getLogger(__name__)

AHEAD = "compile"
"""What is compiled beside other work. max-autotune times libraries' kernels as it compiles."""
COMPILED = (AHEAD, "max_autotune")
COMPILE_TIMEOUT_S = 600.0
"""For a baseline's first call: max-autotune benchmarks hundreds of kernels."""
INDUCTOR_CACHE = "tmp/torchinductor_worker"
"""In the scratch folder. Inside the walls it is in /tmp for every worker, where Inductor keeps its
precompiled header whatever it is told; its keys hold paths."""
HEADERS, COMPILED_HEADER = "precompiled_headers", ".gch"
"""A folder in that one, and how names of what is large in it end: 150 MB, which serve every C++
kernel."""
INDUCTOR_LIMIT_BYTES = 4 << 30
TUNED = ".best_config"
"""Names end so of what Inductor found quickest of a kernel's configurations, by timing them."""


class Compiling:
    """Of one device; `stand` starts workers that have imported what torch.compile needs, `retire`
    ends them, `kept` is where Inductor's results lie: precompiled headers, which serve all tasks,
    and a folder for each task. With those of all tasks in every worker, a hundred tasks' were
    thousands of files to copy before each start.
    """

    def __init__(self, stand: Stand, kept: Path, retire: Callable[[Subject], object]) -> None:
        self.stand = stand
        self.kept = kept
        self.retire = retire

    def reuse(self, subject: Subject) -> None:
        """Have its process compile other tasks' models."""
        self.stand.reuse(subject)

    def start(
        self, task: Task, config: EvalConfig, signature: Signature, wrap: str | None
    ) -> Subject:
        """A fresh worker of the wrapped model, with what was compiled of it before."""
        opening = Opening(wrap=wrap, known=signature)
        mine = self.kept / task.hash
        mine.mkdir(parents=True, exist_ok=True)
        for folder in (mine, self.kept, self.kept / HEADERS):
            if folder.is_dir():
                os.utime(folder)  # it is in use
        # The last one is there in any case: the folder of both is then the worker's own.
        preload = [(self.kept / HEADERS, f"{INDUCTOR_CACHE}/{HEADERS}"), (mine, INDUCTOR_CACHE)]
        subject, _ = self.stand.reference(task, config, opening, preload)
        return subject

    def call(self, subject: Subject) -> None:
        """Its first call, which compiles, beside whatever is timed: host work, which stands still
        in timed regions. No kernel is tuned; whether operands of a product are padded, torch
        decides then, by timing both.
        """
        with self.stand.quiet.beside(subject.worker):
            subject.request("call", COMPILE_TIMEOUT_S, seed=0, tuned=False)

    def tune(self, subject: Subject) -> None:
        """A call beside nothing: of max-autotune the first one, for minutes. On a GPU Inductor
        times the configurations of a kernel when it is called first: beside others that says
        nothing, and of three workers of an argmax one was several times as slow (H200).
        """
        if subject.task.device == "cuda":
            with self.stand.quiet.timed(strict=True):
                subject.request("call", COMPILE_TIMEOUT_S, seed=0, tuned=True)

    def keep(self, subject: Subject, *, tuned: bool = True) -> None:
        """Inductor's results and precompiled headers, for the next pairs and the next tasks.
        `tuned`: with what it found quickest, beside nothing else.
        """
        without = (COMPILED_HEADER,) if tuned else (COMPILED_HEADER, TUNED)
        self._copy(subject, INDUCTOR_CACHE, subject.task.hash, without)
        if subject.task.device == "cpu":
            self._copy(subject, f"{INDUCTOR_CACHE}/{HEADERS}", HEADERS)
        for folder in (self.kept, self.kept.parent):  # within this environment, and over all
            Shelf(folder, LIMITS["inductor"]).tidy()

    def _copy(self, subject: Subject, place: str, name: str, without: tuple[str, ...] = ()) -> None:
        """What the worker wrote since it has its task: its process may have served others."""
        try:
            copying.copy_folder(
                subject.worker.scratch,
                place,
                self.kept / name,
                INDUCTOR_LIMIT_BYTES,
                named_by_content=True,
                without=without,
                since_s=subject.since_s,
            )
        except (OSError, ValueError) as error:
            logger.info("compiled code is not kept: %s", error)


class Ahead:
    """Workers of one task's compiled model, called once, that are made while others are timed. What
    fails here fails again, and is recorded, when the baseline is timed.
    """

    def __init__(
        self, compiling: Compiling, task: Task, config: EvalConfig, signature: Signature
    ) -> None:
        self.compiling = compiling
        self.task = task
        self.config = config
        self.signature = signature
        self.ready = deque[Subject]()
        self._making: ThreadPoolExecutor | None = None

    def begin(self, numbers: range, at_once: int = 1) -> None:
        """Make those of these pairs; what was begun before is over."""
        self._making = ThreadPoolExecutor(at_once, "compiler")
        for number in numbers:
            self._making.submit(self._make, keep=number == 0)

    def finish(self) -> None:
        """Wait until all are made."""
        if self._making is not None:
            self._making.shutdown()
        self._making = None

    def stop(self) -> bool:
        """Make no other, and wait for those under way; False where nothing had been begun."""
        making, self._making = self._making, None
        if making is not None:
            making.shutdown(cancel_futures=True)
        return making is not None

    def close(self) -> None:
        """End what is left."""
        self.stop()
        while self.ready:
            self.compiling.retire(self.ready.popleft())

    def _make(self, *, keep: bool) -> None:
        """`keep` its code for the others."""
        compiling = self.compiling
        try:
            compiling.stand.zygote.start()  # which imports for seconds, and keeps nobody waiting
            subject = compiling.start(self.task, self.config, self.signature, AHEAD)
            with on_failure(lambda: compiling.retire(subject)):
                compiling.call(subject)
                if keep:
                    with compiling.stand.quiet.noise():
                        compiling.keep(subject, tuned=False)
            self.ready.append(subject)
        except (WorkerFailed, SandboxFault) as failed:
            logger.info("nothing is compiled ahead: %s", failed)
