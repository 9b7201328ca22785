import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dexorder.errors import DexorderError
from dexorder.events import (
    AsyncPublisher,
    Channel,
    EventRefused,
    EventUnknown,
    FinalStatus,
    OutboxFailed,
    OutboxFull,
    Outcome,
    Preference,
    Publisher,
    PublisherClosed,
)
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.fakes.tcp_proxy import StallingProxy, in_a_thread
from tests.fakes.zmq_gateway import Container, Gateway

Until = Callable[[Callable[[], bool]], None]
PAYLOAD = {"order_id": "17", "price": "1.5"}


def rows(outbox: Path) -> int:
    connection = sqlite3.connect(f"file:{outbox}?mode=ro", uri=True)
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    connection.close()
    return int(count)


def test_a_critical_event_is_on_the_disk_before_publish_returns(container: Container) -> None:
    container.gateway.close()  # nobody there
    publisher = container.start()
    event_id = publisher.publish("alice", "ORDER_FILLED", PAYLOAD, "CRITICAL")
    # Read as a process that has crashed would leave it: a copy of file and log, taken while the publisher runs.
    copy = container.outbox.with_name("copy.db")
    for ending in ("", "-wal"):
        source = container.outbox.with_name(container.outbox.name + ending)
        copy.with_name(copy.name + ending).write_bytes(source.read_bytes())
    with sqlite3.connect(copy) as connection:
        ((kept, frame),) = connection.execute("SELECT event_id, frame FROM events").fetchall()
    connection.close()
    assert container.outbox.stat().st_mode & 0o077 == 0
    assert kept == event_id and pb.UserEvent.FromString(frame[1:]).event_id == event_id


def test_an_event_is_sent_until_its_final_answer(container: Container, until: Until) -> None:
    publisher, gateway = container.start(), container.gateway
    channels: list[str | Preference] = ["ACTIVE_SESSION", Preference(Channel.TELEGRAM, only_if_active=True)]
    event_id = publisher.publish("alice", 99, PAYLOAD, "CRITICAL", channels, timestamp_ms=1_700_000_000_000)
    assert gateway.event() == pb.UserEvent(
        user_id="alice",
        event_id=event_id,
        timestamp=1_700_000_000_000,
        event_type=99,  # type: ignore[arg-type]
        payload=b'{"order_id":"17","price":"1.5"}',
        delivery=pb.DeliverySpec(
            priority=pb.CRITICAL,
            channels=[
                pb.ChannelPreference(channel=pb.ACTIVE_SESSION),
                pb.ChannelPreference(channel=pb.TELEGRAM, only_if_active=True),
            ],
        ),
    )
    outcome = publisher.outcome(event_id)
    gateway.answer(event_id, pb.QUEUED)
    gateway.answer(event_id, pb.DELIVERED, via=pb.TELEGRAM)
    delivered = Outcome(event_id, FinalStatus.DELIVERED, Channel.TELEGRAM)
    assert outcome.result(5) == delivered and publisher.outcome(event_id).result(5) == delivered
    gateway.answer(event_id, pb.DELIVERED, via=pb.EMAIL)  # late and twice: nobody is told again
    gateway.answer("another", pb.ACK_ERROR, "who?")
    assert publisher.flush(5)
    publisher.close()
    assert container.outcomes == [delivered] and rows(container.outbox) == 0


def test_an_error_is_final_too(container: Container) -> None:
    publisher, gateway = container.start(), container.gateway
    event_id = publisher.publish("bob", "ORDER_FILLED", PAYLOAD, "NORMAL")
    assert gateway.event()
    gateway.answer(event_id, pb.ACK_ERROR, "user not owned", via=pb.EMAIL)
    assert publisher.outcome(event_id).result(5) == Outcome(event_id, FinalStatus.ERROR, None, "user not owned")


@pytest.mark.parametrize("answer", [[b"\x01", b"\x21"], [b"\x02", b"\x21x"], [b"\x01"], [b"\x01", b"\x21\xff\xff"]])
def test_invalid_answers_are_ignored(container: Container, answer: list[bytes]) -> None:
    # An empty EventAck parses as DELIVERED by ACTIVE_SESSION.
    publisher, gateway = container.start(), container.gateway
    event_id = publisher.publish("alice", 0, PAYLOAD, "CRITICAL")
    assert gateway.event()
    gateway.answer_raw(*answer)
    gateway.answer(event_id, pb.DELIVERED, via=pb.WEB)
    assert publisher.outcome(event_id).result(5).via is Channel.WEB and len(container.outcomes) == 1


def test_normal_takes_the_fast_path_while_the_user_has_a_session(container: Container, until: Until) -> None:
    publisher, gateway = container.start(), container.gateway
    first = publisher.publish("alice", 0, PAYLOAD)
    found = gateway.event()
    assert found and found.event_id == first
    gateway.watch("alice")
    until(lambda: publisher.subscribed("alice"))
    assert not publisher.subscribed("al") and not publisher.subscribed("alice2")
    second = publisher.publish("alice", 0, PAYLOAD)
    found = gateway.fast_event()
    assert found and found.event_id == second
    assert publisher.outcome(second).result(5) == Outcome(second, FinalStatus.SENT)
    critical = publisher.publish("alice", 0, PAYLOAD, "CRITICAL")
    found = gateway.event()
    assert found and found.event_id == critical
    gateway.unwatch("alice")
    until(lambda: not publisher.subscribed("alice"))
    third = publisher.publish("alice", 0, PAYLOAD)
    found = gateway.event()
    assert found and found.event_id == third
    publisher.close()
    assert rows(container.outbox) == 3  # all but the one on the fast path


def test_informational_is_sent_only_while_the_user_has_a_session(container: Container, until: Until) -> None:
    publisher, gateway = container.start(), container.gateway
    unseen = publisher.publish("alice", 0, PAYLOAD, "INFORMATIONAL")
    until(lambda: bool(container.outcomes))
    gateway.watch("alice")
    until(lambda: publisher.subscribed("alice"))
    seen = publisher.publish("alice", 0, PAYLOAD, "INFORMATIONAL")
    found = gateway.fast_event()
    assert found and found.event_id == seen
    assert gateway.event(100) is None and gateway.fast_event(0) is None
    publisher.close()
    assert container.outcomes == [Outcome(unseen, FinalStatus.DROPPED), Outcome(seen, FinalStatus.SENT)]
    assert rows(container.outbox) == 0


def test_subscriptions_end_with_the_gateway(container: Container, until: Until) -> None:
    publisher, gateway = container.start(), container.gateway
    gateway.watch("alice")
    until(lambda: publisher.subscribed("alice") and publisher.connected)
    gateway.close()
    until(lambda: not publisher.subscribed("alice") and not publisher.connected)
    waits = publisher.publish("alice", 0, PAYLOAD)
    again = Gateway(gateway.fast, gateway.guaranteed)
    try:
        found = again.event()
        assert found and found.event_id == waits
    finally:
        again.close()


def test_a_full_fast_path_loses_nothing(container: Container, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexorder.events.connection._SEND_LIMIT", 5)
    publisher, gateway = container.start(), container.gateway
    gateway.watch("alice")
    until(lambda: publisher.subscribed("alice"))
    big = {"text": "x" * 60_000}
    kept = [publisher.submit("alice", 0, big) for _ in range(300)]
    ids = {each.result(20) for each in kept}
    there: set[str] = set()
    while ids - there:
        event = gateway.fast_event(0) or gateway.event(0)
        if event:
            there.add(event.event_id)
    ends = {outcome.status for outcome in container.outcomes}
    assert ends == {FinalStatus.SENT} and len(container.outcomes) < 300  # some had to take the other path


def test_unanswered_events_are_sent_again_and_queued_ones_queried(container: Container) -> None:
    publisher = container.start(retransmit_base_seconds=0.1, query_seconds=0.3)
    gateway = container.gateway
    event_id = publisher.publish("alice", 0, PAYLOAD, "CRITICAL")
    copies = [gateway.event(), gateway.event(), gateway.event()]
    assert all(copies) and copies[0] == copies[1] == copies[2]
    gateway.answer(event_id, pb.QUEUED)
    while gateway.event(150):
        pass
    assert gateway.event() == copies[0]  # asked
    gateway.answer_copies(event_id, pb.DELIVERED, via=pb.WEB, until=lambda: publisher.flush(0.05))


def test_event_is_settled_on_the_new_connection_when_the_gateway_stalls_for_two_heartbeats(
    container: Container, until: Until
) -> None:
    gateway = container.gateway
    proxy = StallingProxy(int(gateway.guaranteed.rpartition(":")[2]))
    with in_a_thread(proxy) as port:
        publisher = container.start(
            guaranteed=f"tcp://127.0.0.1:{port}", heartbeat_ms=500, retransmit_base_seconds=0.1, query_seconds=0.3
        )
        event_id = publisher.publish("alice", 0, PAYLOAD, "CRITICAL")
        assert gateway.event()
        proxy.stall()
        gateway.answer(event_id, pb.QUEUED)
        until(lambda: proxy.connections > 1)  # two heartbeats have had no answer
        proxy.resume()
        gateway.answer_copies(event_id, pb.DELIVERED, via=pb.WEB, until=lambda: publisher.flush(0.05))
        publisher.close()
    assert container.outcomes == [Outcome(event_id, FinalStatus.DELIVERED, Channel.WEB)]


def test_events_are_sent_again_in_order_on_a_new_connection(container: Container) -> None:
    publisher, gateway = container.start(), container.gateway
    ids = [publisher.publish("alice", 0, {"n": n}, "CRITICAL") for n in range(5)]
    assert [(gateway.event() or pb.UserEvent()).event_id for _ in ids] == ids
    gateway.answer(ids[1], pb.QUEUED)
    gateway.answer(ids[3], pb.DELIVERED, via=pb.WEB)
    publisher.outcome(ids[3]).result(5)
    gateway.close()
    again = Gateway(gateway.fast, gateway.guaranteed)
    try:
        # Q among them: its final answer may have gone to the connection that broke.
        assert [(again.event() or pb.UserEvent()).event_id for _ in range(4)] == [ids[0], ids[1], ids[2], ids[4]]
    finally:
        again.close()


def test_the_next_publisher_sends_pending_events(container: Container) -> None:
    first, gateway = container.start(), container.gateway
    ids = [first.publish("alice", 0, {"n": n}, "CRITICAL") for n in range(3)]
    assert [(gateway.event() or pb.UserEvent()).event_id for _ in ids] == ids
    gateway.answer(ids[0], pb.DELIVERED, via=pb.WEB)
    first.outcome(ids[0]).result(5)
    first.close()
    second = container.start()
    assert [(gateway.event() or pb.UserEvent()).event_id for _ in range(2)] == ids[1:]
    for event_id in ids[1:]:
        gateway.answer(event_id, pb.DELIVERED, via=pb.WEB)
    assert second.flush(5)
    assert [outcome.event_id for outcome in container.outcomes] == ids


def test_a_killed_container_loses_nothing(container: Container) -> None:
    script = f"""
import os
from dexorder.events import Publisher
publisher = Publisher(outbox={str(container.outbox)!r}, guaranteed="tcp://127.0.0.1:1", fast="tcp://127.0.0.1:1")
for n in range(20):
    publisher.publish("alice", 0, {{"n": n}}, "CRITICAL", event_id=f"e{{n}}")
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    container.start()
    found = [container.gateway.event() for _ in range(20)]
    assert [event.event_id for event in found if event] == [f"e{n}" for n in range(20)]


def test_the_window_is_bounded(container: Container) -> None:
    publisher, gateway = container.start(window=10), container.gateway
    ids = [each.result(5) for each in [publisher.submit("alice", 0, PAYLOAD, "CRITICAL") for _ in range(30)]]
    first = [(gateway.event() or pb.UserEvent()).event_id for _ in range(10)]
    assert first == ids[:10] and gateway.event(200) is None
    gateway.answer(ids[0], pb.QUEUED)
    gateway.answer(ids[5], pb.DELIVERED, via=pb.WEB)
    assert [(gateway.event() or pb.UserEvent()).event_id for _ in range(2)] == ids[10:12]
    assert gateway.event(100) is None


def test_the_outbox_is_bounded(container: Container) -> None:
    publisher = container.start(max_events=2)
    kept = [publisher.publish("alice", 0, PAYLOAD, "CRITICAL") for _ in range(2)]
    with pytest.raises(OutboxFull, match="the outbox has 2 events, its maximum"):
        publisher.publish("alice", 0, PAYLOAD, "CRITICAL")
    assert container.gateway.event()
    container.gateway.answer(kept[0], pb.DELIVERED, via=pb.WEB)
    publisher.outcome(kept[0]).result(5)
    publisher.publish("alice", 0, PAYLOAD, "CRITICAL")


def test_the_same_event_again_is_the_same_event(container: Container) -> None:
    publisher, gateway = container.start(), container.gateway
    for _ in range(2):
        publisher.publish("alice", 0, PAYLOAD, "CRITICAL", event_id="fill-17", timestamp_ms=5)
    with pytest.raises(EventRefused, match="event_id 'fill-17' belongs to another event in the outbox"):
        publisher.publish("alice", 0, PAYLOAD, "CRITICAL", event_id="fill-17", timestamp_ms=6)
    assert gateway.event() and gateway.event(100) is None
    gateway.answer("fill-17", pb.DELIVERED, via=pb.WEB)
    publisher.outcome("fill-17").result(5)
    publisher.publish("alice", 0, PAYLOAD, "CRITICAL", event_id="fill-17", timestamp_ms=5)  # the gateway knows it
    assert gateway.event()


def test_an_event_whose_write_fails_is_reported_and_not_sent(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, gateway = container.start(), container.gateway

    def fail(*_: Any) -> None:
        raise OutboxFailed("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dexorder.events.outbox.Outbox.write", fail)
        kept = publisher.submit("alice", 0, PAYLOAD, "CRITICAL", event_id="lost")
        outcome = publisher.outcome("lost")
        with pytest.raises(OutboxFailed, match="no space left"):
            kept.result(5)
        with pytest.raises((OutboxFailed, EventUnknown)):  # as it was asked before or after
            outcome.result(5)
    assert gateway.event(100) is None
    publisher.publish("alice", 0, PAYLOAD, "CRITICAL", event_id="healed")
    event = gateway.event()
    assert event and event.event_id == "healed"


def test_an_outbox_has_one_publisher(container: Container) -> None:
    container.start()
    with pytest.raises(OutboxFailed, match="in use by another publisher"):
        container.start()


def test_a_file_that_is_not_an_outbox_is_refused(container: Container) -> None:
    container.outbox.write_text("not a database, though it is long enough to be one" * 100)
    with pytest.raises(OutboxFailed, match="can't be used: file is not a database"):
        container.start()


def test_a_callback_may_publish_and_may_fail(gateway: Gateway, tmp_path: Path) -> None:
    publishers: list[Publisher] = []
    waited = threading.Event()

    def on_outcome(outcome: Outcome) -> None:
        if outcome.event_id == "first":
            publishers[0].submit("alice", 0, PAYLOAD, "CRITICAL", event_id="second")
            try:
                publishers[0].publish("alice", 0, PAYLOAD, "CRITICAL")
            except RuntimeError:
                waited.set()
            raise ValueError("a callback's own fault")

    with Publisher(
        outbox=tmp_path / "o.db", fast=gateway.fast, guaranteed=gateway.guaranteed, on_outcome=on_outcome
    ) as p:
        publishers.append(p)
        p.publish("alice", 0, PAYLOAD, "CRITICAL", event_id="first")
        assert gateway.event()
        gateway.answer("first", pb.DELIVERED)
        event = gateway.event()
        assert event and event.event_id == "second" and waited.is_set()


def test_a_closed_publisher_raises_publisher_closed(container: Container) -> None:
    publisher = container.start()
    event_id = publisher.publish("alice", 0, PAYLOAD, "CRITICAL")
    outcome = publisher.outcome(event_id)
    with pytest.raises(EventUnknown, match="event 'other' is not pending and is not among the recent outcomes"):
        publisher.outcome("other").result(5)
    assert not publisher.flush(0.05)
    publisher.close()
    publisher.close()
    with pytest.raises(PublisherClosed):
        outcome.result(0)
    with pytest.raises(PublisherClosed):
        publisher.publish("alice", 0, PAYLOAD)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"guaranteed": "tcp://10.0.0.1:5571"}, "is not a loopback address: set curve_key"),
        ({"fast": "nonsense"}, "bad settings|can't connect to nonsense"),
        ({"window": 0}, "DEXORDER_PUBLISHER_WINDOW"),
    ],
)
def test_bad_settings_are_one_error(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DexorderError, match=says):
        Publisher(**{"outbox": tmp_path / "o.db"} | settings)


def test_a_publisher_binds_for_a_gateway_that_connects(tmp_path: Path) -> None:
    import zmq

    from dexorder_common.messaging.frames import event_body

    with Publisher(outbox=tmp_path / "o.db", fast="tcp://127.0.0.1:0", guaranteed="tcp://127.0.0.1:0", bind=True) as p:
        context: zmq.Context[Any] = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.connect(p.addresses[1])
        event_id = p.publish("alice", 0, PAYLOAD, "CRITICAL")
        assert router.poll(5_000)
        _, *frames = router.recv_multipart()
        assert pb.UserEvent.FromString(event_body(frames)).event_id == event_id
        context.destroy(linger=0)


async def test_asyncio(container: Container) -> None:
    gateway, told = container.gateway, list[Outcome]()
    publisher = await AsyncPublisher.open(
        outbox=container.outbox, fast=gateway.fast, guaranteed=gateway.guaranteed, on_outcome=told.append
    )
    async with publisher:
        event_id = await publisher.publish("alice", "ALERT_TRIGGERED", PAYLOAD, "CRITICAL", ["EMAIL"])
        assert gateway.event() and not publisher.subscribed("alice")
        gateway.answer(event_id, pb.DELIVERED, via=pb.EMAIL)
        assert await publisher.outcome(event_id) == Outcome(event_id, FinalStatus.DELIVERED, Channel.EMAIL)
        assert await publisher.flush(5)
    assert [outcome.event_id for outcome in told] == [event_id]
