"""A campaign that is stopped prepares no task that nobody will use."""

import threading
import time

import pytest

from agent.engine import LocalEngine
from agent.scripted import ScriptedEvaluator
from agent.types import Measured
from tests.agent.scripts import campaign, script


class Preparing(LocalEngine):
    """Tasks are under preparation until `ends`; whether that can be left is told to it."""

    def __init__(self, *, leaves: bool, ends: threading.Event) -> None:
        super().__init__(ScriptedEvaluator)
        self.leaves, self.ends = leaves, ends

    def submit_prepare(self, task, config):
        return self._builders.submit(lambda _: self.ends.wait() and Measured())

    def abandon(self):
        return self.leaves


@pytest.mark.parametrize("leaves", [True, False])
def test_when_the_time_is_over_preparing_is_left_where_an_engine_can_end_it(tmp_path, leaves):
    ends = threading.Event()
    engine = Preparing(leaves=leaves, ends=ends)
    later = threading.Timer(3.0, ends.set)
    later.start()
    result = campaign(tmp_path, {"a": [script(1)]}, engine, max_seconds=0.5)
    assert ends.is_set() == (not leaves)
    assert result.tasks[0].reason == "max_seconds (0.5) is over"
    later.cancel()
    ends.set()
    engine.close()


def test_no_task_is_prepared_on_a_lane_that_is_open_when_the_time_is_over(tmp_path):
    def slowly(_: int) -> ScriptedEvaluator:
        time.sleep(2.0)
        return ScriptedEvaluator(log=tmp_path / "log")

    engine = LocalEngine(slowly)
    result = campaign(tmp_path / "run", {"a": [script(1)]}, engine, max_seconds=0.3)
    assert result.seconds < 1.5
    engine.close()
    assert not (tmp_path / "log").exists()
