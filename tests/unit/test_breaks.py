"""Each guarantee and each limit has a break that its test notices; `make nightly` runs them (`tests/breaks.py`)."""

from __future__ import annotations

import pytest

from tests.breaks import Break, read_breaks, rows
from tests.mutations import MODULES, mutations, nearest
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
    assert [(each.line, each.before, each.after) for each in mutations(source)] == [
        (2, "c = max(a, 1)", "pass"),
        (3, "return a < b and c", "return None"),
        (2, "max(a, 1)", "min(a, 1)"),
        (3, "a < b and c", "a < b or c"),
        (2, "1", "2"),
        (3, "a < b", "a <= b"),
    ]
    assert len({each.source for each in mutations(source)}) == 6


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_mutations_exists_and_has_tests(module: str) -> None:
    assert (ROOT / f"{module}.py").exists()
    assert all((ROOT / "tests" / each).exists() for tests in nearest(module) for each in tests)
