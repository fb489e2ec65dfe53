"""At which size each task of a bench is taken: whole, or with --fit-memory as large as has room.

Nothing is guessed: a size has no room where preparing the task says so, as it does where the task
is skipped without the option. Sizes only shrink. One that a folder's records have come to stays, so
that samples of a task that were evaluated at different times are of one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelbench.scaling import Scaling, smaller
from sandbox.errors import TaskError
from sandbox.types import Task

Step = tuple[Scaling | None, Task]


class Sizes:
    """Of the tasks by their ids; `fit`: whether there are any but the whole ones."""

    def __init__(self, tasks: Sequence[Task], *, fit: bool) -> None:
        self._whole = {task.id: task for task in tasks}
        self._fit = fit
        self._steps: dict[str, list[Step]] = {}
        self._place: dict[str, int] = {}
        self._why: dict[str, str] = {}

    def task(self, task_id: str) -> Task:
        """At its size."""
        place = self._place.get(task_id, 0)
        return self._of(task_id)[place][1] if place else self._whole[task_id]

    def scaling(self, task_id: str) -> Scaling | None:
        """None of the whole one."""
        place = self._place.get(task_id, 0)
        return self._of(task_id)[place][0] if place else None

    def left(self, task_id: str) -> list[str]:
        """Hashes of the sizes that it was too large at."""
        place = self._place.get(task_id, 0)
        return [task.hash for _, task in self._of(task_id)[:place]] if place else []

    def why(self, task_id: str) -> str:
        """Why it is no smaller, where it has no room at its size; empty where it has."""
        return self._why.get(task_id, "")

    def shrink(self, task_id: str) -> bool:
        """It has no room at its size: take the next; False where there is none."""
        return self._fit and self._go(task_id, self._place.get(task_id, 0) + 1)

    def settle(self, task_id: str, seen: Mapping[str, bool]) -> None:
        """What records say: hashes of its sizes, and whether it had no room there."""
        if not self._fit or not any(h != self._whole[task_id].hash or no for h, no in seen.items()):
            return
        steps = enumerate(self._of(task_id))
        places = [place + seen[task.hash] for place, (_, task) in steps if task.hash in seen]
        self._go(task_id, max(places, default=0))

    def _go(self, task_id: str, place: int) -> bool:
        steps = self._of(task_id)
        self._place[task_id] = min(place, len(steps) - 1)
        if place < len(steps):
            return True
        smallest = steps[-1][0]
        if smallest is not None:
            self._why[task_id] = f"nor has it room at {smallest}"
        return False

    def _of(self, task_id: str) -> list[Step]:
        if task_id not in self._steps:
            whole = self._whole[task_id]
            steps: list[Step] = [(None, whole)]
            try:
                steps += smaller(whole)
            except TaskError as error:
                self._why[task_id] = f"not scaled: {error}"
            self._steps[task_id] = steps
        return self._steps[task_id]
