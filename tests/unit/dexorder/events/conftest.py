from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.zmq_gateway import PATIENCE_MS, Container, Gateway


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.close()


@pytest.fixture
def container(gateway: Gateway, tmp_path: Path) -> Iterator[Container]:
    with ExitStack() as closing:
        yield Container(gateway, tmp_path / "outbox.db", closing)


@pytest.fixture
def until(gateway: Gateway) -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds."""

    def wait(so: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_MS / 1_000
        while not so():
            assert time.monotonic() < end, "it never came to be"
            gateway.tick()
            time.sleep(0.005)

    return wait
