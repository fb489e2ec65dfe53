"""Workers of a compiled baseline, ahead of its pairs, and what Inductor keeps between them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandbox import copying
from sandbox.cache import LIMITS, Shelf
from sandbox.cleanup import on_failure
from sandbox.errors import SandboxFault
from sandbox.handle import WorkerFailed
from sandbox.stand import Stand
from sandbox.subject import Opening, Signature, Subject
from sandbox.types import EvalConfig, Task

logger = logging.getLogger(__name__)

COMPILED = ("compile", "max_autotune")
COMPILE_TIMEOUT_S = 600.0
"""For a baseline's first call: max-autotune benchmarks hundreds of kernels."""
INDUCTOR_CACHE = "tmp/torchinductor_worker"
"""In the scratch folder. Inside the walls it is in /tmp for every worker, where Inductor keeps its
precompiled header whatever it is told; its keys hold paths."""
INDUCTOR_LIMIT_BYTES = 4 << 30


class Compiling:
    """Of one device; `stand` starts workers that have imported what torch.compile needs, `retire`
    ends them, `kept` is where Inductor's results lie.
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
        """A fresh worker of the wrapped model, with what was compiled before."""
        opening = Opening(wrap=wrap, known=signature)
        preload = [(self.kept, INDUCTOR_CACHE)]
        subject, _ = self.stand.reference(task, config, opening, preload)
        return subject

    def ahead(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        ready: deque[Subject],
        numbers: range,
        at_once: int = 1,
    ) -> None:
        """Make ready workers of the compiled model, called once, for these pairs of its baseline:
        host work, which stands still in timed regions. What fails here fails again, and is
        recorded, when the baseline is timed.
        """
        with ThreadPoolExecutor(at_once, "compiler") as pool:
            for number in numbers:
                pool.submit(self._called, task, config, signature, ready, keep=number == 0)

    def _called(
        self,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        ready: deque[Subject],
        *,
        keep: bool,
    ) -> None:
        try:
            self.stand.zygote.start()  # which imports for seconds, and keeps nobody waiting
            subject = self.start(task, config, signature, "compile")
            with on_failure(lambda: self.retire(subject)):
                with self.stand.quiet.beside(subject.worker):
                    subject.request("call", COMPILE_TIMEOUT_S, seed=0)
                if keep:
                    with self.stand.quiet.noise():
                        self.keep(subject)
            ready.append(subject)
        except (WorkerFailed, SandboxFault) as failed:
            logger.info("nothing is compiled ahead: %s", failed)

    def keep(self, subject: Subject) -> None:
        """Inductor's results and precompiled headers, for the next pairs and the next tasks."""
        try:
            copying.copy_folder(
                subject.worker.scratch,
                INDUCTOR_CACHE,
                self.kept,
                INDUCTOR_LIMIT_BYTES,
                named_by_content=True,
            )
            for folder in (self.kept, self.kept.parent):  # within this environment, and over all
                Shelf(folder, LIMITS["inductor"]).trim()
        except (OSError, ValueError) as error:
            logger.info("compiled code is not kept: %s", error)
