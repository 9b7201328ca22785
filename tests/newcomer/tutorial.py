"""Blocks of the tutorial that a reader runs, and a comparison of what they print with the text."""

from __future__ import annotations

import re
from typing import NamedTuple

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b20[2-9]\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b\d{15,20}\b"), "NUMBER"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
)


class Step(NamedTuple):
    """Block of shell commands or Python program, and the lines that the tutorial shows after it."""

    language: str
    """``shell`` or ``python``."""
    code: str
    shown: list[str]


def steps(page: str) -> list[Step]:
    """Return the blocks of commands after ``$`` and the Python programs, in the page's order."""
    found = []
    for language, text in _BLOCK.findall(page):
        if language == "python":
            found.append(Step("python", text, []))
        elif text.startswith("$ "):
            found.append(shell_step(text.splitlines()))
    return found


def shell_step(lines: list[str]) -> Step:
    """Return the commands after ``$`` and the other lines, which they print."""
    code: list[str] = []
    shown: list[str] = []
    for line in lines:
        if line.startswith("$ "):
            code.append(line.removeprefix("$ "))
        elif code and ("\n".join(code).count("'") % 2 or code[-1].endswith("\\")):  # it continues on the next line
            code.append(line)
        else:
            shown.append(line)
    return Step("shell", "\n".join(code), shown)


def words(text: str) -> str:
    """Return a text without line breaks, with the same word for each value that differs between runs."""
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return " ".join(text.split())


def missing(step: Step, printed: str) -> list[str]:
    """Return the shown lines that were not printed; a line of progress is shown only in a terminal."""
    lines = [line for line in step.shown if not line.endswith(", finished")]
    return [line for line in lines if words(line) not in words(printed)]
