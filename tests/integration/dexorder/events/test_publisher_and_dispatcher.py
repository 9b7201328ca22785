"""The publisher with the gateway's own dispatcher, encrypted as in production."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dexorder.events import AsyncPublisher, Channel, FinalStatus, Outcome
from dexorder_common.messaging.curve import make_keys, read_public_key
from dexorder_gateway.events.delivery.changes import SendRequest
from dexorder_gateway.events.dispatcher.dispatcher import EventDispatcher
from dexorder_gateway.events.model import Sent
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.dispatcher_stage import Heard, running, until

PAYLOAD = {"order_id": "17"}


class Providers(Heard):
    """Providers that accept everything."""

    dispatcher: EventDispatcher

    def send(self, sends: Sequence[SendRequest]) -> None:
        super().send(sends)
        for each in sends:
            self.dispatcher.finished(each.key, each.number, Sent())


@asynccontextmanager
async def dispatcher(folder: Path, outside: Providers, **settings: Any) -> AsyncIterator[EventDispatcher]:
    async with running(folder, outside, **settings) as stage:
        outside.dispatcher = stage.dispatcher
        await stage.dispatcher.set_contacts("alice", contacts_with(telegram_chat_id="7"))
        yield stage.dispatcher


async def test_an_event_of_each_kind_over_curve(tmp_path: Path) -> None:
    make_keys(tmp_path, "gateway")
    public, _ = make_keys(tmp_path, "bot")
    make_keys(tmp_path, "stranger")
    file = tmp_path / "containers.yaml"
    file.write_text(
        f"containers:\n  - {{container: alice-bot, curve: {read_public_key(public).decode()!r}, users: [alice]}}\n"
    )
    outside = Providers()
    curve = {"curve_key": tmp_path / "gateway.key_secret", "containers": file}
    async with dispatcher(tmp_path, outside, **curve) as gateway:
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
    assert [each.key.event_id for each in outside.sends] == [critical]


@pytest.mark.smoke  # the publisher tries again after 2 s
async def test_a_container_whose_key_is_let_in_later_gets_through(tmp_path: Path) -> None:
    make_keys(tmp_path, "gateway")
    public, _ = make_keys(tmp_path, "bot")
    file, outside = tmp_path / "containers.yaml", Providers()
    file.write_text("containers: []\n")
    async with dispatcher(tmp_path, outside, curve_key=tmp_path / "gateway.key_secret", containers=file) as gateway:
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
    assert [each.key.event_id for each in outside.sends] == [let_in]


@pytest.mark.smoke  # a reconnect takes as long as the gateway is away
async def test_a_restarted_gateway_continues_and_reports_the_outcome(tmp_path: Path) -> None:
    first, second = Providers(), Providers()
    async with dispatcher(tmp_path, first) as gateway:
        way: dict[str, Any] = {"fast": gateway.sub_address, "guaranteed": gateway.router_address}
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
