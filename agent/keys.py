"""Keys of a config file against the dataclass they are for: unknown ones are refused by name, as is
yes or no where a number goes, which pydantic takes for 1 or 0.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from sandbox.errors import ConfigError


def refuse_misfits(kind: type, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
    """Raises ConfigError for the first key that is no field, or that holds no number where one
    goes, in values of dataclasses too: alone, listed or named. Values of several kinds of dataclass
    are left to who can tell them apart.
    """
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    for key, value in values.items():
        if key not in known:
            meant = nearest(str(key), known)
            raise ConfigError(
                f"{origin}: unknown key {prefix + str(key)!r}; "
                + (f"did you mean {prefix + meant!r}?" if meant else f"known: {', '.join(known)}")
            )
        kinds = _kinds(hints[key])
        if isinstance(value, bool) and bool not in kinds and not kinds.isdisjoint((int, float)):
            shown = str(value).lower()  # as YAML has it
            raise ConfigError(f"{origin}: {prefix}{key} is {shown}; expected a number")
        match list(dict.fromkeys(_dataclasses(hints[key]))):
            case [inner]:
                for place, part in _parts(value, named=_is_mapping(hints[key])):
                    refuse_misfits(inner, part, origin, f"{prefix}{key}.{place}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like a mistyped one."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)


def _dataclasses(hint: Any) -> Iterable[type]:
    """Those in `X`, `X | None`, `tuple[X, ...]` or `Mapping[str, X]`."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for argument in typing.get_args(hint):
        yield from _dataclasses(argument)


def _kinds(hint: Any) -> frozenset[Any]:
    """Those in `X` or `X | Y`."""
    return frozenset(typing.get_args(hint) or (hint,))


def _is_mapping(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _parts(value: object, *, named: bool) -> list[tuple[str, Mapping[str, Any]]]:
    """Each with what stands before its keys: the name it goes by, or its place in a list."""
    places: list[tuple[str, object]] = [("", value)]
    if named and isinstance(value, Mapping):
        places = [(f"{name}.", part) for name, part in value.items()]
    elif isinstance(value, list | tuple):
        places = [(f"{i}.", part) for i, part in enumerate(value)]
    return [(place, part) for place, part in places if isinstance(part, Mapping)]
