"""Dataclasses to plain JSON values and back, for the journal and for `--json`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def to_record(value: object) -> Any:
    """JSON-ready copy of a (nested) dataclass."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_record(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_record(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_record(v) for v in value]
    return value


def from_record(kind: type[T], record: Any) -> T:
    """The dataclass `kind` from what `to_record` made; raises TypeError or ValueError if it does
    not fit.
    """
    build: Build = _builder(kind)  # type: ignore[arg-type]  # types hash by identity
    return typing.cast(T, build(record))


Build = Callable[[Any], Any]
SCALARS: Mapping[Any, tuple[str, tuple[type, ...]]] = {
    str: ("text", (str,)),
    int: ("number", (int, float)),
    float: ("number", (int, float)),
}
"""As JSON has them: what each is called, and which types it may come as."""


@cache
def _builder(kind: Any) -> Build:
    """Builds values of a type; kept, since resolving the type takes far longer than building."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        some = _of_one([a for a in args if a is not type(None)])
        if type(None) not in args:
            return some
        return lambda record: None if record is None else some(record)
    if origin is tuple:
        return _of_tuple(args)
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(args)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind in SCALARS:
        return _of_scalar(*SCALARS[kind])
    return lambda record: record


def _of_one(kinds: list[Any]) -> Build:
    """A union is of one type, or of scalars: JSON tells apart no others."""
    if len(kinds) == 1:
        return _builder(kinds[0])
    words, forms = zip(*(SCALARS[kind] for kind in kinds), strict=True)
    return _of_scalar(" or ".join(words), sum(forms, ()))


def _of_scalar(word: str, forms: tuple[type, ...]) -> Build:
    def build(record: Any) -> Any:
        if not isinstance(record, forms):
            raise TypeError(f"{record!r:.40} is no {word}")
        return record

    return build


def _of_mapping(args: tuple[Any, ...]) -> Build:
    each = _builder(args[1]) if args else _builder(Any)

    def build(record: Any) -> Any:
        if not isinstance(record, Mapping):
            raise TypeError(f"{record!r:.40} is no object")
        return {key: each(item) for key, item in record.items()}

    return build


def _of_tuple(args: tuple[Any, ...]) -> Build:
    if args[-1] is Ellipsis:
        each = _builder(args[0])
        return lambda record: tuple(each(item) for item in record)
    parts = tuple(map(_builder, args))
    return lambda record: tuple(build(item) for build, item in zip(parts, record, strict=True))


def _of_dataclass(kind: Any) -> Build:
    parts = {name: _builder(hint) for name, hint in typing.get_type_hints(kind).items()}

    def build(record: Any) -> Any:
        if not isinstance(record, Mapping):
            raise TypeError(f"{record!r:.40} is no {kind.__name__}")
        if unknown := record.keys() - parts.keys():
            raise TypeError(f"{kind} has no field {sorted(unknown)}")
        return kind(**{name: parts[name](item) for name, item in record.items()})

    return build
