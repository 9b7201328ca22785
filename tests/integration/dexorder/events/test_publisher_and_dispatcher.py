"""The publisher with the gateway's own dispatcher, encrypted as in production."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dexorder.events import AsyncPublisher, Channel, FinalStatus, Outcome
from dexorder_common.messaging.curve import make_keys, read_public_key
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import SendRequest, SessionEvent
from dexorder_gateway.events.dispatcher.dispatcher import EventDispatcher
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.start import open_dispatcher
from dexorder_gateway.events.model import Contacts, Event, EventMessage, Sent, TransientEvent

PAYLOAD = {"order_id": "17"}


class Outside:
    """Providers that accept everything, and sessions that only observe."""

    def __init__(self) -> None:
        self.dispatcher: EventDispatcher | None = None
        self.informed: list[TransientEvent] = []
        self.sent: list[str] = []

    def send(self, sends: Sequence[SendRequest]) -> None:
        for each in sends:
            self.sent.append(each.key.event_id)
            assert self.dispatcher
            self.dispatcher.finished(each.key, each.number, Sent())

    def show(self, shows: Sequence[SessionEvent]) -> None:
        pass

    def inform(self, informed: Sequence[TransientEvent]) -> None:
        self.informed += informed


def render(event: Event) -> EventMessage:
    return EventMessage("0" * 32, "title", "body", event.priority, event.timestamp_ms)


def settings(folder: Path, **more: Any) -> EventsSettings:
    given: dict[str, Any] = {
        "db": folder / "events.db",
        "sub": "tcp://127.0.0.1:0",
        "router": "tcp://127.0.0.1:0",
        "web_listen": "",
    }
    return EventsSettings(**given | more)


def dispatcher(folder: Path, outside: Outside, **more: Any) -> Any:
    def reachable(channel: Channel, contacts: Contacts) -> str:
        return ""

    metrics = DispatcherMetrics(CollectorRegistry())
    return open_dispatcher(settings(folder, **more), outside, metrics, render=render, reachable=reachable)


async def until(so: Any) -> None:
    async with asyncio.timeout(60):
        while not so():  # noqa: ASYNC110 - sockets tell no event of ours
            await asyncio.sleep(0.01)


async def test_an_event_of_each_kind_over_curve(tmp_path: Path) -> None:
    make_keys(tmp_path, "gateway")
    public, _ = make_keys(tmp_path, "bot")
    make_keys(tmp_path, "stranger")
    file = tmp_path / "containers.yaml"
    file.write_text(
        f"containers:\n  - {{container: alice-bot, curve: {read_public_key(public).decode()!r}, users: [alice]}}\n"
    )
    outside = Outside()
    curve = {"curve_key": tmp_path / "gateway.key_secret", "containers": file}
    async with dispatcher(tmp_path, outside, **curve) as gateway:
        outside.dispatcher = gateway
        way: dict[str, Any] = {"fast": gateway.sub_address, "guaranteed": gateway.router_address}
        way |= {"curve_server": tmp_path / "gateway.key"}
        bot = await AsyncPublisher.open(outbox=tmp_path / "o.db", curve_key=tmp_path / "bot.key_secret", **way)
        async with bot:
            critical = await bot.publish("alice", "ORDER_FILLED", PAYLOAD, "CRITICAL", ["TELEGRAM"])
            assert await bot.outcome(critical) == Outcome(critical, FinalStatus.DELIVERED, Channel.TELEGRAM)
            foreign = await bot.publish("bob", "ORDER_FILLED", PAYLOAD, "CRITICAL")
            assert await bot.outcome(foreign) == Outcome(foreign, FinalStatus.ERROR, error="user not owned")
            gateway.session_opened("alice")
            await until(lambda: bot.subscribed("alice"))
            shown = [await bot.publish("alice", 0, PAYLOAD, kind) for kind in ("INFORMATIONAL", "NORMAL")]
            await until(lambda: len(outside.informed) == 2)
            assert [each.container for each in outside.informed] == ["alice-bot"] * 2
            assert (await bot.outcome(shown[1])).status is FinalStatus.SENT
        other = await AsyncPublisher.open(outbox=tmp_path / "p.db", curve_key=tmp_path / "stranger.key_secret", **way)
        async with other:
            await other.publish("alice", "ORDER_FILLED", PAYLOAD, "CRITICAL", ["TELEGRAM"])
            assert not await other.flush(0.5) and not other.publisher.connected
    assert outside.sent == [critical]


@pytest.mark.smoke  # the publisher tries again after 2 s
async def test_a_container_whose_key_is_let_in_later_gets_through(tmp_path: Path) -> None:
    make_keys(tmp_path, "gateway")
    public, _ = make_keys(tmp_path, "bot")
    file, outside = tmp_path / "containers.yaml", Outside()
    file.write_text("containers: []\n")
    async with dispatcher(tmp_path, outside, curve_key=tmp_path / "gateway.key_secret", containers=file) as gateway:
        outside.dispatcher = gateway
        bot = await AsyncPublisher.open(
            outbox=tmp_path / "o.db",
            fast=gateway.sub_address,
            guaranteed=gateway.router_address,
            curve_key=tmp_path / "bot.key_secret",
            curve_server=tmp_path / "gateway.key",
        )
        async with bot:
            let_in = await bot.publish("alice", "ORDER_FILLED", PAYLOAD, "CRITICAL", ["TELEGRAM"])
            assert not await bot.flush(0.5)
            key = read_public_key(public).decode()
            file.write_text(f"containers:\n  - {{container: alice-bot, curve: {key!r}, users: [alice]}}\n")
            assert await bot.flush(30)
            file.write_text("containers: []\n")  # removed, though the connection is there
            removed = await bot.publish("alice", "ORDER_FILLED", PAYLOAD, "CRITICAL", ["TELEGRAM"])
            outcome = bot.publisher.outcome(removed)
            # The gateway answers, or closes the connection first; then the event waits for another key in the file.
            await until(lambda: outcome.done() or not bot.publisher.connected)
            if outcome.done():
                assert outcome.result() == Outcome(removed, FinalStatus.ERROR, error="user not owned")
            else:
                assert not await bot.flush(0.5)
    assert outside.sent == [let_in]


@pytest.mark.smoke  # a reconnect takes as long as the gateway is away
async def test_a_restarted_gateway_continues_and_reports_the_outcome(tmp_path: Path) -> None:
    first, second = Outside(), Outside()
    async with dispatcher(tmp_path, first) as gateway:
        way = {"fast": gateway.sub_address, "guaranteed": gateway.router_address}
        queued: list[str] = []
        bot = await AsyncPublisher.open(outbox=tmp_path / "o.db", on_queued=queued.append, **way)
        event_id = await bot.publish("alice", "ORDER_FILLED", PAYLOAD, "CRITICAL", ["ACTIVE_SESSION"])
        await until(lambda: queued == [event_id])
    async with dispatcher(tmp_path, second, sub=way["fast"], router=way["guaranteed"]) as gateway:
        gateway.session_opened("alice")
        replay = await gateway.replay("alice", None)
        (show,) = replay.events
        await until(lambda: bot.publisher.connected)
        await gateway.acked("alice", replay.epoch, show.sequence, seen=False)
        assert await bot.outcome(event_id) == Outcome(event_id, FinalStatus.DELIVERED, Channel.WEB)
        await bot.close()
