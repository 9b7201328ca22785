"""One gateway with short waits for all the fast checks; its debug log must hold no secret at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.events.outside import Outside
from tests.events.rig import Rig, make_rig

SESSION_ACK_S, TTL_S, RETRY_S, DIGEST_S = 0.3, 2.5, 0.1, 0.5
SHORT = {
    "session_ack_seconds": SESSION_ACK_S, "normal_ttl_seconds": TTL_S, "retry_base_seconds": RETRY_S,
    "retry_most_seconds": 0.4, "digest_seconds": DIGEST_S, "channel_tries": 2,
}  # fmt: skip


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    """The providers of all tests."""
    with Outside() as running:
        yield running


@pytest.fixture(scope="session")
def rig(outside: Outside, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A gateway with short waits."""
    made = make_rig(tmp_path_factory.mktemp("events"), outside, **SHORT)
    with made.gateway:
        yield made
        assert made.gateway.running.lives, made.gateway.tail()
    assert made.leaked() == []


@pytest.fixture
def own(outside: Outside, tmp_path: Path) -> Iterator[Rig]:
    """A gateway of the test's own with short waits; not started."""
    made = make_rig(tmp_path, outside, **SHORT)
    yield made
    made.gateway.kill()
    assert made.leaked() == []


@pytest.fixture
def patient(outside: Outside, tmp_path: Path) -> Iterator[Rig]:
    """A gateway with the settings it has by default."""
    made = make_rig(tmp_path, outside)
    with made.gateway:
        yield made
    assert made.leaked() == []
