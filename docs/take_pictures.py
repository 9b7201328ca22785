"""Screenshots of the events page for the README: ``PYTHONPATH=. python docs/take_pictures.py``.

It needs Chromium, which it installs as the tests do, and Debian's fonts-inter. Debian's pngquant makes the files small:
``pngquant --force --ext .png docs/images/events*.png``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.channels.rendering import render
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import AttemptRow
from dexorder_gateway.events.sessions import user_tokens
from dexorder_gateway.events.sessions.registry import SessionMetrics, SessionRegistry
from dexorder_gateway.events.sessions.web_server import web_server
from dexorder_gateway.events.sessions.websocket import SessionBackend
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.browser import browser
from tests.fakes.events.dispatcher import FakeDispatcher

PICTURE = Path(__file__).with_name("images") / "events.png"
NOW_NS = time.time_ns()
WIDTH, HEIGHT, SCALE = 1440, 860, 1.25
PHONE = (390, 780)
Attempts = tuple[tuple[Channel, float, str], ...]
ON_THE_PAGE: Attempts = ((Channel.WEB, 0.041, "received"),)


@dataclass(frozen=True)
class Scene:
    """Event on the page: its age in seconds, type and payload, and each attempt of a channel with its seconds."""

    ago: float
    event_type: pb.EventType.ValueType
    payload: dict[str, str]
    attempts: Attempts = ON_THE_PAGE
    priority: pb.Priority.ValueType = pb.NORMAL
    status: Status = Status.DELIVERED
    error: str = ""
    container: str = "alice-bot"
    seen: bool = True


def order(symbol: str, side: str, quantity: str, price: str, **more: str) -> dict[str, str]:
    """Return the payload of an order."""
    return {"symbol": symbol, "exchange": "binance", "side": side, "quantity": quantity, "price": price, **more}


SCENES = (
    Scene(
        9_310,
        pb.BACKTEST_COMPLETED,
        {
            "strategy_name": "Mean reversion",
            "symbol": "BTC/USDT",
            "timeframe": "1h",
            "total_pnl": "12904.11",
            "total_trades": "412",
            "win_rate": "0.578",
            "max_drawdown": "0.094",
            "sharpe_ratio": "1.87",
        },
        container="research",
    ),
    Scene(7_420, pb.CONTAINER_READY, {}),
    Scene(5_105, pb.ORDER_PLACED, order("SOL/USDT", "buy", "40", "178.20", order_type="limit")),
    Scene(
        3_911,
        pb.ALERT_TRIGGERED,
        {
            "symbol": "SOL/USDT",
            "condition": "price above 182.00",
            "triggered_price": "182.14",
        },
        ((Channel.WEB, 5.0, "no ack"), (Channel.TELEGRAM, 0.312, "sent")),
    ),
    Scene(
        2_350,
        pb.ORDER_REJECTED,
        order(
            "DOGE/USDT",
            "sell",
            "150000",
            "0.1290",
            error_message="insufficient balance",
        ),
    ),
    Scene(
        1_204,
        pb.STRATEGY_ERROR,
        {
            "strategy_name": "Grid ETH",
            "message": "the exchange refused the balance call 3 times; paused",
            "log_level": "error",
        },
        (
            (Channel.WEB, 5.0, "no ack"),
            (Channel.TELEGRAM, 0.204, "too many requests"),
            (Channel.TELEGRAM, 0.287, "sent"),
        ),
        pb.CRITICAL,
    ),
    Scene(
        655,
        pb.POSITION_OPENED,
        {
            "symbol": "ETH/USDT",
            "exchange": "binance",
            "side": "long",
            "size": "12.5",
            "entry_price": "3214.80",
            "leverage": "3",
            "liquidation_price": "2189.40",
        },
    ),
    Scene(
        402,
        pb.ORDER_EXPIRED,
        order("ADA/USDT", "buy", "20000", "0.4410"),
        ((Channel.TELEGRAM, 0.118, "blocked by the user"), (Channel.EMAIL, 0.402, "no such address")),
        status=Status.ERROR,
        error="TELEGRAM: blocked by the user; EMAIL: no such address",
    ),
    Scene(
        96,
        pb.ORDER_FILLED,
        order("BTC/USDT", "buy", "0.25", "64210.50", order_type="limit", fill_price="64209.80", fill_quantity="0.25"),
        seen=False,
    ),
    Scene(
        11,
        pb.POSITION_LIQUIDATED,
        {
            "symbol": "DOGE/USDT",
            "exchange": "binance",
            "side": "long",
            "size": "120000",
            "entry_price": "0.1413",
            "current_price": "0.1221",
            "realized_pnl": "-2304.77",
            "leverage": "10",
        },
        ((Channel.WEB, 5.0, "no ack"), (Channel.TELEGRAM, 0.251, "sent")),
        pb.CRITICAL,
        seen=False,
    ),
)


def add_event(dispatcher: FakeDispatcher, scene: Scene, number: int) -> None:
    """Put the event into the fake dispatcher."""
    at_ms = NOW_NS // 1_000_000 - int(scene.ago * 1000)
    event = pb.UserEvent(
        user_id="alice",
        event_id=f"{scene.container}-{7040 + number}",
        timestamp=at_ms,
        event_type=scene.event_type,
        payload=json.dumps(scene.payload).encode(),
        delivery=pb.DeliverySpec(priority=scene.priority),
    )
    dispatcher.keep("alice", event.event_id, body=event.SerializeToString(), container=scene.container)


def add_attempts(dispatcher: FakeDispatcher, scene: Scene, number: int) -> None:
    """Put the delivery attempts of the event into its record."""
    kept = dispatcher.users["alice"][number]
    accepted = NOW_NS - int(scene.ago * 1e9)
    now, rows = accepted, []
    for index, (channel, seconds, outcome) in enumerate(scene.attempts):
        ended = now + int(seconds * 1e9)
        retry = ended + 3_000_000_000 if outcome == "too many requests" else None
        rows.append(AttemptRow(kept.record.key, index + 1, channel, now, ended, outcome, retry))
        now = retry or ended + 1_000_000
    delivered = scene.status is Status.DELIVERED
    kept.record = replace(
        kept.record,
        status=scene.status,
        via=scene.attempts[-1][0] if delivered else None,
        error=scene.error,
        accepted_ns=accepted,
        completed_ns=now,
        attempts=tuple(rows),
        seen_ns=now if scene.seen else None,
    )


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[tuple[str, FakeDispatcher, str]]:
    """Serve the page; yield its URL, the fake dispatcher behind it, and a token."""
    user_tokens.make_keys(folder, "desk")
    settings = EventsSettings(web_listen="127.0.0.1:0", jwt_keys=folder)
    dispatcher, metrics = FakeDispatcher(), SessionMetrics(CollectorRegistry())
    dispatcher.sessions = SessionRegistry(dispatcher, partial(render, link_url=""), settings, metrics)
    async with web_server(
        settings, SessionBackend(dispatcher.sessions, dispatcher, user_tokens.TokenVerifier(settings), metrics)
    ) as address:
        yield f"http://{address}/", dispatcher, user_tokens.sign(folder / "desk.key", "alice")


async def main(picture: Path) -> None:
    """Take the screenshot."""
    with tempfile.TemporaryDirectory() as folder:
        async with site(Path(folder)) as (url, dispatcher, token), browser() as chromium:
            for number, scene in enumerate(SCENES):
                add_event(dispatcher, scene, number)
            page = await chromium.page()
            await page.screen(WIDTH, HEIGHT, dark=True, scale=SCALE)
            await page.goto(url)
            await page.fill("#token", token)
            await page.click("#sign-in-submit")
            await page.until(f"document.querySelectorAll('.card').length === {len(SCENES)}")
            await asyncio.sleep(1.0)  # the acks have arrived
            for number, scene in enumerate(SCENES):
                add_attempts(dispatcher, scene, number)
            await page.click("#log-refresh")
            await page.until("document.querySelector('.record li:nth-child(2)') !== null")
            await page.click(".row-button")
            await asyncio.sleep(1.0)  # animations have ended
            await page.picture(picture)
            await page.screen(*PHONE, dark=False, phone=True)
            await asyncio.sleep(1.0)
            await page.picture(picture.with_name("events-phone.png"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
