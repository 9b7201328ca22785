"""Code blocks of README, the pages of the documentation, and the libraries' README."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.paths import ROOT

PAGES = {
    str(page.relative_to(ROOT)): page
    for page in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted(ROOT.glob("services/common/*/README.md")),
    )
    if "decisions" not in page.parts
}
"""By their paths in the project."""
_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}\S[^\n]*\n)+", re.MULTILINE)


class Block(NamedTuple):
    """A code block: its page and line, language (empty for a terminal) and text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Return page and line."""
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Return the fenced code blocks of a page, in its order."""
    text = PAGES[page].read_text()
    return [
        Block(page, _line(text, match), match[2], re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE))
        for match in _FENCED.finditer(text)
    ]


def indented(page: str) -> list[int]:
    """Return the lines of code blocks that are indented instead of fenced."""
    rest = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), PAGES[page].read_text())
    return [_line(rest, match) for match in _INDENTED.finditer(rest)]


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
