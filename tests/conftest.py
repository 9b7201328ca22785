"""Fixtures every test can use, and who shares a worker with whom where there are several."""

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fixtures_gateway", "tests.fixtures_kafka", "tests.fixtures_spark"]

# A slow machine is no failure.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that need Kafka on one worker, all that need Spark on one, so that there is one of each; others by file."""
    for item in items:
        needs = {mark.name for mark in item.iter_markers()} | set(getattr(item, "fixturenames", ()))
        group = next((name for name in ("spark", "kafka") if name in needs), item.nodeid.partition("::")[0])
        item.add_marker(pytest.mark.xdist_group(group))
