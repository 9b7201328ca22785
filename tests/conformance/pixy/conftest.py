"""Gateways as processes, for the tests that signal them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway_process import GatewayProcess, StartProcess
from tests.gateway_thread import GatewayThread
from tests.unit.services.common.rpc.native import NEEDS_MODULE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module with ``BOTH_TRANSPORTS`` once on each, where they use the shared gateway."""
    if getattr(metafunc.module, "BOTH_TRANSPORTS", False) and "shared_gateway" in metafunc.fixturenames:
        native = pytest.param("native", marks=NEEDS_MODULE)
        metafunc.parametrize("shared_gateway", ["grpcio", native], indirect=True, scope="module")


@pytest.fixture(scope="module")
def shared_gateway(kafka: str, request: pytest.FixtureRequest) -> Iterator[GatewayThread]:
    """Run one gateway for all tests of a module."""
    given = {"transport": request.param} if hasattr(request, "param") else {}
    started = GatewayThread(kafka=kafka, drain_seconds=0.0, long_polling_timeout_ms=500, **given).wait_ready()
    yield started
    started.stop()


@pytest.fixture
def start_process(kafka: str, tmp_path: Path) -> Iterator[StartProcess]:
    """Return a function that starts gateways; those that still run at the end of the test are killed."""
    count = itertools.count()
    with ExitStack() as stack:

        def start(**given: Any) -> GatewayProcess:
            folder = tmp_path / f"gateway-{next(count)}"
            return stack.enter_context(GatewayProcess(folder, **{"kafka": kafka, **given}))

        yield start
