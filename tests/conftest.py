"""Fixtures every test can use."""

pytest_plugins = ["tests.fixtures_kafka", "tests.fixtures_spark"]
