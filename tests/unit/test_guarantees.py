"""Each guarantee of ARCHITECTURE.md has a test, and the gate of a commit runs it."""

from __future__ import annotations

import ast
import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "tests" / "GUARANTEES.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| .* \| .*::", line)]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("path", "name"), TESTS, ids=[name for _, name in TESTS])
def test_named_test_exists_and_is_in_the_gate(path: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    (function,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    marks = [ast.unparse(decorator) for decorator in function.decorator_list]
    assert not any(
        tier in mark
        for mark in marks
        for tier in ("soak", "nightly", "skip", "NIGHTLY", "xfail")
        if "param(" not in mark
    )


def test_every_boundary_of_the_architecture_has_a_row() -> None:
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    section = architecture[architecture.index("## Guarantees") : architecture.index("## State")]
    boundaries = {line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")} - {
        "boundary",
        "---",
    }
    assert boundaries == {row.split("|")[1].strip() for row in ROWS} - {"any part", "relay, state", "publisher, state"}
