"""Checks 1-4, 6 and 25: events for open sessions."""

from __future__ import annotations

import pytest

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, INFORMATIONAL, NORMAL, event
from tests.integration.events.rig import KINDS, Rig

WEB, ACTIVE_SESSION, TELEGRAM = given.WEB, given.ACTIVE_SESSION, given.TELEGRAM
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
async def test_01_informational_reaches_an_open_session_once_and_is_not_acked(rig: Rig, kind: str) -> None:
    user, sent = rig.user(), event("", "i-1", INFORMATIONAL)
    sent.user_id = user
    async with rig.container(name := rig.name()) as container, rig.session(user, kind) as session:
        await container.subscribed(user)
        await container.publish(sent)
        heard = await session.next()
        assert (heard.sequence, heard.container, heard.event.event_id) == (0, name, "i-1")
        assert heard.event == sent
        assert heard.title
        await session.hears_nothing()
        await container.hears_nothing()
    assert await rig.record(name, "i-1") is None


async def test_02_informational_without_a_session_goes_nowhere(rig: Rig) -> None:
    user = rig.user()
    async with rig.container(name := rig.name()) as container, rig.session(other := rig.user()):
        await container.subscribed(other)  # 5570 is connected
        await container.sees_no_subscription(user)
        await container.publish(event(user, "i-1", INFORMATIONAL))
        misrouted = event(user, "i-2", INFORMATIONAL)
        await container.send(misrouted)
        assert await container.failed(misrouted) == "no active session"
        assert await rig.record(name, "i-1") is None and await rig.record(name, "i-2") is None
        async with rig.session(user) as session:
            await session.hears_nothing()


async def test_03_normal_goes_the_fast_way_as_long_as_somebody_is_there(rig: Rig) -> None:
    user = rig.user()
    async with rig.container() as container:
        async with rig.session(user) as session, rig.session(user, "native") as other:
            await container.subscribed(user)
            await container.publish(event(user, "n-1", NORMAL))
            for each in (session, other):
                assert (await each.next()).event.event_id == "n-1"
            await container.hears_nothing()
        await container.subscribed(user, wanted=False)
        await container.queued(event(user, "n-2", NORMAL, [WEB]))


@kinds
async def test_04_normal_waits_for_a_client(rig: Rig, kind: str) -> None:
    user = rig.user()
    async with rig.container() as container:
        await container.queued(sent := event(user, "n-1", NORMAL, [WEB]))
        await container.hears_nothing()
        async with rig.session(user, kind) as session:
            assert (await session.take()).event.event_id == "n-1"
            assert await container.delivered(sent) == WEB
        await container.hears_nothing()


@kinds
async def test_06_critical_that_a_client_receives_goes_nowhere_else(rig: Rig, kind: str) -> None:
    await rig.reachable(user := rig.user())
    async with rig.container() as container, rig.session(user, kind) as session:
        sent = event(user, "c-1", CRITICAL, [ACTIVE_SESSION, TELEGRAM])
        await container.queued(sent)
        await session.take()
        assert await container.delivered(sent) == WEB, "the concrete channel"
        await session.hears_nothing(0.5)
    assert rig.provider_servers.telegram.calls(user) == []


async def test_06_critical_is_received_by_one_of_many_clients_once(rig: Rig) -> None:
    user = rig.user()
    async with rig.container(name := rig.name()) as container, rig.session(user) as one, rig.session(user) as two:
        await container.queued(sent := event(user, "c-1", CRITICAL, [ACTIVE_SESSION]))
        heard = await one.take()
        assert await container.delivered(sent) == WEB
        await two.take()
        await two.ack(two.place(heard), pb.ACK_KIND_SEEN)
        await two.ack(two.place(heard), pb.ACK_KIND_SEEN)
        await container.hears_nothing()
    record = await rig.record(name, "c-1")
    assert record is not None and record.seen_ms and record.status == given.DELIVERED


COUNT, CUT = 100, 40


@kinds
async def test_25_a_client_resumes_without_gap_or_repeat(rig: Rig, kind: str) -> None:
    user = rig.user()
    sent = [event(user, f"c-{number}", CRITICAL, [WEB]) for number in range(COUNT)]
    async with rig.container(name := rig.name()) as container:
        async with rig.session(user, kind) as session:
            await container.send(*sent)
            heard = [await session.next() for _ in range(CUT)]
            await session.ack(session.place(heard[0]))
        cursor = session.place(heard[-1])
        async with rig.session(user, kind, cursor) as session:
            assert not session.reset and session.opened.cursor == cursor
            heard += [await session.take() for _ in range(COUNT - CUT)]
            assert [each.event.event_id for each in heard] == [each.event_id for each in sent]
            assert [each.sequence for each in heard] == sorted({each.sequence for each in heard})
            acks = [await container.ack() for _ in range(2 * COUNT)]
            await session.hears_nothing()
        await container.hears_nothing()
    told = [(ack.event_id, ack.status) for ack in acks]
    assert sorted(told) == sorted((each.event_id, s) for each in sent for s in (given.QUEUED, given.DELIVERED))
    assert {record.delivered_via for record in await rig.settled(name, sent)} == {WEB}


@kinds
async def test_25_a_cursor_of_another_epoch_is_reset(rig: Rig, kind: str) -> None:
    user = rig.user()
    async with rig.container() as container:
        await container.queued(event(user, "c-1", CRITICAL, [WEB]))
        async with rig.session(user, kind, pb.Cursor(epoch="of another file", sequence=700)) as session:
            assert session.reset and session.opened.cursor.epoch != "of another file"
            assert (await session.take()).event.event_id == "c-1"
        cursor = session.opened.cursor
        async with rig.session(user, kind, pb.Cursor(epoch=cursor.epoch, sequence=0)) as again:
            replayed = await again.next()
            assert replayed.event.event_id == "c-1" and replayed.settled and not again.reset
