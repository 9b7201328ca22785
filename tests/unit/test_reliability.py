"""tests/RELIABILITY.md: each test that it names exists, and each row without one says so."""

from __future__ import annotations

import ast
import re

from tests.paths import ROOT

TESTS = ROOT / "tests"
ROWS = [
    [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
    for line in (TESTS / "RELIABILITY.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| # |", "| --- |"))
]


def test_each_test_of_a_row_exists() -> None:
    assert len(ROWS) >= 34
    for row in ROWS:
        for path, name in re.findall(r"`((?:unit|integration|nightly|smoke)/[\w/]+\.py)(?:::(\w+))?`", row[3]):
            tree = ast.parse((TESTS / path).read_text())
            functions = {
                each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert not name or name in functions, f"{path} has no {name}"


def test_a_row_without_a_test_says_that_it_was_never_run() -> None:
    assert [row[1] for row in ROWS if len(row) != 6] == []
    assert [row[1] for row in ROWS if not row[3] and not row[5].startswith("never run")] == []
