"""One gateway with short timeouts for all fast checks; its debug log must contain no secret at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import Rig, make_rig

SESSION_ACK_S, RETRY_S, DIGEST_S = 0.3, 0.1, 0.5
SHORT = {
    "session_ack_seconds": SESSION_ACK_S,
    "retry_base_seconds": RETRY_S,
    "retry_max_seconds": 0.4,
    "digest_seconds": DIGEST_S,
    "channel_attempts": 2,
}
QUOTAS = {
    "soft": {"soft_events_per_second": 5, "hard_events_per_second": 1_000},
    "hard": {"soft_events_per_second": 5, "hard_events_per_second": 10},
    "few": {"queued_events": 3},
}
"""Containers with small quotas."""


@pytest.fixture(scope="session")
def provider_servers() -> Iterator[ProviderServers]:
    """Run the providers of all tests."""
    with ProviderServers() as running:
        yield running


@pytest.fixture(scope="session")
def rig(provider_servers: ProviderServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Run a gateway with short timeouts."""
    made = make_rig(tmp_path_factory.mktemp("events"), provider_servers, **SHORT)
    for name, quota in QUOTAS.items():
        made.keys.container(name, quota=quota)
    made.keys.write()
    with made.gateway:
        yield made
        assert made.gateway.running.lives, made.gateway.tail()
    assert made.leaked() == []


@pytest.fixture
def own(provider_servers: ProviderServers, tmp_path: Path) -> Iterator[Rig]:
    """Return a gateway of this test with short timeouts, not started."""
    made = make_rig(tmp_path, provider_servers, **SHORT)
    yield made
    made.gateway.kill()
    assert made.leaked() == []
