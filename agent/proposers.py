"""From a config to who proposes: the built-in search, or models with a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.config import OptimizeConfig
from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.memory.notes import Memory, append_notes, note_lines
from agent.memory.remember import notes_of
from agent.model import Model
from agent.models.opening import BatchFiles, open_books, open_model
from agent.proposing.model_proposer import SeededProposer
from agent.proposing.tuner import TuningProposer
from agent.types import Proposer
from agent.views.asking import asking


@contextmanager
def open_proposers(
    journal: Journal,
    config: OptimizeConfig,
    facts: Mapping[str, str],
    files: BatchFiles | None = None,
    local: Model | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[list[Proposer]]:
    """Of the journal's run; `facts` describes the device, unless the run has such facts already,
    `files` take the place of the models' endpoints, and `local` is the model that needs none.
    `tell` hears a line of every model that is left out.
    """
    journal.record_facts(facts)  # also without a model: what it finds may be another's lesson
    with _remembering(journal, config.memory):
        if local is not None:
            yield [model_proposer(config, local, journal.facts(), journal.memory())]
            return
        if not config.asked:
            yield [FeatureProposer(config.seed, config.features)]
            return
        with (
            open_books(journal.folder, config) as books,
            open_model(config, books, files, tell) as model,
        ):
            yield [model_proposer(config, model, journal.facts(), journal.memory())]


@contextmanager
def _remembering(journal: Journal, memory: Memory | None) -> Iterator[None]:
    """Earlier campaigns' notes go into the journal first, its confirmed wins into the file last,
    also those of a campaign that is stopped.
    """
    if memory is None:
        yield
        return
    journal.record_memory(note_lines(memory))
    try:
        yield
    finally:
        if memory.write:
            append_notes(Path(memory.file), notes_of(journal, memory))


def model_proposer(
    config: OptimizeConfig,
    model: Model,
    facts: Mapping[str, object],
    lines: Sequence[str] = (),
) -> Proposer:
    """The config's strategy, asking this model; with seeds and a tuner where it says so."""
    proposer: Proposer = asking(config, model, facts, lines)
    if config.tuning is not None:
        proposer = TuningProposer(proposer, config.tuning, config.seed)
    if config.seed_candidates:
        seeds = FeatureProposer(config.seed, config.features)
        proposer = SeededProposer(seeds, proposer, config.seed_candidates)
    return proposer
