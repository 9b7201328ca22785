"""Fixtures for every test, the profiles of hypothesis, and the assignment of tests to xdist workers."""

from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fixtures_gateway", "tests.fixtures_kafka", "tests.fixtures_spark"]

# The gate draws the same examples in every run. `make nightly` draws new ones and prints the seed.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=500, print_blob=True)
settings.load_profile("gate")


SHARED = ("spark", "smoke_suite", "kafka")
"""Marks and fixtures of what a run starts once; tests that need the same one run on the same worker."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests for xdist: by the first of SHARED that they need, otherwise by file."""
    for item in items:
        needs = {mark.name for mark in item.iter_markers()} | set(getattr(item, "fixturenames", ()))
        group = next((name for name in SHARED if name in needs), item.nodeid.partition("::")[0])
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """End a run by groups if xdist does not see them: it distributes by the group that it appends to each id."""
    if node.config.getoption("dist") == "loadgroup" and not all("@" in item_id.rpartition("]")[2] for item_id in ids):
        raise pytest.UsageError("xdist does not group the tests; this version of pytest needs another version of it")
