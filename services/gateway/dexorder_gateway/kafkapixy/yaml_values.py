"""Values of Kafka-Pixy's file: its YAML as a tree of strings, and Go's durations. Pure.

YAML would convert text that looks like a number or a boolean, but a password ``0123`` or ``yes`` is neither: every
scalar stays the string in the file, and the settings convert it.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_QUOTED = re.compile(r"\s*(?P<mark>['\"]).*(?P=mark)")
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
}
_TERM = re.compile(rf"([0-9]*)(?:\.([0-9]*))?({'|'.join(_UNITS_NS)})")
_MAX_NS = 2**63 - 1
NOT_A_DURATION = "is not a duration; use for example 500ms or 1m30s"


class BadYaml(ValueError):
    """The text is not valid YAML; names the place, never the text there."""


class _StringLoader(yaml.SafeLoader):
    """Loader that makes every scalar a string, with merges and null as usual, and refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is not a string", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, "duplicate key", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def as_string(self, node: yaml.Node) -> str:
        assert isinstance(node, yaml.ScalarNode)
        return str(self.construct_scalar(node))


for _kind in ("int", "float", "bool", "timestamp", "str"):
    _StringLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _StringLoader.as_string)


def read_tree(text: str) -> object:
    """Return the mappings, lists, strings and None of the file, nested as in it; BadYaml names line and column."""
    try:
        return yaml.load(text, _StringLoader)  # noqa: S506 - it makes only strings
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        # The parser quotes aliases and tags, and an unquoted password may look like one.
        problem = _QUOTED.sub("", error.problem or "not readable")
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        raise BadYaml(f"not valid YAML: {problem} ({place})") from None
    except yaml.YAMLError:
        raise BadYaml("not valid YAML: a character that YAML does not allow") from None
    except RecursionError:
        raise BadYaml("not valid YAML: nested too deeply, or in itself") from None


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration as Go writes it; digits below a nanosecond are cut off, term by term.

    Args:
        text: Numbers with units, as ``500ms``, ``1m30s`` or ``1.5h``, with an optional sign before the first; or ``0``.
    Raises:
        ValueError: The text is not a duration, or is longer than 292 years.
    """
    sign, terms = (-1 if text[:1] == "-" else 1), text.removeprefix(text[:1] if text[:1] in "+-" else "")
    if terms == "0":
        return 0
    total_ns, at = 0, 0
    while at < len(terms):
        match = _TERM.match(terms, at)
        if match is None or not (match[1] or match[2]):
            raise ValueError(f"{text!r} {NOT_A_DURATION}")
        whole, part, unit_ns = match[1] or "0", match[2] or "", _UNITS_NS[match[3]]
        total_ns += int(whole) * unit_ns + int(part or "0") * unit_ns // 10 ** len(part)
        at = match.end()
    if not terms:
        raise ValueError(f"{text!r} {NOT_A_DURATION}")
    if total_ns > _MAX_NS:
        raise ValueError(f"{text!r} is longer than the longest duration, 292 years")
    return sign * total_ns
