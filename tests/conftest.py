"""Fixtures for every test, the profiles of hypothesis, and the assignment of tests to xdist workers."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

pytest_plugins = ["tests.fixtures_gateway", "tests.fixtures_kafka", "tests.fixtures_spark"]

# The gate draws the same examples in every run. `make nightly` draws new ones and prints the seed.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=500, print_blob=True)
settings.load_profile("gate")

_NO_CONSTANTS = Constants()
_local_constants = providers._get_local_constants


def _constants() -> Constants:
    """Return the constants of our modules that hypothesis draws, too: none in the gate.

    They are those of the modules that are loaded, which differ between workers and orders of tests.
    """
    return _NO_CONSTANTS if settings.get_current_profile_name() == "gate" else _local_constants()


providers._get_local_constants = _constants


SHARED = ("smoke_suite", "spark", "kafka")
"""Fixtures of what a run starts once, which the tests that need the same one share on one worker; the mark ``spark``
counts as its fixture.
"""
LONG = ("kafka",)
"""Marks of files whose tests take longer than others."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for xdist: by the first of SHARED that they need, otherwise by file. The longest groups come first.

    A long group that began last would keep one worker busy while the others have nothing left.
    """
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "smoke" in marks and item.nodeid.startswith("tests/unit/"):
            raise pytest.UsageError(f"{item.nodeid}: `make smoke` collects nothing below tests/unit")
        needs = {*getattr(item, "fixturenames", ()), *(marks & {"spark"})}
        shared = next((name for name in SHARED if name in needs), None)
        ranks[item] = SHARED.index(shared) if shared else len(SHARED) + (not marks & set(LONG))
        item.add_marker(pytest.mark.xdist_group(shared or item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: ranks[item])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """End a run by groups if xdist does not see them: it distributes by the group that it appends to each id."""
    if node.config.getoption("dist") == "loadgroup" and not all("@" in item_id.rpartition("]")[2] for item_id in ids):
        raise pytest.UsageError("xdist does not group the tests; this version of pytest needs another version of it")
