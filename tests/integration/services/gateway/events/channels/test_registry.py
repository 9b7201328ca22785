"""Channels follow from the settings, and only those that are turned on load their libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dexorder_common.config import BadSettings
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import ChannelRegistry, open_channels
from dexorder_gateway.events.config import EventsSettings
from tests.fakes.events.contacts import contacts_with

_WITHOUT = """
import asyncio, sys
from dexorder_gateway.events.channels.registry import open_channels
from dexorder_gateway.events.config import EventsSettings
import dexorder_gateway.events.dispatcher.sender, dexorder_gateway.events.channels.rendering

async def main():
    async with open_channels(EventsSettings()) as channels:
        print(sorted(channel.name for channel in channels))

asyncio.run(main())
print([name for name in ("firebase_admin", "google.auth", "pywebpush", "py_vapid", "aiosmtplib", "requests")
       if name in sys.modules])
"""


def test_without_their_settings_channels_are_off_and_their_libraries_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['DISCORD', 'SLACK']", "[]"]


def test_settings_of_all_channels_are_read_without_an_http_client() -> None:
    """A gateway of Kafka alone and the command import them."""
    code = "import sys, dexorder_gateway.events.config; print([n for n in ('aiohttp', 'yarl') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_all_channels(all_channels: ChannelRegistry) -> None:
    assert set(all_channels) == set(Channel) - {Channel.ACTIVE_SESSION, Channel.WEB}
    assert ChannelRegistry().reachable(Channel.TELEGRAM, contacts_with(telegram_chat_id="1")) == "not configured"


@pytest.mark.parametrize("name", ["vapid_key", "fcm_credentials"])
@pytest.mark.parametrize("text", [None, "", "{}", '{"type": "service_account"}', "-----BEGIN PRIVATE KEY-----\nAAAA\n"])
async def test_an_unusable_file_is_reported_with_its_variable(name: str, text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadSettings, match=f"DEXORDER_EVENTS_{name.upper()}"):
        async with open_channels(EventsSettings.model_validate({name: path})):
            pass
