"""Pages of the notebooks: their text, code and outputs as Markdown, each with a link to the notebook itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def notebook_page(notebook: Path) -> str:
    """Return the page of a notebook, whose outputs are in its file; it is not executed here."""
    book = json.loads(notebook.read_text())
    parts = [part for cell in book["cells"] for part in _cell_parts(cell)]
    title, _, rest = parts[0].partition("\n")
    link = f"[Download]({notebook.name}) and open it in Jupyter. This page shows the outputs that are stored in it."
    return "\n\n".join([title, link, rest.strip(), *parts[1:]]) + "\n"


def _cell_parts(cell: dict[str, Any]) -> list[str]:
    """Return a cell as parts of a page: its text, or its code and the text of each output."""
    source = _joined(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        return [source]
    outputs = [text for output in cell["outputs"] if (text := _output_text(output))]
    return [_fenced(source, "python"), *(_fenced(text, "text") for text in outputs)]


def _output_text(output: dict[str, Any]) -> str:
    """Return an output as text, which every output has: a screen reader reads it, and no style comes with it."""
    found = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return _joined(found).strip("\n")


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
