"""Dispatcher over real sockets: malformed and hostile peers, acks after the commit, stop, failure and restart."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from dexorder_common.config import BadSettings
from dexorder_common.messaging.frames import decode_ack, encode_event
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.model.user_events import Channel, Priority, Status
from dexorder_gateway.events.ingress import unsent_acks
from dexorder_gateway.events.ingress.containers import LOCAL
from dexorder_gateway.events.model import Ack, EventKey, Sent
from dexorder_gateway.events.store.event_log import EventQuery
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.dispatcher_stage import LOOPBACK, Peer, Stage, peer, running, until
from tests.rig.events_gateway import Keys
from tests.unit.services.gateway.events.samples import body, user_event

QUEUED = Ack("e1", Status.QUEUED)
DELIVERED = Ack("e1", Status.DELIVERED, via=Channel.WEB)
CRITICAL = user_event(priority=Priority.CRITICAL)


async def receive_first(stage: Stage) -> None:
    """Ack the oldest event that waits for alice."""
    replay = await stage.dispatcher.replay("alice", None)
    await stage.dispatcher.acked("alice", replay.epoch, replay.events[0].sequence, seen=False)


async def test_event_goes_from_container_to_session_and_back(tmp_path: Path) -> None:
    async with running(tmp_path) as stage, peer(stage) as container:
        await container.send(CRITICAL)
        assert await container.ack() == QUEUED
        with sqlite3.connect(tmp_path / "events.db") as db:  # an ack means that it is committed
            assert db.execute("SELECT event_id, status FROM events").fetchall() == [("e1", 1)]
        db.close()
        stage.dispatcher.session_opened("alice")
        replay = await stage.dispatcher.replay("alice", None)
        (waiting,) = replay.events
        assert (waiting.event.body, waiting.settled) == (CRITICAL.SerializeToString(), False)
        assert (replay.sequence, replay.reset) == (0, False), "the position before the first event"
        assert [s.sequence for s in stage.heard.session_events] == [waiting.sequence]
        await stage.dispatcher.acked("alice", replay.epoch, waiting.sequence, seen=True)
        assert await container.ack() == DELIVERED
        with pytest.raises(InvalidRequest):
            await stage.dispatcher.acked("alice", "another", 1, seen=True)
        assert (await stage.dispatcher.replay("alice", Cursor(replay.epoch, waiting.sequence))).events == ()
        again = await stage.dispatcher.replay("alice", Cursor("another", 1))
        assert (again.reset, again.sequence, [s.settled for s in again.events]) == (True, 0, [True])
        record = await stage.dispatcher.record(EventKey("local", "e1"))
        assert record is not None and record.seen_ns and record.status is Status.DELIVERED
        assert (await stage.dispatcher.records(EventQuery())).records == (record,)


async def test_hundreds_in_flight_share_commits_and_each_gets_its_ack(tmp_path: Path) -> None:
    async with running(tmp_path, hard_events_per_second=1e6) as stage, peer(stage) as container:
        ids = [f"e{n}" for n in range(600)]
        await container.send(*(user_event(each, priority=Priority.CRITICAL) for each in ids))
        assert [await container.ack() for _ in ids] == [Ack(each, Status.QUEUED) for each in ids]
        assert stage.value("_commit_seconds_count") < 300
        assert stage.value("_batch_size_sum") == 600 == stage.value("s_queued")


async def test_connection_under_a_routing_id_of_its_own_choice_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A second one under the same id would take over the first one's acks, or never be read and never be freed."""
    async with running(tmp_path) as stage, peer(stage) as honest:
        with zmq.asyncio.Context() as context:
            for number in range(1, 4):
                dealer = context.socket(zmq.DEALER)
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.setsockopt(zmq.ROUTING_ID, b"bot")
                dealer.connect(stage.dispatcher.router_address)
                await dealer.send_multipart(encode_event(CRITICAL))
                answer = decode_ack(await asyncio.wait_for(dealer.recv_multipart(), 30))
                assert (answer.event_id, answer.error_message) == ("", "connect without a routing id")
                assert stage.dropped("routing_id") == number
            await honest.send(CRITICAL)
            assert await honest.ack() == QUEUED
            context.destroy(0)


async def test_fast_path_opens_and_closes_with_the_sessions(tmp_path: Path) -> None:
    async with running(tmp_path) as stage, peer(stage) as container:
        stage.dispatcher.session_opened("a")
        assert await container.subscription() == b"\x01USER:a\x00"
        await container.publish(user_event("i1", "a", 0), user_event("i2", "alice", 0), user_event("i3", "a", 1))
        await until(lambda: len(stage.heard.informed) >= 2)
        assert [(i.user_id, i.container) for i in stage.heard.informed] == [("a", "local")] * 2
        stage.dispatcher.session_closed("a")
        assert await container.subscription() == b"\x00USER:a\x00"
        await container.send(user_event("i4", "a", 0))
        assert await container.ack() == Ack("i4", Status.ERROR, "no active session")
        assert stage.value("s_informed_total") == 2


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "frame_count"),
        ([b"\x01"], "frame_count"),
        ([b"\x01", b"\x20", b"", b""], "frame_count"),
        ([b"\x01"] * 200, "frame_count"),
        ([b"\x02", b"\x20"], "version"),
    ],
)
async def test_malformed_message_is_dropped_and_counted(tmp_path: Path, frames: list[bytes], reason: str) -> None:
    async with running(tmp_path) as stage, peer(stage) as container:
        if frames:
            await container.dealer.send_multipart(frames)
            await until(lambda: stage.dropped(reason) == 1)
        stage.dispatcher.session_opened("alice")
        await container.subscription()
        await container.xpub.send_multipart([b"USER:alice\x00", *frames])
        await until(lambda: stage.dropped(reason) == 1 + bool(frames))
        await container.send(CRITICAL)
        assert await container.ack() == QUEUED


@pytest.mark.smoke  # takes some seconds until the buffers of a peer that does not read are full
async def test_acks_to_a_disconnected_or_slow_container_affect_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsent_acks, "MAX_ACKS", 500)
    async with running(tmp_path) as stage:
        async with peer(stage) as gone:
            await gone.send(CRITICAL)
            assert await gone.ack() == QUEUED
        async with peer(stage, RCVHWM=1, RCVBUF=4096) as deaf, peer(stage) as honest:
            stage.dispatcher.session_opened("alice")
            await until(lambda: stage.heard.session_events)
            await receive_first(stage)
            await until(lambda: stage.dropped("container_gone") == 1)
            bad = user_event("x" * 250, priority=Priority.CRITICAL, payload=b"nope")
            while not stage.dropped("container_full"):
                await deaf.send(*[bad] * 500)
            await honest.send(CRITICAL)
            assert await honest.ack() == DELIVERED


async def test_grpc_publisher_is_answered_in_the_event_loop_now_and_at_the_end(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        answers: list[Ack] = []
        await stage.dispatcher.set_contacts("alice", contacts := contacts_with(telegram_chat_id="7"))
        stage.dispatcher.publish(LOCAL, CRITICAL.SerializeToString(), answers.append)
        await until(lambda: stage.heard.sends)
        assert answers == [QUEUED]
        send = stage.heard.sends[0]
        assert (
            (send.channel, send.contacts)
            == (Channel.TELEGRAM, contacts)
            == (
                send.channel,
                await stage.dispatcher.contacts("alice"),
            )
        )
        stage.dispatcher.finished(send.key, send.number, Sent())
        await until(lambda: len(answers) == 2)
        assert answers[1] == Ack("e1", Status.DELIVERED, via=Channel.TELEGRAM)


async def test_presence_is_stored_and_continues_an_event(tmp_path: Path) -> None:
    async with running(tmp_path) as stage:
        await stage.dispatcher.set_contacts("alice", contacts_with(telegram_chat_id="7"))
        event = body(priority=Priority.CRITICAL, channels=[(Channel.TELEGRAM, True)])
        stage.dispatcher.publish(LOCAL, event, lambda ack: None)
        await stage.dispatcher.contacts("alice")
        assert stage.heard.sends == []
        stage.dispatcher.user_active("alice", Channel.TELEGRAM, 2**62)
        await until(lambda: stage.heard.sends)
    async with running(tmp_path) as stage:
        await until(lambda: stage.heard.sends)  # the call was under way, and alice is still active


async def test_stop_takes_no_more_events_and_answers_those_taken(tmp_path: Path) -> None:
    async with running(tmp_path) as stage, peer(stage) as container:
        stage.dispatcher.session_opened("alice")
        await container.subscription()
        await container.send(CRITICAL)
        assert await container.ack() == QUEUED
        stage.dispatcher.stop_taking()
        assert await container.subscription() == b"\x00USER:alice\x00"  # from now on they send to 5571, and wait
        await container.send(user_event("e2", priority=Priority.CRITICAL))
        await receive_first(stage)
        assert await container.ack() == DELIVERED
        answers: list[Ack] = []
        stage.dispatcher.publish(LOCAL, body("e3", priority=Priority.CRITICAL), answers.append)
        await stage.dispatcher.close()
        assert [ack.status for ack in answers] == [Status.QUEUED]  # published before the end
        with pytest.raises(Unavailable):
            stage.dispatcher.publish(LOCAL, body("e4"), answers.append)
        with pytest.raises(Unavailable):
            await stage.dispatcher.contacts("alice")
        stage.dispatcher.finished(EventKey("local", "e1"), 1, Sent())  # a late result is not an error
        assert not stage.dispatcher.failed.done()
    async with running(tmp_path) as stage, peer(stage) as container:
        await container.send(CRITICAL, user_event("e2", priority=Priority.CRITICAL))
        assert await container.ack() == DELIVERED and (await container.ack()).status is Status.QUEUED


async def test_failed_write_ends_the_dispatcher_before_any_ack(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as stage, peer(stage) as container:
        await container.send(CRITICAL)
        assert await container.ack() == QUEUED  # connected: the next event arrives before the failure
        answers: list[Ack] = []

        def broken(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr("dexorder_gateway.events.store.outbox.EventOutbox.write", broken)
        await container.send(user_event("e2", priority=Priority.CRITICAL))
        with suppress(Unavailable):  # it may have ended by then
            stage.dispatcher.publish(LOCAL, body("e3"), answers.append)
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            await asyncio.wait_for(stage.dispatcher.failed, 30)
        with pytest.raises(TimeoutError):
            await container.ack(0.1)
        assert answers == [] and not stage.heard.sends
        with pytest.raises(Unavailable):
            await stage.dispatcher.contacts("alice")


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.Queue[Exception | None]]:
    """Limit a cycle to 32 events, and hold each commit thread until the test lets it continue or fail."""
    results: queue.Queue[Exception | None] = queue.Queue()

    class Held(ThreadPoolExecutor):
        def submit(self, commit: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            def when_released() -> None:
                if failure := results.get(timeout=30):
                    raise failure
                commit(*args, **kwargs)

            return super().submit(when_released)

    monkeypatch.setattr("dexorder_gateway.events.dispatcher.cycle.MAX_MESSAGES", 32)
    monkeypatch.setattr("dexorder_gateway.events.dispatcher.cycle.BATCH_MESSAGES", 32)
    monkeypatch.setattr("dexorder_gateway.events.dispatcher.cycle.MAX_RECEIVE_NS", 30_000_000_000)
    monkeypatch.setattr("dexorder_gateway.events.store.outbox.ThreadPoolExecutor", Held)
    yield results


async def send_at_once(stage: Stage, container: Peer, ids: Iterable[str]) -> None:
    """Send events that all arrive before the dispatcher reads the first."""
    sent = threading.Event()
    await container.send(CRITICAL)
    assert await container.ack() == QUEUED  # it is connected
    stage.dispatcher._ask(lambda processor: sent.wait(30))
    await container.send(*(user_event(each, priority=Priority.CRITICAL) for each in ids))
    await asyncio.sleep(0.2)
    sent.set()


async def test_next_events_are_read_during_a_commit_and_none_is_answered(
    tmp_path: Path, commits: queue.Queue[Exception | None]
) -> None:
    ids = [f"n{number}" for number in range(100)]
    async with running(tmp_path, hard_events_per_second=1e6) as stage, peer(stage) as container:
        await send_at_once(stage, container, ids)
        with pytest.raises(TimeoutError):
            await container.ack(0.3)
        commits.put(None)
        assert [await container.ack() for _ in ids] == [Ack(each, Status.QUEUED) for each in ids]
        assert stage.value("_commit_seconds_count") == 3  # the first event, 32, and the 68 read meanwhile


async def test_failed_commit_in_its_thread_ends_the_dispatcher_without_an_ack(
    tmp_path: Path, commits: queue.Queue[Exception | None]
) -> None:
    async with running(tmp_path, hard_events_per_second=1e6) as stage, peer(stage) as container:
        await send_at_once(stage, container, [f"n{number}" for number in range(100)])
        commits.put(sqlite3.OperationalError("disk I/O error"))
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            await asyncio.wait_for(stage.dispatcher.failed, 30)
        with pytest.raises(TimeoutError):
            await container.ack(0.1)
        assert [record.key.event_id for record in (await stage.dispatcher.records(EventQuery())).records] == ["e1"]


async def test_second_gateway_on_the_same_file_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(BadSettings) as refused:
            async with running(tmp_path):
                raise AssertionError
        assert str(refused.value) == (
            f"DEXORDER_EVENTS_DB: {tmp_path / 'events.db'} is in use by another gateway, process {os.getpid()}; "
            "two would both deliver its events, so stop that one first"
        )


async def test_unusable_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_bytes(b"nonsense" * 1000)
    (tmp_path / "c.yaml").write_text("nonsense")
    for settings, error, words in (
        ({"db": tmp_path / "no.db"}, BadSettings, "DEXORDER_EVENTS_DB: .*not a database"),
        ({"containers": tmp_path / "c.yaml"}, BadSettings, "DEXORDER_EVENTS_CONTAINERS: "),
        ({"router": "tcp://203.0.113.1:1"}, OSError, "can't listen on tcp://203.0.113.1:1"),
    ):
        with pytest.raises(error, match=words):
            async with running(tmp_path, **settings):
                raise AssertionError


async def test_gateway_may_connect_instead_of_bind(tmp_path: Path) -> None:
    with zmq.asyncio.Context() as context:
        xpub, one, two = (bound(context, kind) for kind in (zmq.XPUB, zmq.DEALER, zmq.DEALER))
        sub, *routers = map(address_of, (xpub, one, two))
        async with running(tmp_path, connect=True, sub=sub, router=", ".join(routers)) as stage:
            stage.dispatcher.session_opened("alice")
            assert await asyncio.wait_for(xpub.recv(), 30) == b"\x01USER:alice\x00"
            for n, socket in enumerate((one, two)):
                await socket.send_multipart(encode_event(user_event(f"e{n}")))
                assert (await asyncio.wait_for(socket.recv_multipart(), 30))[1][1:] == (f"\n\x02e{n}\x10\x01".encode())
        context.destroy(0)


async def test_gateway_that_connects_still_authorizes_containers(tmp_path: Path) -> None:
    keys, settings = curve_keys(tmp_path)
    with zmq.asyncio.Context() as context:
        dealer, xpub = (bound(context, kind, keys, "alice") for kind in (zmq.DEALER, zmq.XPUB))
        async with running(
            tmp_path, connect=True, sub=address_of(xpub), router=address_of(dealer), **settings
        ) as stage:
            stage.dispatcher.session_opened("alice")
            container = Peer(dealer, xpub)
            assert await container.subscription() == b"\x01USER:alice\x00"
            await container.send(user_event("f", "bob"), user_event())
            assert [await container.ack(), await container.ack()] == [Ack("f", Status.ERROR, "user not owned"), QUEUED]
        context.destroy(0)


async def test_ack_is_not_sent_to_the_next_container_at_the_address_of_a_disconnected_one(tmp_path: Path) -> None:
    keys, settings = curve_keys(tmp_path)
    with zmq.asyncio.Context() as context:
        dealer, xpub = bound(context, zmq.DEALER, keys, "alice"), bound(context, zmq.XPUB)
        router = address_of(dealer)
        async with running(tmp_path, connect=True, sub=address_of(xpub), router=router, **settings) as stage:
            alice = Peer(dealer, xpub)
            await alice.send(CRITICAL)
            assert await alice.ack() == QUEUED
            stage.dispatcher.session_opened("alice")
            await until(lambda: stage.heard.session_events)
            dealer.close()
            await asyncio.sleep(0.3)  # the gateway detects that
            await receive_first(stage)
            bob = Peer(bound(context, zmq.DEALER, keys, "bob", router), xpub)
            await bob.send(user_event("e9", "bob", Priority.CRITICAL))
            assert await bob.ack() == Ack("e9", Status.QUEUED)  # and no ack of alice's before
        assert stage.dropped("container_gone") == 1
        context.destroy(0)


def curve_keys(folder: Path) -> tuple[Keys, dict[str, Any]]:
    """Return the keys of two containers, each for the user of its name, and the settings that let them in."""
    keys = Keys(folder / "keys")
    for name in ("alice", "bob"):
        keys.container(name, [name])
    keys.write()
    return keys, {"curve_key": keys.gateway_file, "containers": keys.containers_file}


def bound(
    context: zmq.asyncio.Context, kind: int, keys: Keys | None = None, name: str = "", address: str = LOOPBACK
) -> zmq.asyncio.Socket:
    """Return a container's socket that waits for the gateway; with ``keys``, it encrypts."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    if keys:
        socket.curve_publickey, socket.curve_secretkey = keys.pairs[name]
        socket.curve_serverkey = keys.gateway_key
    for _ in range(100):
        try:
            socket.bind(address)
            break
        except zmq.ZMQError:  # the previous one is still closing
            time.sleep(0.02)
    return socket


def address_of(socket: zmq.asyncio.Socket) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00")
