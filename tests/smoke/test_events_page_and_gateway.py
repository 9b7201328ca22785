"""Events page in a real Chromium at a real gateway that is killed, with events of a container over ZMQ."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.browser import Browser
from tests.integration.events.container import CRITICAL, event, until
from tests.integration.events.provider_servers import ProviderServers
from tests.integration.events.rig import make_rig
from tests.smoke.events_page import CONNECTION, opened

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(240)]
KEYS = "[...document.querySelectorAll('.card')].map(e => JSON.parse(e.dataset.key))"


async def test_kill_loses_and_repeats_nothing_on_the_page(
    tmp_path: Path, provider_servers: ProviderServers, chromium: Browser
) -> None:
    rig = make_rig(tmp_path, provider_servers)
    user, name = rig.user(), rig.name()
    shown, racing, waiting, later = (
        event(user, event_id, CRITICAL, [given.WEB]) for event_id in ("shown", "racing", "waiting", "later")
    )
    with rig.gateway as gateway:
        async with (
            rig.container(name) as container,
            opened(f"http://{gateway.web}/", chromium, rig.token(user)) as page,
        ):
            await page.until(f"{CONNECTION} === 'Live'")
            await container.queued(shown)
            assert await container.delivered(shown) == given.WEB, "the page has acknowledged it"
            assert await page.until(f"{KEYS}.length && {KEYS}") == [[name, "shown"]]
            await container.queued(racing)
            gateway.kill()  # the page may or may not have the event, and its ack may or may not have arrived

            await page.until(f"{CONNECTION} === 'Connection lost'")
            sending = asyncio.create_task(container.send(waiting))
            await asyncio.sleep(0.5)
            assert not sending.done(), "nothing accepts it"
            gateway.start()
            await sending
            await page.until(f"{CONNECTION} === 'Live'")
            await container.send(later)
            expected = [[name, each.event_id] for each in (later, waiting, racing, shown)]
            await page.until(f"{KEYS}.length >= {len(expected)}")
            for each in (shown, racing, waiting, later):
                record = await rig.until_status(name, each.event_id, given.DELIVERED)
                assert record.delivered_via == given.WEB and not record.seen_ms
            assert await page.evaluate(KEYS) == expected
            received = [json.loads(said)["ack"]["cursor"] for said in page.sent if "ACK_KIND_RECEIVED" in said]
            assert len({cursor["sequence"] for cursor in received}) == len(expected)

            async def seen() -> bool:
                record = await rig.record(name, "later")
                return record is not None and record.seen_ms > 0

            await page.click(".card .seen-button")
            await until(seen)
            assert all("WebSocket connection" in complaint for complaint in page.complaints), page.complaints
            assert await page.evaluate(KEYS) == expected
        assert gateway.running.lives, gateway.tail()
    assert rig.leaked() == []
