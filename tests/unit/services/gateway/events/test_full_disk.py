"""Full disk of the events: calls are refused, nothing answered is lost, and the gateway goes on when it has space."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import zmq
import zmq.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_common.messaging.frames import decode_ack, encode_event
from dexorder_common.storage import durable_sqlite
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events import service
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.sessions import user_tokens
from dexorder_gateway.events.store import outbox
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.rig.processes import free_ports

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SETTINGS = GatewaySettings(listen="127.0.0.1:0", metrics_listen="", kafka="", topics="", drain_seconds=0.1)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Disk:
    """SQLite's own limit of pages, which gives SQLITE_FULL as ENOSPC does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_space = False
        open_durable, write = durable_sqlite.open_durable, outbox.EventOutbox.write

        def small(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = open_durable(*args, **options)
            connection.execute("PRAGMA max_page_count = 60")
            return connection

        def with_space(opened: outbox.EventOutbox, *args: Any) -> None:
            if self.has_space:
                opened._db.execute("PRAGMA max_page_count = 1000000")
            write(opened, *args)

        monkeypatch.setattr(outbox, "open_durable", small)
        monkeypatch.setattr(outbox.EventOutbox, "write", with_space)
        monkeypatch.setattr(durable_sqlite, "SPACE_SECONDS", 0.02)


def event(number: int) -> given.UserEvent:
    delivery = given.DeliverySpec(priority=given.CRITICAL)
    return given.UserEvent(user_id="ann", event_id=f"e{number}", payload=b'"%s"' % (b"x" * 2_000), delivery=delivery)


def events_settings(folder: Path) -> EventsSettings:
    sub, router = free_ports(2)
    sockets = {"sub": f"tcp://127.0.0.1:{sub}", "router": f"tcp://127.0.0.1:{router}"}
    return EventsSettings(db=folder / "events.db", web_listen="", **sockets)  # type: ignore[arg-type]


def publishing(channel: grpc.aio.Channel) -> Callable[[int], Awaitable[int]]:
    """Return what publishes the event of a number, and returns the status of its ack."""
    publisher: Any = rpc.EventPublisherServiceStub(channel)

    async def publish(number: int) -> int:
        answer = await publisher.Publish(pb.PublishRequest(event=event(number)), timeout=30)
        return int(answer.ack.status)

    return publish


async def until_refused(publish: Callable[[int], Awaitable[int]], first: int) -> tuple[int, grpc.aio.AioRpcError]:
    """Publish until it is refused; return the number that was, and the refusal."""
    for number in range(first, first + 1_000):
        try:
            assert await publish(number) == given.QUEUED
        except grpc.aio.AioRpcError as refusal:
            return number, refusal
    raise AssertionError("the disk never got full")


async def health_is(health: Any, status: Any) -> None:
    async for each in health:
        if each.status == status:
            return


async def test_a_full_disk_refuses_events_until_it_has_space_and_loses_none_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    events = events_settings(tmp_path)
    with structlog.testing.capture_logs() as logs, zmq.asyncio.Context() as context:
        async with gateway(SETTINGS, events) as running, grpc.aio.insecure_channel(running.address) as channel:
            publisher: Any = rpc.EventPublisherServiceStub(channel)

            publish = publishing(channel)
            full_at, refusal = await until_refused(publish, 0)
            assert full_at > 10 and refusal.code() is EXHAUSTED and "the disk of the gateway's events" in str(refusal)
            health: Any = health_pb2_grpc.HealthStub(channel)
            states = [health.Watch(health_pb2.HealthCheckRequest(service=each)) for each in ("", *service.NAMES)]
            for each in states:
                await health_is(each, NOT_SERVING)
            contacts: Any = rpc.ContactServiceStub(channel)
            presence = pb.ReportPresenceRequest(user_id="ann", channel=given.TELEGRAM, active_seconds=5)
            for call in (
                publisher.Publish(pb.PublishRequest(event=event(0)), timeout=30),
                contacts.SetContacts(pb.SetContactsRequest(user_id="ann", contacts=pb.Contacts()), timeout=30),
                contacts.GetContacts(pb.GetContactsRequest(user_id="ann"), timeout=30),
                contacts.ReportPresence(presence, timeout=30),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is EXHAUSTED
            stream = publisher.PublishMany()
            await stream.write(pb.PublishManyRequest(event=event(1_001)))
            assert await stream.code() is EXHAUSTED
            with context.socket(zmq.DEALER) as dealer:
                dealer.connect(events.router)
                await dealer.send_multipart(encode_event(event(1_000)))
                assert not await dealer.poll(200), "it is not told QUEUED before it is on disk"
                disk.has_space = True
                for each in states:
                    await health_is(each, SERVING)
                ack = decode_ack(await dealer.recv_multipart())
                assert (ack.event_id, ack.status) == ("e1000", given.QUEUED)
            known = [await publish(number) for number in range(full_at + 1)]
            assert known == [given.QUEUED] * (full_at + 1), "each repeat is answered, and is no second event"
            log: Any = rpc.EventLogServiceStub(channel)
            listed = await log.ListEvents(pb.ListEventsRequest(page_size=1_000), timeout=30)
            assert len(listed.records) == full_at + 2
    said = [each["event"] for each in logs if "disk" in each["event"]]
    assert [text.split(";")[0] for text in said] == ["the disk of the events is full", "the disk has space again"]
    assert not [each for each in logs if each["log_level"] == "error" and each["event"] not in said]


async def test_open_sessions_go_on_while_the_disk_is_full_and_acks_and_new_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    user_tokens.make_keys(tmp_path / "jwt", "test")
    settings = events_settings(tmp_path).model_copy(update={"jwt_keys": tmp_path / "jwt"})
    token = user_tokens.sign(tmp_path / "jwt" / "test.key", "bob", seconds=600)
    metadata = (("authorization", f"Bearer {token}"),)
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as container:
        container.setsockopt(zmq.LINGER, 0)
        container.connect(settings.sub)
        async with gateway(SETTINGS, settings) as running, grpc.aio.insecure_channel(running.address) as channel:
            events: Any = rpc.EventServiceStub(channel)
            session = events.WatchEvents(pb.WatchEventsRequest(), metadata=metadata)
            opened = (await session.read()).opened.cursor
            await until_refused(publishing(channel), 0)
            subscription = await container.recv()
            assert subscription[:1] == b"\x01"
            informational = given.DeliverySpec(priority=given.INFORMATIONAL)
            shown = given.UserEvent(user_id="bob", event_id="quick", payload=b"1", delivery=informational)
            await container.send_multipart([subscription[1:], *encode_event(shown)])
            async with asyncio.timeout(20):
                while (await session.read()).event.event.event_id != "quick":  # 5570 needs no disk
                    pass
            ack = pb.AckEventRequest(cursor=pb.Cursor(epoch=opened.epoch, sequence=1), kind=pb.ACK_KIND_RECEIVED)
            another = events.WatchEvents(pb.WatchEventsRequest(), metadata=metadata, timeout=30)
            for call in (events.AckEvent(ack, metadata=metadata, timeout=30), another.read()):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is EXHAUSTED
            disk.has_space = True
            health: Any = health_pb2_grpc.HealthStub(channel)
            await health_is(health.Watch(health_pb2.HealthCheckRequest(service="")), SERVING)
            await events.AckEvent(ack, metadata=metadata, timeout=30)
            session.cancel()


async def test_a_gateway_ends_on_a_full_disk_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch)
    settings = events_settings(tmp_path)
    async with gateway(SETTINGS, settings) as running, grpc.aio.insecure_channel(running.address) as channel:
        full_at, _ = await until_refused(publishing(channel), 0)
    stored = sqlite3.connect(tmp_path / "events.db").execute("SELECT count(*) FROM events").fetchone()
    assert stored == (full_at,)
