"""The plugin that test_contract.py uses."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Load pytest-grpc, which imports gRPC, for these tests only."""
    config.pluginmanager.import_plugin("pytest_grpc.plugin")
