"""Comparison of JSON with the shape that a page gives, as in ``{a, b: [{c, d}] or null}``.

``python -m tests.documentation.shape FILE`` compares each value on stdin with the shapes of the file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

OPEN = "..."
"""Stands for further keys."""
Shape = Mapping[str, Any]
"""Key, and the shape of its value; None where the page does not give one."""


def shapes(text: str) -> list[Shape]:
    """Return the shapes of a text."""
    return [_shape(part) for part in _braces(text)]


def _braces(text: str) -> list[str]:
    """Return the contents of the outermost braces."""
    found, depth, start = [], 0, 0
    for place, mark in enumerate(text):
        if mark == "{":
            start = start if depth else place + 1
            depth += 1
        elif mark == "}":
            depth -= 1
            if not depth:
                found.append(text[start:place])
    return found


def _shape(text: str) -> Shape:
    found: dict[str, Any] = {}
    flat = text
    while flat != (flat := re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]|`[^`]*`", lambda match: "_" * len(match[0]), flat)):
        pass
    ends = [match.start() for match in re.finditer(",", flat)]
    for start, end in zip([0, *(each + 1 for each in ends)], [*ends, len(text)], strict=True):
        name, _, value = text[start:end].partition(":")
        if name.strip() and not name.strip().startswith("or "):
            inner = _braces(value)
            found[name.strip()] = _shape(inner[0]) if inner else None
    return found


def differences(shape: Shape | None, value: Any, path: str = "") -> list[str]:
    """Return the keys that only one of both has."""
    if isinstance(value, list):
        return sorted({each for item in value for each in differences(shape, item, path)})
    if shape is None or (OPEN in shape and len(shape) == 1) or not isinstance(value, dict):
        return []
    names = set(shape) - {OPEN}
    found = [f"{path}{name} is not printed" for name in sorted(names - set(value))]
    if OPEN not in shape:
        found += [f"{path}{name} is not on the page" for name in sorted(set(value) - names)]
    return found + [each for name in names & set(value) for each in differences(shape[name], value[name], f"{name}.")]


def values(text: str) -> Iterator[Any]:
    """Yield the JSON values that follow each other in a text."""
    decoder, place = json.JSONDecoder(), 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        value, place = decoder.raw_decode(text, place)
        yield value


def main(file: str) -> int:
    """Return 1 and print what differs, if a value on stdin has none of the shapes."""
    given = shapes(Path(file).read_text())
    printed = list(values(sys.stdin.read()))
    found = [min((differences(shape, value) for shape in given), key=len) for value in printed]
    print(f"{len(printed)} values", *sorted({each for missing in found for each in missing}), sep="\n")
    return int(not printed or any(found))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
