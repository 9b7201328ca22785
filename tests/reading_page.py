"""Sections of docs/reading-the-data.md, and their code."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reading-the-data.md").read_text()
SECTIONS = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", PAGE, re.M | re.S)


def code_of(titles: Iterable[str]) -> list[tuple[str, str]]:
    """Return title and text of every block of these sections, in the page's order."""
    wanted = set(titles)
    return [
        (title, block)
        for title, text in SECTIONS
        if title in wanted
        for block in re.findall(r"```python\n(.*?)```", text, re.S)
    ]
