"""Each guarantee and each limit has a break that its test notices; `make nightly` runs them (`tests/breaks.py`)."""

from __future__ import annotations

import pytest

from tests.breaks import Break, read_breaks, rows
from tests.mutations.changes import count, mutations
from tests.mutations.code import changed_functions
from tests.mutations.modules import MODULES, nearest, own_tests
from tests.paths import ROOT

ROWS = rows()
BREAKS = read_breaks()


@pytest.mark.parametrize("row", ROWS)
def test_each_guarantee_and_each_limit_has_a_break(row: str) -> None:
    assert any(each.row == row for each in BREAKS), f"add a break of {row!r} to tests/{{breaks,limit_breaks}}.toml"


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: f"{each.file}-{each.test.rpartition(':')[2]}")
def test_break_changes_one_place_and_names_a_test_of_its_row(each: Break) -> None:
    content = (ROOT / each.file).read_text()
    assert content.count(each.text) == 1
    broken = content.replace(each.text, each.replacement)
    assert broken != content
    compile(broken, each.file, "exec")
    assert each.test in ROWS[each.row]


def test_a_break_knows_the_failures_of_its_own_test() -> None:
    each = Break("row", "file.py", "a", "b", "unit/test_a.py::test_it")
    assert each.fails_in(["FAILED tests/unit/test_a.py::test_it - AssertionError"])
    assert each.fails_in(["ERROR tests/unit/test_b.py::test_it", "FAILED tests/unit/test_a.py::test_it[7]"])
    assert not each.fails_in(["FAILED tests/unit/test_a.py::test_its[7]", "FAILED tests/unit/test_b.py::test_it"])


def test_mutations_are_all_small_changes_and_leave_the_others_out() -> None:
    source = "def f(a, b):\n    c = max(a, 1)\n    return a < b and c\n"
    found = mutations(source, "a.py")
    assert [(each.line, each.before, each.after) for each in found] == [
        (2, "c = max(a, 1)", "pass"),
        (2, "max(a, 1)", "min(a, 1)"),
        (2, "1", "2"),
        (3, "return a < b and c", "return None"),
        (3, "a < b and c", "a < b or c"),
        (3, "a < b", "a <= b"),
    ]
    assert len({each.code for each in found}) == len(found) == count(source)
    assert [(each.before, each.after) for each in mutations(source, "a.py", {0})] == [("c = max(a, 1)", "pass")]


def test_a_mutation_names_the_lines_of_its_statement_and_the_functions_it_changes() -> None:
    source = "class A:\n    x = 1\n\n    def f(self, a=2):\n        if (\n            a > 2\n        ):\n"
    source += "            return a\n"
    code = compile(source, "a.py", "exec")
    found = {
        (each.before, each.line): (each.statement, changed_functions(code, each.code))
        for each in mutations(source, "a.py")
    }
    assert {place: statement for place, (statement, _) in found.items()} == {
        ("1", 2): (2, 2),
        ("2", 4): (4, 4),
        ("a > 2", 6): (5, 7),
        ("2", 6): (5, 7),
        ("return a", 8): (8, 8),
    }
    assert [place for place, (_, changed) in found.items() if changed is None] == [("1", 2), ("2", 4)], "at the import"
    assert all(changed is None or [*changed] == [("A.f", 4)] for _, changed in found.values())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_mutations_exists_and_has_tests(module: str) -> None:
    assert (ROOT / f"{module}.py").exists()
    assert all((ROOT / each).exists() for each in (nearest(module), *own_tests(module)))
