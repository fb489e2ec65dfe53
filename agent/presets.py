"""YAML files and the presets of configs/, as plain keys and values.

Not here: what the keys mean (agent/config.py). A key given twice is refused: YAML forbids it, and
PyYAML would take the last one silently.
"""

from __future__ import annotations

from collections.abc import Hashable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from agent.keys import nearest
from sandbox.errors import ConfigError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                why = f"key {key.value!r} is given twice; expected it once"
                raise yaml.MarkedYAMLError(problem=why, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def preset_names(verb: str) -> list[str]:
    folder = resources.files("configs") / verb
    return sorted(
        f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")
    )


def read_yaml(source: str, verb: str, asked_by: str = "") -> tuple[str, dict[str, Any]]:
    """Name for messages and the mapping inside; a preset goes before a file of the same name.

    Raises ConfigError where it cannot be read or is empty; `asked_by` begins what is said of a
    source that does not exist, such as a file and its key.
    """
    names = preset_names(verb)
    if source in names:
        origin = f"{verb} preset {source}"
        text = (resources.files("configs") / verb / f"{source}.yaml").read_text()
    else:
        origin, text = source, _text(source, verb, names, asked_by)
    try:
        values = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"{origin}{_place(error, text)}") from error
    if not values and isinstance(values, dict | None):
        raise ConfigError(f"{origin}: is empty; expected keys and values, or a preset's name")
    if not isinstance(values, dict):
        raise ConfigError(f"{origin}: holds a {type(values).__name__}; expected keys and values")
    return origin, values


def _text(source: str, verb: str, names: list[str], asked_by: str) -> str:
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: cannot be read: {error}") from error
    before = f"{asked_by}: " if asked_by else ""
    presets = f"presets: {', '.join(names)}"
    if path.is_dir():
        raise ConfigError(f"{before}{source}: is a folder; expected a YAML file; {presets}")
    meant = nearest(source, names)
    hint = f"did you mean {meant!r}?" if meant else presets
    raise ConfigError(f"{before}{source}: no such file, and no {verb} preset; {hint}")


def _place(error: Exception, text: str) -> str:
    """`:3:7: not YAML: what is wrong there`; lines and columns from 1, as editors count them."""
    at, words = None, str(error)
    match error:
        case yaml.MarkedYAMLError():
            mark = error.problem_mark or error.context_mark
            at = None if mark is None else (mark.line, mark.column)
            words = ", ".join(filter(None, (error.context, error.problem)))
        case yaml.reader.ReaderError():
            before = text[: error.position]
            at = before.count("\n"), len(before) - before.rfind("\n") - 1
            words = f"character {error.character!r} is not allowed"
    place = "" if at is None else f":{at[0] + 1}:{at[1] + 1}"
    return f"{place}: not YAML: {' '.join(words.split())}"
