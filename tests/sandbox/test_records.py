"""Records of the nouns: what is written is what is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from sandbox.figures import Interval
from sandbox.records import from_record, to_record
from sandbox.types import Language


@dataclass(frozen=True)
class Part:
    language: Language
    interval: Interval | None = None


@dataclass(frozen=True)
class Whole:
    parts: Mapping[str, Part] = field(default_factory=dict)
    row: tuple[Part, ...] = ()
    pair: tuple[int, str] = (0, "")
    features: Mapping[str, str | int] = field(default_factory=dict)


def test_what_is_written_is_what_is_read() -> None:
    part = Part(Language.CUDA, Interval(2.0, 1.0, 3.0))
    features = {"schedule": "static", "chunk": 16384}
    whole = Whole({"a": part}, (Part(Language.CPP), part), (1, "x"), features)
    assert from_record(Whole, to_record(whole)) == whole


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"has no field \['size'\]"):
        from_record(Whole, {"parts": {"a": {"language": "cpp", "size": 1}}})


@pytest.mark.parametrize(
    "record",
    [
        *(None, [], "x", {"parts": None}, {"parts": {"a": None}}, {"row": [3]}),
        *({"pair": [0, None]}, {"features": {"chunk": None}}),
    ],
)
def test_a_record_of_another_form_is_refused_as_such(record: object) -> None:
    with pytest.raises(TypeError, match=r"is no (Whole|Part|object|text|text or number)$"):
        from_record(Whole, record)
