"""Events page in a real Chromium: content for its user, and messages to the gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.delivery.changes import AttemptRow
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.browser import Browser
from tests.fakes.events.sessions_gateway import Served, served
from tests.fakes.tcp_proxy import TcpProxy
from tests.rig.processes import free_ports
from tests.smoke.events_page import CARDS, CONNECTION, opened, sign_in

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(240)]
HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


class Silent(TcpProxy):
    """TCP proxy that passes all bytes on, or none while ``talks`` is not set, like an unplugged machine."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.talks = asyncio.Event()
        self.talks.set()

    async def answer(self, data: bytes, client: asyncio.StreamWriter) -> bool:
        await self.talks.wait()
        return await super().answer(data, client)

    async def _pass_questions(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self.talks.wait()
            server.write(data)


class Site:
    """Events page behind a port that can be closed, as when the gateway is killed."""

    def __init__(self, gateway: Served, port: int) -> None:
        self.gateway = gateway
        self.dispatcher = gateway.dispatcher
        self.proxy = Silent(int(gateway.web.rpartition(":")[2]))
        self.url = f"http://127.0.0.1:{port}/"
        self._port = port
        self._up = AsyncExitStack()

    async def up(self) -> None:
        await self._up.enter_async_context(self.proxy.listening(self._port))

    async def down(self) -> None:
        await self._up.aclose()

    def publish(self, *numbers: int, priority: given.Priority.ValueType = given.NORMAL, payload: str = "{}") -> None:
        for number in numbers:
            event = given.UserEvent(
                user_id="alice",
                event_id=f"event-{number}",
                event_type=given.ALERT_TRIGGERED,
                payload=payload.encode(),
                timestamp=time.time_ns() // 1_000_000,
                delivery=given.DeliverySpec(priority=priority),
            )
            self.dispatcher.keep("alice", event.event_id, body=event.SerializeToString(), container="alice-bot")

    def inform(self, event_id: str) -> None:
        """Send an event on the fast path, where it is not stored."""
        event = given.UserEvent(user_id="alice", event_id=event_id, delivery=given.DeliverySpec())
        self.dispatcher.inform("alice", event.SerializeToString())

    def seen(self) -> list[int]:
        return [kept.show.sequence for kept in self.dispatcher.users["alice"] if kept.record.seen_ns]


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    (port,) = free_ports(1)
    async with served(tmp_path) as gateway:
        running = Site(gateway, port)
        await running.up()
        yield running
        await running.down()


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.02)


def test_page_has_no_unsafe_source() -> None:
    """The sources never turn text into markup or code, and use nothing that the Content-Security-Policy refuses."""
    folder = Path("services/gateway/dexorder_gateway/events/page")
    for file in folder.iterdir():
        text = file.read_text()
        for unsafe in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            " style=",
            'onclick="',
        ):
            assert unsafe not in text, (file.name, unsafe)


async def test_user_signs_in_and_sees_events(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, site: Site, chromium: Browser
) -> None:
    caplog.set_level(logging.DEBUG)
    token = site.gateway.token("alice")
    async with opened(site.url, chromium, token[:-8] + "AAAAAAAA") as page:
        problem = await page.until("document.querySelector('#sign-in-problem').innerText")
        assert "signature" in problem or "token" in problem
        assert await page.evaluate(CONNECTION) == "Refused"
        await sign_in(page, token)
        await page.until(f"{CONNECTION} === 'Live' && !document.querySelector('dialog').open")
        assert await page.text("#user") == "alice"

        site.publish(1, payload=json.dumps({"symbol": HOSTILE}))
        site.publish(2, priority=given.CRITICAL)
        await page.until(f"{CARDS}.length === 2")
        assert await page.evaluate(CARDS) == ["event-2!", "event-1!"]
        assert HOSTILE in await page.evaluate("document.querySelector('.card:last-child').textContent")
        assert await page.evaluate("document.querySelectorAll('.card img, .card script').length") == 0
        await until(lambda: site.dispatcher.delivered("alice") == [1, 2])

        await until(lambda: site.seen() == [1])  # visible for some seconds
        await asyncio.sleep(1)
        assert site.seen() == [1], "what is critical wants a click"
        await page.click(".card[data-priority=CRITICAL] .seen-button")
        await until(lambda: site.seen() == [1, 2])
        await page.until("document.querySelector('#unseen-count').textContent === '0'")

        site.inform("for whoever looks")
        await page.until(f"{CARDS}[0] === 'for whoever looks!'")
        assert await page.evaluate(
            "document.querySelector('.card .seen-button').closest('.card') === "
            "document.querySelector('.card:nth-child(2)')"
        ), "it takes no ack"

        assert await page.evaluate("window.hacked") is None
        assert await page.unnamed_controls() == []
        assert page.complaints == []
        assert page.urls and not any("eyJ" in url for url in [*page.urls, await page.evaluate("location.href")])
    logged = capsys.readouterr().out + caplog.text
    assert "page and WebSocket" in logged and not any(part in logged for part in token.split("."))


async def test_page_survives_a_restart_of_the_gateway(site: Site, chromium: Browser) -> None:
    async with opened(site.url, chromium, site.gateway.token("alice")) as page:
        await page.until(f"{CONNECTION} === 'Live'")
        site.publish(*range(1, 41))
        await page.until(f"{CARDS}.length === 40")
        await site.down()
        await page.until(f"{CONNECTION} === 'Connection lost' && !document.querySelector('#lost').hidden")
        await page.click(".card:last-child .seen-button")  # the gateway does not receive it yet
        site.publish(*range(41, 101))
        await asyncio.sleep(1.5)
        await site.up()
        await page.until(f"{CONNECTION} === 'Live' && {CARDS}.length >= 100")
        everything = [f"event-{number}!" for number in range(100, 0, -1)]
        assert await page.evaluate(CARDS) == everything
        await until(lambda: site.dispatcher.delivered("alice") == list(range(1, 101)) and 1 in site.seen())
        received = [said for said in page.sent if "ACK_KIND_RECEIVED" in said]
        assert len(received) == 100, "the replay brought nothing that was there"

        await asyncio.sleep(0.5)  # the tab stores its state
        await page.goto(site.url)
        await page.until(f"{CONNECTION} === 'Live' && {CARDS}.length >= 100")
        site.publish(101)
        await page.until(f"{CARDS}.length > 100")
        assert await page.evaluate(CARDS) == ["event-101!", *everything]
        assert len([said for said in page.sent if "ACK_KIND_RECEIVED" in said]) == 101

        site.dispatcher.epoch = "another log"
        await site.down()
        await site.up()
        await page.until(f"{CONNECTION} === 'Live'")
        site.publish(102)
        await page.until(f"{CARDS}[0] === 'event-102!'")
        assert await page.evaluate(CARDS) == ["event-102!", "event-101!", *everything]
        assert await page.evaluate("document.querySelector('.card:last-child').className") == "card seen"
        places = [json.loads(said)["authorize"]["cursor"] for said in page.sent if "authorize" in said]
        assert places == [None, *({"epoch": "e1", "sequence": last} for last in (40, 100, 101))]
        assert all("WebSocket connection" in complaint for complaint in page.complaints), page.complaints


@pytest.mark.nightly
async def test_silent_gateway_is_detected(site: Site, chromium: Browser) -> None:
    async with opened(site.url, chromium, site.gateway.token("alice")) as page:
        await page.until(f"{CONNECTION} === 'Live'")
        site.proxy.talks.clear()
        await page.until(f"{CONNECTION} !== 'Live'", seconds=45)
        site.proxy.talks.set()
        site.publish(1)
        await page.until(f"{CONNECTION} === 'Live' && {CARDS}.length === 1")


async def test_session_is_renewed_and_ends(site: Site, chromium: Browser) -> None:
    async with opened(site.url, chromium, site.gateway.token("alice", 8)) as page:
        await page.until(f"{CONNECTION} === 'Live'")
        began = time.monotonic()
        await page.click("#renew-soon")
        await sign_in(page, site.gateway.token("bob"))
        assert "bob" in await page.until("document.querySelector('#sign-in-problem').innerText")
        await sign_in(page, "no token")
        assert "token" in await page.until(
            "document.querySelector('#sign-in-title').innerText.includes('not accepted')"
            " && document.querySelector('#sign-in-problem').innerText"
        )
        await page.until(f"{CONNECTION} === 'Live'")  # with the previous token
        await sign_in(page, site.gateway.token("alice", 12))
        await page.until("!document.querySelector('dialog').open")
        opens = site.dispatcher.calls.count(("opened", "alice"))
        await asyncio.sleep(max(0.0, began + 9 - time.monotonic()))
        assert await page.evaluate(CONNECTION) == "Live", "the first token's time is over, the second's is not"
        assert site.dispatcher.calls.count(("opened", "alice")) == opens

        problem = await page.until(
            "document.querySelector('dialog').open && document.querySelector('#sign-in-problem').innerText"
        )
        assert "expired" in problem
        site.publish(1)
        await sign_in(page, site.gateway.token("alice"))
        await page.until(f"{CONNECTION} === 'Live' && {CARDS}.length === 1")
        await page.click("#sign-out")
        await page.until(f"{CARDS}.length === 0 && document.querySelector('dialog').open")
        await asyncio.sleep(0.5)
        assert await page.evaluate("sessionStorage.length") == 0


async def test_deliveries_show_every_attempt(site: Site, chromium: Browser) -> None:
    site.publish(*range(1, 46))
    escalate(site, 45)
    async with opened(site.url, chromium, site.gateway.token("alice")) as page:
        rows = "document.querySelectorAll('.record').length"
        await page.until(f"{rows} === 20")
        first = await page.text(".record")
        assert "Delivered · Telegram" in first and "6.00 s" in first
        ways = "[...document.querySelector('.record .ways').querySelectorAll('li')].map(e => e.textContent)"
        assert await page.evaluate(ways) == ["Web no ack", "Telegram rate limited", "Telegram sent"]
        await page.click(".row-button")
        attempts = await page.text(".attempts")
        assert (
            "event-45" in attempts and "alice-bot" in attempts and "rate limited" in attempts and "5.00 s" in attempts
        )
        for _ in range(2):
            before = await page.evaluate("document.querySelector('#log-page').textContent")
            await page.click("#log-older")
            await page.until(f"document.querySelector('#log-page').textContent !== '{before}'")
        await page.until(f"{rows} === 5")
        await page.click("#log-newer")
        await page.until(f"{rows} === 20 && document.querySelector('#log-page').textContent === 'Page 2'")


def escalate(site: Site, number: int) -> None:
    """Add attempts: a session without an ack, and Telegram with a Retry-After."""
    kept = site.dispatcher.users["alice"][number - 1]
    start, key, s = kept.record.accepted_ns, kept.record.key, 1_000_000_000
    attempts = (
        AttemptRow(key, 1, Channel.WEB, start, start + 5 * s, "no ack"),
        AttemptRow(key, 2, Channel.TELEGRAM, start + 5 * s, start + 5 * s + s // 10, "rate limited", start + 6 * s),
        AttemptRow(key, 3, Channel.TELEGRAM, start + 6 * s, start + 6 * s, "sent"),
    )
    kept.record = replace(
        kept.record, status=Status.DELIVERED, via=Channel.TELEGRAM, completed_ns=start + 6 * s, attempts=attempts
    )
