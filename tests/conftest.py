"""Fixtures every test can use."""

from hypothesis import settings

pytest_plugins = ["tests.fixtures_gateway", "tests.fixtures_kafka", "tests.fixtures_spark"]

# A slow machine is no failure.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
