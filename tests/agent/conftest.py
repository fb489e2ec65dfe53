"""References are read in the test's own process: another one would import torch again."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from agent.export.capture import interface
from tests.agent.scripts import Clock


@pytest.fixture(autouse=True, scope="session")
def _read_here() -> Iterator[None]:
    """Not by commands: tests/agent/test_export_campaign.py has exports as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent.export.artefact.interfaces", lambda tasks: list(map(interface, tasks)))
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of every campaign in this process."""
    found = Clock()
    for module in ("campaign", "course"):
        monkeypatch.setattr(f"agent.loop.{module}.time", SimpleNamespace(monotonic=found.read))
    return found
