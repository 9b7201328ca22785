"""What the tests of channels send."""

from __future__ import annotations

from services.gateway.events.model import Message, Priority

MESSAGE = Message("0123456789abcdef0123456789abcdef", "Order filled", "Market: BTC/USDT", Priority.CRITICAL, 1)
NASTY = '<b>1 & 2</b> &amp; <!channel> <@123> @everyone *a* _b_ `c` ~d~ ||e|| [f](https://x.test/_g_) \\ "q"'


def message(title: str = MESSAGE.title, body: str = MESSAGE.body, priority: Priority = MESSAGE.priority) -> Message:
    return Message(MESSAGE.reference, title, body, priority, MESSAGE.timestamp_ms)
