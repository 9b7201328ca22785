"""Messages of the channels' tests."""

from __future__ import annotations

import pytest

from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.model import EventMessage

MESSAGE = EventMessage("0123456789abcdef0123456789abcdef", "Order filled", "Market: BTC/USDT", Priority.CRITICAL, 1)
PATIENCE_S, HASTE_S = 30.0, 1.0
"""Time limit of a send: more than a busy machine needs, and the limit where a provider is silent, see `SILENCE`."""
SILENCE = pytest.mark.parametrize("settings", [HASTE_S], indirect=True)
NASTY = '<b>1 & 2</b> &amp; <!channel> <@123> @everyone *a* _b_ `c` ~d~ ||e|| [f](https://x.test/_g_) \\ "q"'


def message(
    title: str = MESSAGE.title, body: str = MESSAGE.body, priority: Priority = MESSAGE.priority
) -> EventMessage:
    return EventMessage(MESSAGE.reference, title, body, priority, MESSAGE.timestamp_ms)
