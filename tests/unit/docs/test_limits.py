"""docs/limits.md: every RPC, frame and port has a limit of its own, and each limit a test that attacks it."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.paths import ROOT
from write_limits import PAGE, Limit, frames, limits, page, ports, rpcs, value_of

LIMITS = limits()
DOORS = [*rpcs(), *frames(), *ports()]


def test_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run make docs"


def test_every_rpc_frame_and_port_has_a_row_and_no_row_names_another() -> None:
    named = {door for limit in LIMITS for door in limit.doors}
    assert [door for door in DOORS if door not in named] == []
    assert named - {*DOORS, "*"} == set()


def test_services_are_all_that_the_protos_declare() -> None:
    declared = [path.read_text() for path in (ROOT / "protos").rglob("*.proto")]
    names = [line.strip() for text in declared for line in text.splitlines() if line.lstrip().startswith("rpc ")]
    assert Counter(door.partition(".")[2] for door in rpcs()) == Counter(
        name.split("(")[0][4:].strip() for name in names
    )


def test_resources_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(limit.resource for limit in LIMITS).items() if count > 1] == []


@pytest.mark.parametrize("limit", LIMITS, ids=[limit.resource for limit in LIMITS])
def test_value_is_in_the_code_and_its_attack_in_the_gate(limit: Limit) -> None:
    assert value_of(limit) or not limit.value
    assert bool(limit.test) != limit.above.startswith("none: ")
    if not limit.test:
        return
    path, _, name = limit.test.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    (function,) = [each for each in functions if each.name == name]
    marks = " ".join(ast.unparse(each) for each in function.decorator_list)
    assert not any(tier in marks for tier in ("pytest.mark.soak", "pytest.mark.nightly", "pytest.mark.skip", "xfail("))
