"""Checks 20-22: unknown values, and messages that are not events."""

from __future__ import annotations

import asyncio

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, INFORMATIONAL, PATIENCE_S, USER_EVENT, VERSION, event
from tests.integration.events.rig import Rig

TELEGRAM, EMAIL, WEB = given.TELEGRAM, given.EMAIL, given.WEB
MAX_PAYLOAD, MAX_FRAME = 65_536, 262_144


async def test_20_an_unknown_type_is_delivered_as_text(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    async with rig.container() as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [TELEGRAM], event_type=99, payload=b'{"a":"b<c"}'))
        assert await container.delivered(sent) == TELEGRAM
    (call,) = rig.provider_servers.telegram.calls(user)
    assert "b&lt;c" in call.text, call.text


async def test_20_an_unknown_channel_is_skipped(rig: Rig) -> None:
    await rig.reachable(user := rig.user())
    async with rig.container(name := rig.name()) as container:
        await container.queued(sent := event(user, "c-1", CRITICAL, [42, EMAIL]))
        assert await container.delivered(sent) == EMAIL
        await container.send(only := event(user, "c-2", CRITICAL, [42, 43]))
        assert await container.failed(only) == "no usable channel"
        await container.hears_nothing()
    assert await rig.record(name, "c-2") is None


async def test_20_no_channels_are_the_session_then_the_user_s_own(rig: Rig) -> None:
    user = rig.user()
    await rig.reachable(user, channel_order=[given.SLACK, TELEGRAM])
    rig.provider_servers.slack.plan(user, 404)
    async with rig.container() as container:
        async with rig.session(user) as session:
            await container.queued(sent := event(user, "c-1"))
            await session.take()
            assert await container.delivered(sent) == WEB
        assert rig.provider_servers.order(user) == []
        await container.queued(sent := event(user, "c-2"))
        assert await container.delivered(sent) == TELEGRAM
    assert rig.provider_servers.order(user) == ["slack", "telegram"]


@pytest.mark.parametrize("payload", [b"{", b'{"a":' * 33 + b"1" + b"}" * 33], ids=["not JSON", "too deep"])
async def test_21_a_bad_payload_is_refused_at_once(rig: Rig, payload: bytes) -> None:
    async with rig.container(name := rig.name()) as container:
        await container.send(sent := event(rig.user(), "c-1", CRITICAL, [WEB], payload=payload))
        assert await container.failed(sent) == "invalid payload"
        await container.hears_nothing(0.02)
    assert await rig.record(name, "c-1") is None


async def test_21_what_lacks_a_field_is_refused(rig: Rig) -> None:
    async with rig.container(name := rig.name()) as container:
        for field in ("user_id", "delivery", "event_id"):
            sent = event(rig.user(), "c-1", CRITICAL, [WEB])
            sent.ClearField(field)
            await container.send(sent)
            assert await container.failed(sent) == f"{field} is missing"
        await container.hears_nothing()
    assert await rig.record(name, "c-1") is None


async def test_21_undecodable_bytes_are_refused_and_counted(rig: Rig) -> None:
    async with rig.container() as container:
        for body in (b"\x20\x0a\xff", b"\x20\x0a\x02\xff\xfe", b"\x20" + b"\xff" * 20, b"\x21", b""):
            before = rig.gateway.dropped()
            await container.send_raw(VERSION, body)
            ack = await container.ack()
            assert (ack.status, ack.event_id, ack.error_message) == (given.ACK_ERROR, "", "the event does not parse")
            assert rig.gateway.dropped() == before + 1
        await container.send_raw(VERSION, USER_EVENT)  # no bytes parse as an event without any field
        ack = await container.ack()
        assert ack.status == given.ACK_ERROR and not ack.event_id


async def test_22_a_payload_of_64_kib_and_one_byte_is_too_large(rig: Rig) -> None:
    user = rig.user()

    def padded(size: int) -> bytes:
        return b'{"message":"' + b"x" * (size - 14) + b'"}'

    async with rig.container(name := rig.name()) as container:
        await container.send(sent := event(user, "c-1", CRITICAL, [WEB], payload=padded(MAX_PAYLOAD + 1)))
        assert await container.failed(sent) == "payload too large"
        assert await rig.record(name, "c-1") is None
        await container.queued(fits := event(user, "c-2", CRITICAL, [WEB], payload=padded(MAX_PAYLOAD)))
        async with rig.session(user) as session:
            assert (await session.take()).event.payload == fits.payload
            await container.delivered(fits)
            await container.send(told := event(user, "i-1", INFORMATIONAL, payload=padded(MAX_PAYLOAD + 1)))
            assert await container.failed(told) == "payload too large"
            await container.subscribed(user)
            large = event(user, "i-2", INFORMATIONAL, payload=padded(MAX_PAYLOAD + 1))
            await container.publish(large, event(user, "i-3", INFORMATIONAL))
            assert (await session.next()).event.event_id == "i-3"


async def test_22_a_frame_above_the_limit_costs_the_connection(rig: Rig) -> None:
    async with rig.container(name := rig.name()) as container, rig.container() as bystander:
        await container.queued(event(rig.user(), "c-1", CRITICAL, [WEB]))
        watch = container.sure.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        await container.send(event(rig.user(), "c-2", CRITICAL, [WEB], payload=b"1" * MAX_FRAME))
        cut = await asyncio.wait_for(recv_monitor_message(watch), PATIENCE_S)
        assert cut["event"] == zmq.EVENT_DISCONNECTED
        container.sure.disable_monitor()
        await container.queued(event(rig.user(), "c-3", CRITICAL, [WEB]))  # it reconnected
        await bystander.queued(event(rig.user(), "c-1", CRITICAL, [WEB]))
        await container.hears_nothing()
    assert await rig.record(name, "c-2") is None


async def test_22_other_frame_counts_are_dropped_and_counted(rig: Rig) -> None:
    body = USER_EVENT + event(rig.user(), "c-1", CRITICAL, [WEB]).SerializeToString()
    async with rig.container(name := rig.name()) as container:
        before = rig.gateway.dropped()
        for frames in ([VERSION, body, b""], [VERSION, body, b"", b""], [body], [b"\x02", body]):
            await container.send_raw(*frames)
        await container.queued(event(rig.user(), "c-2", CRITICAL, [WEB]))
        await container.hears_nothing()
        assert rig.gateway.dropped() == before + 4
    assert await rig.record(name, "c-1") is None
