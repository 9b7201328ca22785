"""Each guarantee has a break that its test notices; `make nightly` runs them (`tests/breaks.py`)."""

from __future__ import annotations

import pytest

from tests.breaks import Break, read_breaks, rows
from tests.paths import ROOT

ROWS = rows()
BREAKS = read_breaks()


@pytest.mark.parametrize("row", ROWS)
def test_each_guarantee_has_a_break(row: str) -> None:
    assert any(each.row == row for each in BREAKS), f"add a break of {row!r} to tests/breaks.toml"


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: f"{each.file}-{each.test.rpartition(':')[2]}")
def test_break_changes_one_place_and_names_a_test_of_its_row(each: Break) -> None:
    content = (ROOT / each.file).read_text()
    assert content.count(each.text) == 1
    broken = content.replace(each.text, each.replacement)
    assert broken != content
    compile(broken, each.file, "exec")
    assert each.test in ROWS[each.row]
