"""The notebook of the documentation, executed again: its outputs are those that it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.execute_notebook import NOTEBOOK, executed, texts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


async def test_the_notebook_shows_what_its_cells_print(tmp_path: Path) -> None:
    assert texts(await executed(tmp_path)) == texts(json.loads(NOTEBOOK.read_text()))
