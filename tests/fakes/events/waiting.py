"""Waiting for what a fake notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def filled(noted: Sequence[object], count: int, seconds: float) -> None:
    """Wait until the list has that many entries; a `TimeoutError` if it does not get them."""
    async with asyncio.timeout(seconds):
        while len(noted) < count:  # noqa: ASYNC110 - any list of a fake will do, and none of them tells
            await asyncio.sleep(0.002)
