"""All channels with the fakes of all providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dexorder_gateway.events.channels.registry import ChannelRegistry, open_channels
from dexorder_gateway.events.config import EventsSettings
from tests.fakes.events.providers import Providers
from tests.unit.services.gateway.events.samples import PATIENCE_S


@pytest.fixture
async def providers() -> AsyncIterator[Providers]:
    async with Providers() as providers:
        yield providers


@pytest.fixture
async def settings(
    request: pytest.FixtureRequest, providers: Providers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> EventsSettings:
    for name, value in providers.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return EventsSettings(send_timeout_seconds=getattr(request, "param", PATIENCE_S))


@pytest.fixture
async def all_channels(settings: EventsSettings) -> AsyncIterator[ChannelRegistry]:
    async with open_channels(settings) as channels:
        yield channels


@pytest.fixture
async def channels(settings: EventsSettings) -> AsyncIterator[ChannelRegistry]:
    """Without phones: checking the account's RSA key takes longer than most of these tests."""
    async with open_channels(settings.model_copy(update={"fcm_credentials": None})) as channels:
        yield channels
