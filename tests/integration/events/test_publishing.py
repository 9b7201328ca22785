"""Checks 2, 4, 13, 14 and 21 for publishers that do not speak ZMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from dexorder.events import gateway_client
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.fakes.mesh_proxy import RepeatingProxy, ResettingProxy
from tests.integration.events.container import CRITICAL, INFORMATIONAL, PATIENCE_S, event
from tests.integration.events.rig import Rig, publisher
from tests.integration.events.sessions import bearer

WEB = given.WEB


async def test_a_call_is_answered_with_the_state_now(rig: Rig) -> None:
    user = rig.user()
    sent = event(user, f"c-{user}", CRITICAL, [WEB])
    other = event(user, f"c-{user}", CRITICAL, [WEB], payload=b'{"order_id":"8"}')
    async with publisher(rig) as stub, rig.container() as container:

        async def told(each: given.UserEvent) -> given.EventAck:
            answer = await stub.Publish(pb.PublishRequest(event=each), timeout=PATIENCE_S)
            ack: given.EventAck = answer.ack
            assert ack.event_id == each.event_id
            return ack

        assert (await told(event(user, f"i-{user}", INFORMATIONAL))).error_message == "no active session"
        assert (await told(event(user, f"b-{user}", CRITICAL, [WEB], payload=b"{"))).error_message == "invalid payload"
        for _ in range(2):
            assert (await told(sent)).status == given.QUEUED
        assert (await told(other)).error_message == "event_id reused"
        async with rig.session(user) as session:
            assert (await session.take()).event.event_id == sent.event_id
            await rig.until_status("local", sent.event_id, given.DELIVERED)
        assert (await told(sent)).delivered_via == WEB
        await container.hears_nothing()
    assert len(await rig.records(user)) == 1


async def test_a_stream_hears_of_the_end_of_its_events(rig: Rig) -> None:
    user, count = rig.user(), 20
    sent = [event(user, f"c-{user}-{number}", CRITICAL, [WEB]) for number in range(count)]
    done = asyncio.Event()

    async def requests() -> AsyncIterator[pb.PublishManyRequest]:
        for each in sent:
            yield pb.PublishManyRequest(event=each)
        await done.wait()

    async with publisher(rig) as stub, rig.session(user, "native") as session:
        stream = stub.PublishMany(requests(), timeout=PATIENCE_S)
        told: list[tuple[str, int]] = []
        taking = asyncio.gather(*(session.take() for _ in sent))
        async for answer in stream:
            told.append((answer.ack.event_id, answer.ack.status))
            if len(told) == 2 * count:
                done.set()
        await taking
    assert sorted(told) == sorted((each.event_id, s) for each in sent for s in (given.QUEUED, given.DELIVERED))
    for each in sent:
        assert told.index((each.event_id, given.QUEUED)) < told.index((each.event_id, given.DELIVERED))


async def test_an_event_whose_answer_is_lost_is_one(rig: Rig) -> None:
    user, proxy = rig.user(), RepeatingProxy(rig.gateway.address, marks=False)
    sent = [event(user, f"{user}-{number}", CRITICAL, [WEB]) for number in range(3)]
    async with (
        proxy.listening() as address,
        grpc.aio.insecure_channel(address) as channel,
        rig.session(user) as session,
    ):
        stub = rpc.EventPublisherServiceStub(channel)
        for each in sent:
            proxy.lost = 1
            answer = await stub.Publish(pb.PublishRequest(event=each), timeout=PATIENCE_S)
            assert answer.ack.event_id == each.event_id and answer.ack.status in (given.QUEUED, given.DELIVERED)
        assert len(proxy.answers) == 2 * len(sent)
        assert [(await session.take()).event.event_id for _ in sent] == [each.event_id for each in sent]
    assert len(await rig.records(user)) == len(sent)


async def test_acks_contacts_and_presence_whose_answers_are_lost_count_once(rig: Rig) -> None:
    user, proxy = rig.user(), RepeatingProxy(rig.gateway.address, marks=False)
    proxy.loses_all = True
    async with (
        proxy.listening() as address,
        grpc.aio.insecure_channel(address) as channel,
        rig.container() as container,
    ):
        mine: Any = {"metadata": bearer(rig.token(user)), "timeout": PATIENCE_S}
        contacts: Any = rpc.ContactServiceStub(channel)
        await contacts.SetContacts(pb.SetContactsRequest(contacts=pb.Contacts(email=f"{user}@example.com")), **mine)
        assert (await rig.contacts(user)).email == f"{user}@example.com"
        presence = pb.ReportPresenceRequest(user_id=user, channel=given.TELEGRAM, active_seconds=60)
        await contacts.ReportPresence(presence, timeout=PATIENCE_S)
        sent = event(user, f"c-{user}", CRITICAL, [WEB])
        async with rig.session(user, "native") as session:
            await container.queued(sent)
            place = session.place(await session.next())
            acks: Any = rpc.EventServiceStub(channel)
            await acks.AckEvent(pb.AckEventRequest(cursor=place, kind=pb.ACK_KIND_RECEIVED), **mine)
            assert len(proxy.answers) == 6, "each call was made twice"
            assert (await container.told(sent)).status == given.DELIVERED
            await container.hears_nothing()
            await session.hears_nothing()
    (record,) = await rig.records(user)
    assert record.status == given.DELIVERED and len(record.attempts) == 1


async def test_a_stream_that_a_proxy_resets_is_opened_again_for_the_same_event(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "FIRST_PAUSE_SECONDS", 0.01)
    user, proxy = rig.user(), ResettingProxy(int(rig.gateway.address.rpartition(":")[2]))
    sent = event(user, f"c-{user}", CRITICAL, [WEB])
    proxy.after = [1, 1]

    async def receive() -> None:
        while proxy.resets < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with rig.session(user) as session:
            assert (await session.take()).event.event_id == sent.event_id
            await session.hears_nothing()

    async with proxy.listening(0) as port, asyncio.timeout(PATIENCE_S):
        receiving = asyncio.create_task(receive())
        told = [ack.status async for ack in gateway_client.publish(f"127.0.0.1:{port}", sent)]
        await receiving
    assert told in ([given.QUEUED, given.DELIVERED], [given.DELIVERED]), "a reset may drop the message before it"
    assert len(await rig.records(user)) == 1
