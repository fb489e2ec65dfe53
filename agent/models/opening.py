"""From a config to the model a campaign asks, with its ledger and its kept replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config import OptimizeConfig
from agent.model import Model
from agent.models.batch import BatchModel, Outbox, import_replies
from agent.models.completions import check_caps
from agent.models.ledger import LEDGER_FILE, Ledger
from agent.models.mixture import Mixture
from agent.models.prices import price_of
from agent.models.settings import ModelConfig
from agent.models.store import ReplyStore, shared_folder
from agent.strategies.portfolio import Portfolio
from sandbox.errors import ConfigError
from sandbox.words import number_of

if TYPE_CHECKING:
    from agent.models.endpoint import OpenAIModel

REPLIES_FOLDER = "replies"


@dataclass(frozen=True)
class Books:
    """What a run keeps about its models."""

    ledger: Ledger
    store: ReplyStore


@dataclass(frozen=True)
class BatchFiles:
    """In place of a server: where requests go, and where replies come from."""

    export: Path | None = None
    imports: Sequence[Path] = ()
    say: Callable[[str], None] = print
    """Told a line for what was imported and what was exported."""


@contextmanager
def open_books(folder: Path, config: OptimizeConfig) -> Iterator[Books]:
    """Of the run in `folder`, which this process has locked."""
    store = ReplyStore(shared_folder() if config.keep_replies else folder / REPLIES_FOLDER)
    store.check()
    with Ledger(folder / LEDGER_FILE, config.caps) as ledger:
        yield Books(ledger, store)


@contextmanager
def open_model(
    config: OptimizeConfig,
    books: Books,
    files: BatchFiles | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Model]:
    """The model, or the mixture of models, behind the endpoints that the config names; or files
    in their place, of which the outgoing one is written at the end. `tell` hears a line of every
    model that is left out.
    """
    with ExitStack() as stack:
        if files is None:
            endpoints = endpoints_of(config, books)
            models: list[Model] = [stack.enter_context(closing(e)) for e in endpoints]
        else:
            models = stack.enter_context(_batched(config, books, files))
        yield together(models, config, tell)


def together(
    models: Sequence[Model], config: OptimizeConfig, tell: Callable[[str], None] = lambda _: None
) -> Model:
    """Of the config's models those that its strategy asks."""
    named = config.strategy.models if isinstance(config.strategy, Portfolio) else ()
    asked = [
        (model, settings.weight)
        for model, settings in zip(models, config.asked, strict=True)
        if not named or model.name in named
    ]
    if len(asked) == 1:
        return asked[0][0]
    return Mixture(
        [model for model, _ in asked], [weight for _, weight in asked], config.seed, tell
    )


@contextmanager
def _batched(config: OptimizeConfig, books: Books, files: BatchFiles) -> Iterator[list[Model]]:
    outbox = Outbox()
    if files.imports:
        imported, outbox.unanswered = import_replies(files.imports, books.store, books.ledger)
        files.say(str(imported))
    yield [batch_model(settings, config, books, outbox) for settings in config.asked]
    if not outbox.lines:
        files.say("no request is left to export")
    elif files.export is None:
        waiting = number_of(len(outbox.lines), "request")
        files.say(f"{waiting} to export: add --export-requests FILE")
    else:
        files.say(f"{number_of(outbox.write(files.export), 'request')} written to {files.export}")


def batch_model(
    settings: ModelConfig, config: OptimizeConfig, books: Books, outbox: Outbox
) -> BatchModel:
    price = price_of(settings.name, config.prices)
    check_caps(settings.name, config.caps, settings.max_tokens, price)
    return BatchModel(
        settings,
        books.store,
        books.ledger,
        outbox,
        None if price is None else price.in_batches(),
        config.seed,
    )


def check_models(config: OptimizeConfig, files: BatchFiles | None = None) -> None:
    """Raises ConfigError for what would end a run before its first request."""
    if files is not None and not config.asked:
        raise ConfigError("requests go into a file and replies come from one only with --model")
    books = Books(Ledger(caps=config.caps), ReplyStore(shared_folder()))
    if files is None:
        endpoints_of(config, books)
    for settings in config.asked:
        batch_model(settings, config, books, Outbox())


def endpoints_of(config: OptimizeConfig, books: Books) -> list[OpenAIModel]:
    return [endpoint(settings, config, books) for settings in config.asked]


def endpoint(settings: ModelConfig, config: OptimizeConfig, books: Books) -> OpenAIModel:
    from agent.models.endpoint import OpenAIModel  # 0.8 s, where a model is asked

    return OpenAIModel(
        settings.name,
        settings.base_url,
        api_key_env=settings.api_key_env,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        timeout_s=settings.timeout_s,
        concurrency=settings.concurrency,
        retries=settings.retries,
        extra=settings.extra,
        seed=config.seed,
        price=price_of(settings.name, config.prices),
        ledger=books.ledger,
        store=books.store,
    )
