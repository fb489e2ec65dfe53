"""A round's questions put to models: each arm's apart, to the model it names.

An arm is part of its requests' draw, so that equal questions of two arms are two requests, which a
replay keeps apart even where one of them failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from agent.model import Model, ModelError, Reply, settle
from agent.models.mixture import Mixture
from agent.strategies.types import Ask
from agent.types import Turn
from sandbox.types import Task


def answers(model: Model, asks: Sequence[Ask], task: Task, turn: Turn) -> list[Reply | None]:
    """One reply to each question, None where its request failed. Raises ModelError where all did,
    AwaitingReplies once every request that has no reply yet is exported.
    """
    arms = list(dict.fromkeys((ask.arm, ask.model) for ask in asks))
    if len(arms) < 2:
        name = arms[0][1] if arms else None
        draw = draw_of(task, turn, arms[0][0] if arms else "")
        return asked_of(model, name).complete_each([ask.messages for ask in asks], draw)
    places = {arm: [i for i, a in enumerate(asks) if (a.arm, a.model) == arm] for arm in arms}
    with ThreadPoolExecutor(len(arms)) as pool:
        futures = {
            arm: pool.submit(
                asked_of(model, arm[1]).complete_each,
                [asks[i].messages for i in mine],
                draw_of(task, turn, arm[0]),
            )
            for arm, mine in places.items()
        }
    replies: list[Reply | None] = [None] * len(asks)
    errors: list[ModelError] = []
    for arm, future in futures.items():
        try:
            for place, reply in zip(places[arm], future.result(), strict=True):
                replies[place] = reply
        except ModelError as error:
            errors.append(error)
    settle("arm", replies, errors)
    return replies


def asked_of(model: Model, name: str | None) -> Model:
    """The named one of several; a model that stands for all of them (a journal) answers itself."""
    return model.named(name) if name is not None and isinstance(model, Mixture) else model


def draw_of(task: Task, turn: Turn, arm: str = "") -> str:
    """Tells the same prompt of another task, round or arm apart."""
    return " ".join(filter(None, (task.hash, arm, str(turn.round))))


def round_of(draw: str) -> int:
    return int(draw.split()[-1])


def arm_of(draw: str) -> str:
    return " ".join(draw.split()[1:-1])
