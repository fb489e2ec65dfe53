"""Dataclasses to plain JSON values and back, for the journal and for `--json`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
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
    return typing.cast(T, _build(kind, record))


def _build(kind: Any, record: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if record is None:
            return None
        return _build(next(a for a in args if a is not type(None)), record)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return tuple(_build(args[0], item) for item in record)
        return tuple(_build(a, item) for a, item in zip(args, record, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        return dict(record)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if unknown := record.keys() - hints.keys():
            raise TypeError(f"{kind} has no field {sorted(unknown)}")
        return kind(**{name: _build(hints[name], item) for name, item in record.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(record)
    return record
