from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.server import serve
from tests.integration.services.udsource.client import SourceClient

MakeSettings = Callable[..., UdsourceSettings]
StartSource = Callable[..., AbstractAsyncContextManager[SourceClient]]


@pytest.fixture
def make_settings(kafka: str) -> MakeSettings:
    """Return a function that makes settings for a topic, on a free port and without sockets."""

    def make(topic: str, **more: Any) -> UdsourceSettings:
        given = {
            "kafka": kafka,
            "group": f"group-{topic}",
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "socket": None,
        }
        return UdsourceSettings(topic=topic, **{**given, "drain_seconds": 5.0, **more})

    return make


@pytest.fixture
def start_source(make_settings: MakeSettings) -> StartSource:
    """Return a function that serves a topic during a block and connects to it."""

    @asynccontextmanager
    async def start(topic: str, *, unix: bool = False, **more: Any) -> AsyncIterator[SourceClient]:
        settings = make_settings(topic, **more)
        async with serve(settings) as running:
            client = SourceClient(f"unix:{settings.socket}" if unix else running.address)
            async with client.channel:
                yield client

    return start


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "source.sock"
