"""Gateways as processes, for the tests that signal them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway_process import GatewayProcess, StartProcess


@pytest.fixture
def start_process(kafka: str, tmp_path: Path) -> Iterator[StartProcess]:
    """Return a function that starts gateways; those that still run at the end of the test are killed."""
    count = itertools.count()
    with ExitStack() as stack:

        def start(**given: Any) -> GatewayProcess:
            folder = tmp_path / f"gateway-{next(count)}"
            return stack.enter_context(GatewayProcess(folder, **{"kafka": kafka, **given}))

        yield start
