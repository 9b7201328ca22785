"""Each guarantee of ARCHITECTURE.md has a test, and the gate of a commit runs it."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.paths import ROOT

PAGE = (ROOT / "tests" / "GUARANTEES.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| .* \| .*::", line)]
NOT_IN_GATE = ("soak", "nightly", "skip", "NIGHTLY", "xfail")
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@cache
def module(path: str) -> ast.Module:
    return ast.parse((ROOT / "tests" / path).read_text())


def marks_of(path: str, name: str) -> list[str] | None:
    """Return the decorators of a test; None if it does not exist."""
    for node in ast.walk(module(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return [ast.unparse(decorator) for decorator in node.decorator_list]
    return None


def test_named_tests_exist_and_are_in_the_gate() -> None:
    absent, elsewhere = set[str](), set[str]()
    for path, name in TESTS:
        marks = marks_of(path, name)
        if marks is None:
            absent.add(f"{path}::{name}")
        elif any(tier in mark for mark in marks if "param(" not in mark for tier in NOT_IN_GATE):
            elsewhere.add(f"{path}::{name}")
    assert (absent, elsewhere) == (set(), set())


def boundaries(page: str) -> dict[str, str]:
    """Return the guarantee of each boundary in the page's table."""
    text = (ROOT / page).read_text()
    table = text[text.index("| boundary |") :].partition("\n\n")[0].splitlines()[2:]
    cells = [line.strip("| ").split(" | ", 1) for line in table]
    return {re.sub("<.*>", "", boundary): guarantee for boundary, guarantee in cells}


def test_every_boundary_of_the_architecture_has_a_row() -> None:
    tested = {row.split("|")[1].strip() for row in ROWS} - {"any part", "relay, state", "publisher, state"}
    assert {*boundaries("ARCHITECTURE.md")} == tested == {*boundaries("docs/guarantees.md")}


def test_every_line_of_the_architecture_leads_to_its_whole_guarantee() -> None:
    details = (ROOT / "docs" / "guarantees.md").read_text()
    for boundary, line in boundaries("ARCHITECTURE.md").items():
        (anchor,) = re.findall(r"^\[.*\]\(docs/guarantees\.md#([a-z0-9-]+)\)$", line)
        assert f'| <a id="{anchor}"></a>{boundary} | ' in details
